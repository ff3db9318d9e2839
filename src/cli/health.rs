//! Health over HTTP: whether the process is alive, and whether it is ready for clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use xds::{Readiness, TypeUrl, shortened, type_name};

/// Decides whether a type (or with `None` the whole server) is ready; `Err` has the reason if it is
/// not.
pub(super) type Ready = Arc<dyn Fn(Option<&TypeUrl>) -> Result<(), String> + Send + Sync>;

/// Whether the server drains its streams: then it is not ready for anything.
#[derive(Debug, Clone, Default)]
pub(super) struct Drain(Arc<AtomicBool>);

impl Drain {
    /// The same shutdown, which notes that the drain begins.
    pub(super) async fn begin_after(self, shutdown: impl Future<Output = ()>) {
        shutdown.await;
        self.0.store(true, Ordering::Release);
    }

    /// Not ready while the server drains, and else as before.
    pub(super) fn or(self, ready: Ready) -> Ready {
        Arc::new(move |type_url| match self.0.load(Ordering::Acquire) {
            true => Err("draining: the server stops".to_owned()),
            false => ready(type_url),
        })
    }
}

/// Not ready while the server takes no streams, and else as before.
pub(super) fn unless_refusing(readiness: Arc<dyn Readiness>, ready: Ready) -> Ready {
    Arc::new(move |type_url| match readiness.refuses_streams() {
        Some(reason) => Err(reason),
        None => ready(type_url),
    })
}

/// `/healthz`, `/readyz` and `/readyz/TYPE`.
pub(super) fn routes(ready: Ready) -> Router {
    Router::new()
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(all))
        .route("/readyz/{type}", get(one))
        .with_state(ready)
}

async fn all(State(ready): State<Ready>) -> impl IntoResponse {
    answer(ready(None))
}

async fn one(State(ready): State<Ready>, Path(word): Path<String>) -> impl IntoResponse {
    match type_name::parse_any(&word) {
        Ok(type_url) => answer(ready(Some(&type_url))),
        Err(error) => {
            (StatusCode::BAD_REQUEST, format!("{}\n", shortened(&error.to_string(), TEXT_LIMIT_BYTES)))
        }
    }
}

fn answer(ready: Result<(), String>) -> (StatusCode, String) {
    match ready {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(missing) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", shortened(&missing, TEXT_LIMIT_BYTES)))
        }
    }
}

/// The longest error message; it quotes the request.
const TEXT_LIMIT_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_drains_is_not_ready_from_the_signal_on() {
        let drain = Drain::default();
        let ready = drain.clone().or(Arc::new(|_| Ok(())));
        assert_eq!(ready(None), Ok(()));
        drain.begin_after(async {}).await;
        assert_eq!(ready(None), Err("draining: the server stops".into()));
        assert_eq!(ready(Some(&xds::type_url::CLUSTER.into())), ready(None));
    }

    #[derive(Debug)]
    struct Refusing(AtomicBool);

    impl Readiness for Refusing {
        fn is_ready(&self, _: Option<&TypeUrl>) -> bool {
            true
        }

        fn refuses_streams(&self) -> Option<String> {
            self.0.load(Ordering::Acquire).then(|| "no".to_owned())
        }
    }

    #[test]
    fn sr20_a_server_is_not_ready_while_its_store_takes_a_snapshot() {
        let readiness = Arc::new(Refusing(AtomicBool::new(true)));
        let ready = unless_refusing(Arc::clone(&readiness) as Arc<dyn Readiness>, Arc::new(|_| Ok(())));
        assert_eq!(ready(None), Err("no".into()));
        readiness.0.store(false, Ordering::Release);
        assert_eq!(ready(None), Ok(()));
    }
}
