//! The gRPC paths and their services, and the server as a whole.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::hash::RandomState;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_stream::Stream;
use tonic::Status;
use tonic::service::Routes;
use tonic::transport::server::{Connected, TcpIncoming};
use xds_core::server::{Protocol, Service};
use xds_core::{Cache, Snapshot, shortened};
use xds_proto::envoy::service::status::v3::client_status_discovery_service_server::ClientStatusDiscoveryServiceServer;
use xds_proto::service::{ADS, ADS_DELTA, ADS_SOTW, SERVICES};

use crate::client_list::ClientList;
use crate::config::ServerConfig;
use crate::connections::{self, Handshake, HttpConfig, Plain};
use crate::csds::{LimitedCalls, StatusService};
use crate::driver::{Driver, ServerParts};
use crate::observe::Event;
use crate::peer::Peer;
use crate::readiness::ServiceHealth;
use crate::requests::Requests;
use crate::responses::ResponseBody;
use crate::skim::Client;
use crate::stream_registry::StreamRegistry;
#[cfg(feature = "tls")]
use crate::tls::Tls;

/// Serves one cache over gRPC, with health and reflection.
#[derive(Debug)]
pub struct Server {
    cache: Arc<Cache>,
    config: Arc<ServerConfig>,
    routes: axum::Router,
    registry: Arc<StreamRegistry>,
}

/// The shutdown signal for handlers of [`Server::with_routes`]: an `axum::Extension` of each
/// request. A handler that waits for an event should also wait for this, or the drain has to wait
/// for the handler.
#[derive(Debug, Clone)]
pub struct Stopping(watch::Receiver<bool>);

impl Stopping {
    /// Waits until the shutdown begins.
    pub async fn begun(&mut self) {
        // An error means that the server has ended already.
        _ = self.0.wait_for(|stopping| *stopping).await;
    }
}

/// Why the server stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The listener cannot accept connections any more; the resources are not the cause. Open
    /// connections end with the runtime.
    #[error("connections can no longer be accepted")]
    Accept(#[source] io::Error),
}

impl Server {
    /// A server for this cache, with the defaults of [`ServerConfig`].
    #[must_use]
    pub fn new(cache: Arc<Cache>) -> Self {
        xds_core::seed_tables(&RandomState::new());
        Self { cache, config: Arc::default(), routes: axum::Router::new(), registry: Arc::default() }
    }

    /// Replaces the configuration.
    #[must_use]
    pub fn with_config(mut self, config: ServerConfig) -> Self {
        self.config = Arc::new(config);
        self
    }

    /// The list of its connected clients. It stays current until the server ends.
    #[must_use]
    pub fn clients(&self) -> ClientList {
        ClientList::new(Arc::clone(&self.registry))
    }

    /// Serves these routes on the same port, also over HTTP/1.1, which the server accepts only if
    /// there are routes. Their requests have [`Stopping`] as an extension. The fallback of these
    /// routes is not used: unknown paths get 404.
    ///
    /// # Panics
    /// If two routes, also of several calls, have the same path.
    #[must_use]
    pub fn with_routes(mut self, routes: axum::Router) -> Self {
        self.routes = self.routes.merge(routes.reset_fallback());
        self
    }

