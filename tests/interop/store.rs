//! A durable store in front of a real Envoy.

use std::process::Command;

use crate::folder::Folder;
use crate::load::{Connections, Load};
use crate::mode::Mode;
use crate::resources::endpoints;
use crate::world::World;

/// A folder with a new store, and its path as an option.
pub(crate) fn store() -> (Folder, String) {
    let folder = Folder::new();
    let place = folder.path().join("store").to_str().expect("a text").to_owned();
    let init = Command::new(env!("CARGO_BIN_EXE_xds")).args(["store", "init", &place]).output();
    assert!(init.expect("cargo built the binary").status.success());
    (folder, place)
}

/// The server is killed (SIGKILL) during commits, three times, under 200 requests a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn st16_commits_move_traffic_and_a_killed_server_with_a_store_loses_no_request() {
    for mode in Mode::ALL {
        let (_folder, place) = store();
        let Some(mut world) = World::start_with(mode, &["--store", &place]).await else { return };
        let (red, blue) = (world.red.port, world.blue.port);
        world.until_answer("/v1/hello", "red").await;
        let loads = [Connections::New, Connections::Kept].map(|of| Load::start(world.port, "/v1", of));
        for (port, upstream) in [(blue, "blue"), (red, "red"), (blue, "blue")] {
            world.folder.write("endpoints.json", &[endpoints("one", port), endpoints("two", blue)]);
            // The commit of this change may be durable or not.
            world.server.kill().await;
            world.ask("/v1/hello").await;
            world.server.restart().await;
            world.until_answer("/v1/hello", upstream).await;
        }
        for load in loads {
            let report = load.finish().await;
            eprintln!("{mode}: {report}");
            report.assert_nothing_lost();
        }
    }
}
