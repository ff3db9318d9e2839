//! The troubles at the top of the page: of the binary, and of a fleet.

use std::fs;
use std::process::Stdio;

use serde_json::json;
use tokio::process::Command;
use xds::type_url::CLUSTER;

use crate::fleet::{Client, Fleet};
use crate::running::{self, Running, Scratch};
use crate::{FITS, READABLE, browser};

const GOOD: &str = "\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: one\n";

#[tokio::test(flavor = "multi_thread")]
async fn the_page_opens_with_a_refused_folder_and_is_green_only_without_trouble() {
    let Some(browser) = browser("troubles").await else { return };
    let scratch = Scratch::new("troubles");
    scratch.write("clusters.yaml", GOOD);
    let server = Running::start(&["serve", scratch.text()]);
    browser.open(&format!("http://{}/", server.admin)).await;
    browser.until(&dot("good", "no trouble")).await;
    assert_eq!(browser.value("document.querySelector('#troubles').hidden").await, true);

    scratch.write("clusters.yaml", format!("{GOOD}nme: x\n"));
    browser.until(&dot("bad", "1 error")).await;
    browser.until(&shows("The folder is refused")).await;
    browser.until(&shows("clusters.yaml:3:1: envoy.config.cluster.v3.Cluster \"one\": no field `nme`")).await;
    browser.until(READABLE).await;
    browser.picture("admin-folder-refused").await;
    browser.resize(400, 800).await;
    browser.until(FITS).await;
    browser.picture("admin-folder-refused-400").await;
    // The reason is also there for a client of the API, and as a metric.
    assert_eq!(server.metric("xds_troubles{kind=\"folder_refused\",severity=\"error\"}"), Some(1.0));

    scratch.write("clusters.yaml", GOOD);
    browser.until(&dot("good", "no trouble")).await;
    browser.until("document.querySelector('#troubles').hidden").await;
    fs::remove_dir_all(&scratch.0).expect("it is there");
    browser.until(&shows("cannot be read")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_resource_is_one_trouble_for_all_its_clients_and_readable_on_a_phone() {
    let Some(browser) = browser("rejected").await else { return };
    browser.resize(400, 800).await;
    let fleet = Fleet::start().await;
    let put = |content: &str| {
        fleet.put(CLUSTER, ["new".to_owned()].into_iter(), content).expect("nothing is wrong");
    };
    put("\u{a}\u{3}new");
    let channel = fleet.connect().await;
    let mut clients = Vec::new();
    for id in ["edge-1", "edge-2"] {
        clients.push(Client::join(&channel, id, &[("env", "prod")], CLUSTER, "new").await);
    }
    browser.open(&fleet.page("")).await;
    browser.until(&dot("good", "no trouble")).await;
    put("\u{a}\u{3}new\u{a}\u{3}new");
    for client in &mut clients {
        client.answer(Some("malformed: connect_timeout is required")).await;
    }
    browser.until(&dot("bad", "1 error")).await;
    browser.until(&shows("2 clients reject CDS new (")).await;
    browser.until(FITS).await;
    // The words of the client are within the view, without a scroll.
    let seen = "(() => {
        const words = document.querySelector('#troubles .words'), at = words.getBoundingClientRect();
        return words.textContent.includes('connect_timeout') && at.left >= 0 && at.right <= innerWidth && at.bottom <= innerHeight;
    })()";
    assert_eq!(browser.value(seen).await, json!(true));
    browser.picture("admin-rejected-400").await;

    // It ends when all clients ACK a correction.
    put("\u{a}\u{3}new");
    for client in &mut clients {
        client.answer(None).await;
    }
    browser.until(&dot("good", "no trouble")).await;
    drop(clients);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_set_aside_is_an_error_and_a_warning_of_the_folder_is_a_warning() {
    let Some(browser) = browser("isolated").await else { return };
    let scratch = Scratch::new("isolated");
    scratch.write("clusters.yaml", GOOD);
    let server = Running::start(&["serve", scratch.text(), "--isolate", "file"]);
    browser.open(&format!("http://{}/", server.admin)).await;
    browser.until(&dot("good", "no trouble")).await;
    scratch.write("b.yaml", GOOD.replace("one", "two") + "when: env=prod\n");
    browser.until(&dot("warn", "1 warning")).await;
    browser.until(&shows("The folder has 1 warning of the kind gap")).await;
    browser.until(READABLE).await;
    scratch.write("clusters.yaml", format!("{GOOD}nme: x\n"));
    browser.until(&dot("bad", "1 error, 1 warning")).await;
    browser.until(&shows("1 file of the folder has errors and keeps its last good content")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_is_away_is_shown_with_its_reason_and_since_when() {
    let Some(browser) = browser("away").await else { return };
    let origin = Running::start(&["serve", "examples/variants"]);
    let proxy = Running::start(&["proxy", "--upstream", &origin.address]);
    browser.open(&format!("http://{}/#/upstreams", proxy.admin)).await;
    browser.until(&dot("good", "no trouble")).await;
    let mut watch = Command::from(running::xds());
    watch.args(["watch", "--server", &proxy.address, "CDS", "*", "env=prod"]);
    let watch = watch.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn();
    let _watch = watch.expect("it starts");
    browser.until("document.querySelector('main').innerText.includes('synced')").await;
    drop(origin);
    browser.until(&dot("bad", "1 error")).await;
    browser.until(&shows("No server of the upstream can be reached (since")).await;
    browser.until(&shows("refused")).await;
    browser.until("document.querySelector('main .pill.bad')?.textContent === 'away'").await;
    browser.resize(400, 800).await;
    browser.until(FITS).await;
    browser.picture("admin-away-400").await;
}

/// The dot at the top has this colour and says this.
pub(crate) fn dot(class: &str, text: &str) -> String {
    let live = "document.querySelector('#live')";
    format!("{live}.className === '{class}' && {live}.textContent === '{text}'")
}

/// The troubles contain this text.
pub(crate) fn shows(text: &str) -> String {
    format!("document.querySelector('#troubles').innerText.includes({})", json!(text))
}