    /// Serves until `shutdown` completes, then closes all streams with `UNAVAILABLE` and returns
    /// (G14). A connection that does not close within [`ServerConfig::drain`] is left to the
    /// runtime.
    ///
    /// # Errors
    /// [`ServeError::Accept`] if the listener cannot accept connections any more.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        self.serve_tcp(listener, Box::pin(shutdown)).await
    }

    /// The same as [`serve`](Self::serve) over any connections: Unix sockets, connections of a TLS
    /// acceptor, or pairs in memory.
    ///
    /// An error in `incoming` means one connection that failed, and the server asks for the next
    /// one at once. So the stream itself must wait where an immediate retry would not help. When
    /// the stream ends, open connections are served until `shutdown` completes. Connections without
    /// [vectored writes](AsyncWrite::is_write_vectored) need two writes where others need one.
    ///
    /// # Errors
    /// The same as [`serve`](Self::serve). An error of one connection is not an error of the
    /// server.
    ///
    /// # Example
    /// ```
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    /// use xds_core::Cache;
    /// use xds_server::Server;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (mut client, connection) = duplex(1 << 16);
    /// let connections = tokio_stream::once(Ok(connection));
    /// tokio::spawn(Server::new(Cache::new()).serve_with_incoming(connections, std::future::pending()));
    /// // A gRPC client would use this end of the pair. HTTP/2 starts with this text and an empty SETTINGS frame.
    /// client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await?;
    /// let mut head = [0; 9];
    /// client.read_exact(&mut head).await?;
    /// assert_eq!(head[3], 4, "SETTINGS of the server");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn serve_with_incoming<IO>(
        self,
        incoming: impl Stream<Item = io::Result<IO>> + Send,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError>
    where
        IO: AsyncRead + AsyncWrite + Connected + Send + Unpin + 'static,
    {
        self.serve_connections(incoming, Plain, shutdown).await
    }

    /// The same as [`serve`](Self::serve) with TLS.
    ///
    /// # Errors
    /// The same as [`serve`](Self::serve). A failed handshake is not an error of the server.
    #[cfg(feature = "tls")]
    pub async fn serve_tls(
        self,
        listener: TcpListener,
        tls: Arc<Tls>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        self.serve_tcp_tls(listener, tls, Box::pin(shutdown)).await
    }

    /// Serves the connections of a listener. `shutdown` is boxed, so this is not generic, and HTTP/2 is compiled
    /// with this crate. Otherwise each program would compile it, once for each kind of `shutdown`.
    fn serve_tcp<'a>(
        self,
        listener: TcpListener,
        shutdown: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<(), ServeError>> {
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        Box::pin(self.serve_connections(incoming, Plain, shutdown))
    }

    /// See `serve_tcp`.
    #[cfg(feature = "tls")]
    fn serve_tcp_tls<'a>(
        self,
        listener: TcpListener,
        tls: Arc<Tls>,
        shutdown: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<(), ServeError>> {
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        Box::pin(self.serve_connections(incoming, tls, shutdown))
    }

    async fn serve_connections<IO, G>(
        self,
        incoming: impl Stream<Item = io::Result<IO>> + Send,
        handshake: G,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError>
    where
        IO: Send + 'static,
        G: Handshake<IO>,
    {
        let (stop, stopping) = watch::channel(false);
        let (health, health_service) = tonic_health::server::health_reporter();
        let registry = Arc::clone(&self.registry);
        let routes = self.router(add_reflection(Routes::new(health_service)), &stopping);
        let routes = routes.fallback(unknown_path);
        let accepts_http1 = self.routes.has_routes();
        let http_config = HttpConfig { accepts_http1, config: Arc::clone(&self.config) };
        let serving = connections::serve(incoming, handshake, routes, http_config, stopping);
        tokio::pin!(serving);
        let (cache, readiness) = (Arc::clone(&self.cache), self.config.readiness.clone());
        let mut health = ServiceHealth::new(health);
        let report = async {
            health.set(|_| false).await;
            synced(&cache).await;
            let Some(readiness) = readiness else {
                health.set(|_| true).await;
                return std::future::pending::<()>().await;
            };
            loop {
                health.set(|type_url| readiness.is_ready(type_url)).await;
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::select! {
            result = &mut serving => return result.map_err(ServeError::Accept),
            // `shutdown` may be the future that commits to the cache, so it runs from the start.
            () = shutdown => {}
            () = report => {}
        }
        health.set(|_| false).await;
        let ServerConfig { drain, drain_rate, .. } = *self.config;
        _ = stop.send(true);
        registry.stop(drain, drain_rate);
        match tokio::time::timeout(drain + LAST_WORDS, serving).await {
            Ok(result) => result.map_err(ServeError::Accept),
            // A client that reads nothing must not delay the shutdown.
            Err(_) => Ok(()),
        }
    }

    /// The services as routes for another server that speaks HTTP/2: one of tonic
    /// (`tonic::service::Routes::from`), or `axum::serve` with the feature `http2`. Has the discovery
    /// services, CSDS and the [routes](Self::with_routes). It has no health and no reflection, which
    /// the other server may have for all its services.
    ///
    /// When `shutdown` completes, all streams end as in [`serve`](Self::serve) (G14). Streams end by
    /// themselves only with their client, so let the other server stop at the same time.
    ///
    /// The other server owns the connections, so the settings of [`ServerConfig`] for connections have
    /// no effect, and a client has no identity unless its requests have a [`Peer`] among their
    /// extensions.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn into_router(self, shutdown: impl Future<Output = ()> + Send + 'static) -> axum::Router {
        let (stop, stopping) = watch::channel(false);
        let router = self.router(Routes::default(), &stopping);
        let ServerConfig { drain, drain_rate, .. } = *self.config;
        tokio::spawn(async move {
            shutdown.await;
            _ = stop.send(true);
            self.registry.stop(drain, drain_rate);
        });
        router
    }

    /// These services, those of xDS, and the routes of the program; without a fallback.
    fn router(&self, services: Routes, stopping: &watch::Receiver<bool>) -> axum::Router {
        let (registry, config) = (Arc::clone(&self.registry), Arc::clone(&self.config));
        let status = StatusService::new(registry, config, stopping.clone());
        let services =
            services.add_service(LimitedCalls::new(ClientStatusDiscoveryServiceServer::new(status)));
        let router = self.add_discovery(services).into_axum_router().reset_fallback();
        router.merge(self.routes.clone().layer(axum::Extension(Stopping(stopping.clone()))))
    }

    /// Adds a route for each method of the aggregated service and of the per-type services.
    fn add_discovery(&self, routes: Routes) -> Routes {
        let rows = SERVICES.iter().flat_map(|row| {
            let service = Service::Single(row.type_url.into());
            let sotw = row.sotw.map(|method| (row.service, method, service.clone(), Protocol::Sotw));
            let delta = row.delta.map(|method| (row.service, method, service, Protocol::Delta));
            sotw.into_iter().chain(delta)
        });
        let aggregated = [
            (ADS, ADS_SOTW, Service::Aggregated, Protocol::Sotw),
            (ADS, ADS_DELTA, Service::Aggregated, Protocol::Delta),
        ];
        let mut router = routes.into_axum_router();
        let server = Arc::new(ServerParts {
            cache: Arc::clone(&self.cache),
            config: Arc::clone(&self.config),
            clients: Arc::default(),
            registry: Arc::clone(&self.registry),
            lists: Arc::default(),
        });
        let streams = Arc::new(Semaphore::new(self.config.streams_limit));
        for (name, method, service, protocol) in rows.chain(aggregated) {
            let (server, streams) = (Arc::clone(&server), Arc::clone(&streams));
            let method_service = Method { server, service, protocol, streams };
            router = router.route_service(&format!("/{name}/{method}"), method_service);
        }
        Routes::from(router)
    }
}

/// G13: before the first commit the server cannot answer, so clients should use another server.
async fn synced(cache: &Cache) {
    // Subscribe before the check, so that no commit is missed in between.
    let mut commits = cache.commits(1);
    while !cache.read(Snapshot::is_synced) {
        if commits.next().await.is_none() {
            return;
        }
    }
}

/// How often to check whether the server is ready.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long the transport may take to send the end of the streams.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The limit for an unknown path in a response.
const PATH_SHOWN_BYTES: usize = 256;

/// G5: an unknown gRPC method, such as SotW VHDS, gets `UNIMPLEMENTED`. S41: any other unknown path
/// gets 404.
async fn unknown_path(request: Request<axum::body::Body>) -> Response<axum::body::Body> {
    let content_type = request.headers().get(http::header::CONTENT_TYPE);
    if content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc")) {
        return Status::unimplemented("").into_http();
    }
    let mut response = Response::new(
        format!("nothing is served at {}\n", shortened(request.uri().path(), PATH_SHOWN_BYTES)).into(),
    );
    *response.status_mut() = http::StatusCode::NOT_FOUND;
    response
}

