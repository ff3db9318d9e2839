//! A real etcd that does not answer, and what a server of a store in it says meanwhile.

use std::time::Duration;

use tokio::process::Command;

use crate::etcd::Etcd;
use crate::http;
use crate::server::Server;
use crate::wait::until;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn st59_st72_while_etcd_does_not_answer_the_server_says_so_and_nothing_after_that() {
    let Some(etcd) = Etcd::start().await else { return };
    let init = Command::new(env!("CARGO_BIN_EXE_xds")).args(["store", "init", &etcd.store()]).status().await;
    assert!(init.expect("cargo built the binary").success());
    let server = Server::of_store(&["--store", &etcd.store(), "--admin", "127.0.0.1:0"]).await;
    let has_page = async || (!server.lines_with("admin page on ").is_empty()).then_some(());
    until("the server has an admin page", LONG, has_page).await;
    let port = server.admin_port().await;
    let get = async |path: &str| http::get_from(port, &format!("127.0.0.1:{port}"), path).await;
    let alarms = async || {
        // It answers within seconds also while etcd does not.
        let metrics = get("/metrics").await.expect("the admin port answers").body;
        metrics.contains("xds_troubles{kind=\"store_unavailable\",severity=\"error\"} 1")
    };
    assert_eq!((get("/readyz/store").await.map(|answer| answer.status), alarms().await), (Ok(200), false));
    etcd.signal("-STOP").await;
    let away = async || match get("/readyz/store").await {
        Ok(answer) if answer.status == 503 => Some(answer.body),
        _ => None,
    };
    let reason = until("the server is not ready for commits", LONG, away).await.0;
    assert!(reason.starts_with("the engine of the store cannot be reached: "), "{reason}");
    until("the metric has the alarm", LONG, async || alarms().await.then_some(())).await;
    etcd.signal("-CONT").await;
    let ready = async || get("/readyz/store").await.is_ok_and(|answer| answer.status == 200).then_some(());
    until("the server is ready for commits", LONG, ready).await;
    until("the alarm ends", LONG, async || (!alarms().await).then_some(())).await;
}

/// Longer than the server needs to notice that a connection is dead.
const LONG: Duration = Duration::from_secs(60);
