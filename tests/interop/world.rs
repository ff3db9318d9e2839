//! The setup of most tests: two upstreams, a folder, our server, and an Envoy that it configures.

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::envoy::Envoy;
use crate::folder::Folder;
use crate::http;
use crate::mode::Mode;
use crate::peers;
use crate::resources::{cluster, endpoints, listener, routes};
use crate::server::Server;
use crate::upstream::Upstream;
use crate::wait::{SOON, until};

/// All programs of the setup. Dropping this ends them.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) red: Upstream,
    pub(crate) blue: Upstream,
    pub(crate) folder: Folder,
    pub(crate) server: Server,
    pub(crate) envoy: Envoy,
    /// The port of the listener `web`.
    pub(crate) port: u16,
    _scratch: Folder,
    _turn: SemaphorePermit<'static>,
}

impl World {
    /// The listener `web` sends `/v1` to the cluster `one` (the upstream red), the rest to `two`
    /// (blue).
    pub(crate) async fn start(mode: Mode) -> Option<Self> {
        Self::start_with(mode, &[]).await
    }

    /// The same with further options of the server.
    pub(crate) async fn start_with(mode: Mode, options: &[&str]) -> Option<Self> {
        Self::start_all(mode, options, |folder, red, blue| {
            folder.write("listener.json", &[listener(mode, "web", "routes")]);
            folder.write("routes.json", &[routes("routes", &[("/v1", "one"), ("/", "two")])]);
            folder.write("clusters.json", &[cluster(mode, "one"), cluster(mode, "two")]);
            folder.write("endpoints.json", &[endpoints("one", red), endpoints("two", blue)]);
        })
        .await
    }

    /// The same with the files that `fill` writes, given the ports of red and blue. One listener is
    /// `web`.
    pub(crate) async fn start_from(mode: Mode, fill: impl FnOnce(&mut Folder, u16, u16)) -> Option<Self> {
        Self::start_all(mode, &[], fill).await
    }

    async fn start_all(
        mode: Mode,
        options: &[&str],
        fill: impl FnOnce(&mut Folder, u16, u16),
    ) -> Option<Self> {
        peers::find(peers::ENVOY)?;
        let turn = TURNS.acquire().await.expect("never closed");
        eprintln!("--- {mode}");
        let (red, blue) = (Upstream::start("red").await, Upstream::start("blue").await);
        let (mut folder, scratch) = (Folder::new(), Folder::new());
        fill(&mut folder, red.port, blue.port);
        let server = Server::start_with(folder.path(), options).await;
        let envoy = Envoy::start(scratch.path(), mode, server.port).await?;
        let port = envoy.port("web").await;
        Some(Self { red, blue, folder, server, envoy, port, _scratch: scratch, _turn: turn })
    }

    /// Envoy's answer to a request for `path`.
    pub(crate) async fn ask(&self, path: &str) -> String {
        match http::get(self.port, path).await {
            Ok(answer) if answer.status == 200 => answer.body,
            other => format!("{other:?}"),
        }
    }

    /// Waits until `upstream` answers a request for `path`.
    pub(crate) async fn until_answer(&self, path: &str, upstream: &str) {
        let what = format!("{path} is answered by {upstream}");
        until(&what, SOON, async || (self.ask(path).await == upstream).then_some(())).await;
    }
}

/// A permit, for a test that starts one Envoy at a time.
pub(crate) async fn one_turn() -> SemaphorePermit<'static> {
    TURNS.acquire().await.expect("never closed")
}

/// All permits, for a test that starts more than one Envoy.
pub(crate) async fn every_turn() -> SemaphorePermit<'static> {
    TURNS.acquire_many(WORLDS_AT_ONCE).await.expect("never closed")
}

/// How many setups run at the same time. More would slow each other down on a small machine.
const WORLDS_AT_ONCE: u32 = 2;

static TURNS: Semaphore = Semaphore::const_new(WORLDS_AT_ONCE as usize);