/// Both versions of the reflection protocol, because tools use one or the other.
fn add_reflection(routes: Routes) -> Routes {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(xds_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let invariant = "both descriptor sets are compiled in";
    routes
        .add_service(builder().build_v1().expect(invariant))
        .add_service(builder().build_v1alpha().expect(invariant))
}

/// One method of one discovery service.
#[derive(Debug, Clone)]
struct Method {
    server: Arc<ServerParts>,
    service: Service,
    protocol: Protocol,
    /// One permit per stream (G9).
    streams: Arc<Semaphore>,
}

impl tonic::codegen::Service<Request<axum::body::Body>> for Method {
    type Response = Response<axum::body::Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    /// The response headers are sent at once: some clients wait for them before they send a
    /// request.
    fn call(&mut self, request: Request<axum::body::Body>) -> Self::Future {
        if let Err(status) = self.server.config.takes_streams() {
            return ready(Ok(status.into_http()));
        }
        let Ok(permit) = Arc::clone(&self.streams).try_acquire_owned() else {
            let config = &self.server.config;
            if let Some(observer) = &config.observer {
                observer.on_event(&Client::default(), Event::TooManyStreams);
            }
            let limit = config.streams_limit;
            let text = format!("too many streams: the limit of this server is {limit}");
            return ready(Ok(Status::resource_exhausted(text).into_http()));
        };
        let peer = Peer::of(request.extensions());
        let inbound = Requests::new(request.into_body(), self.server.config.request_limit_bytes);
        let service = (self.service.clone(), self.protocol);
        let (driver, slot) = Driver::new(&self.server, service, peer, inbound, permit);
        tokio::spawn(driver);
        let body = axum::body::Body::new(ResponseBody::new(slot));
        let mut response = Response::new(body);
        let grpc = http::HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
        ready(Ok(response))
    }
}
