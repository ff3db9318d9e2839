//! Which path is which service, and the server as a whole.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_stream::Stream;
use tonic::Status;
use tonic::service::Routes;
use tonic::transport::server::{Connected, TcpIncoming};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use xds_core::server::Service;
use xds_core::{Cache, Snapshot, shortened};
use xds_proto::envoy::service::status::v3::client_status_discovery_service_server::ClientStatusDiscoveryServiceServer;
use xds_proto::service::{ADS, ADS_DELTA, ADS_SOTW, CSDS, SERVICES};

use crate::client_groups::ClientGroups;
use crate::client_list::ClientList;
use crate::config::ServerConfig;
use crate::connections::{self, Handshake, HttpConfig, Plain};
use crate::csds::StatusService;
use crate::driver::{Driver, ServerParts};
use crate::observe::Event;
use crate::peer::Peer;
use crate::protocol::Protocol;
use crate::requests::Requests;
use crate::responses::ResponseBody;
use crate::skim::{Client, Lists};
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

/// The shutdown as a handler of [`Server::with_routes`] sees it: an `axum::Extension` of each
/// request. A handler that waits for something should also wait for this, or the drain waits for
/// the handler.
#[derive(Debug, Clone)]
pub struct Stopping(watch::Receiver<bool>);

impl Stopping {
    /// Waits until the shutdown begins.
    pub async fn begun(&mut self) {
        // An error says that the server is gone altogether.
        _ = self.0.wait_for(|stopping| *stopping).await;
    }
}

/// Why serving ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// No more connections can be accepted; nothing was wrong with the resources. The connections
    /// that are there are dropped with the runtime.
    #[error("connections can no longer be accepted")]
    Accept(#[source] io::Error),
}

impl Server {
    /// A server of this cache, with the defaults of [`ServerConfig`].
    #[must_use]
    pub fn new(cache: Arc<Cache>) -> Self {
        Self { cache, config: Arc::default(), routes: axum::Router::new(), registry: Arc::default() }
    }

    /// Replaces the defaults.
    #[must_use]
    pub fn with_config(mut self, config: ServerConfig) -> Self {
        self.config = Arc::new(config);
        self
    }

    /// Its clients, from now until it ends.
    #[must_use]
    pub fn clients(&self) -> ClientList {
        ClientList::new(Arc::clone(&self.registry))
    }

    /// Serves these on the same port, also over HTTP/1.1, which is spoken only if there are any.
    /// Their requests have [`Stopping`] as an extension. What they have for unknown paths is not
    /// used: those are answered 404.
    ///
    /// # Panics
    /// When two of them, over several calls, are for one path.
    #[must_use]
    pub fn with_routes(mut self, routes: axum::Router) -> Self {
        self.routes = self.routes.merge(routes.reset_fallback());
        self
    }

    /// Serves until `shutdown` is done, then ends all streams with `UNAVAILABLE` and returns (G14).
    /// Connections of clients that do not take the end of their streams in [`ServerConfig::drain`]
    /// are left to the runtime.
    ///
    /// # Errors
    /// [`ServeError::Accept`] when connections can no longer be accepted.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        self.serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)), shutdown).await
    }

    /// The same as [`serve`](Self::serve) over any connections: unix sockets, what a TLS acceptor
    /// makes of TCP, or memory.
    ///
    /// An error among them is a connection that could not be made, and the next is asked for at
    /// once: who makes them waits where trying again would not help. When no more can come, those
    /// that are there are served on until `shutdown` is done. Connections without [vectored
    /// writes](AsyncWrite::is_write_vectored) take two writes for what others take in one.
    ///
    /// # Errors
    /// As those of [`serve`](Self::serve): what happens on one connection is none.
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
    /// // From here on a client of gRPC would have its end. HTTP/2 begins with this, and a frame of no SETTINGS.
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
    /// As those of [`serve`](Self::serve): a client whose handshake fails is none.
    #[cfg(feature = "tls")]
    pub async fn serve_tls(
        self,
        listener: TcpListener,
        tls: Arc<Tls>,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), ServeError> {
        self.serve_connections(TcpIncoming::from(listener).with_nodelay(Some(true)), tls, shutdown).await
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
        let status = StatusService::new(Arc::clone(&registry), Arc::clone(&self.config), stopping.clone());
        let routes = Routes::new(health_service).add_service(ClientStatusDiscoveryServiceServer::new(status));
        let routes = self.add_discovery(add_reflection(routes), &registry);
        let routes = routes.into_axum_router().fallback(unknown_path);
        let accepts_http1 = self.routes.has_routes();
        let routes = routes.merge(self.routes.layer(axum::Extension(Stopping(stopping.clone()))));
        let http_config = HttpConfig { accepts_http1, config: Arc::clone(&self.config) };
        let serving = connections::serve(incoming, handshake, routes, http_config, stopping);
        tokio::pin!(serving);
        let cache = Arc::clone(&self.cache);
        let report = async {
            set_all(&health, ServingStatus::NotServing).await;
            synced(&cache).await;
            set_all(&health, ServingStatus::Serving).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            result = &mut serving => return result.map_err(ServeError::Accept),
            // It may be what commits, so it runs from the start.
            () = shutdown => {}
            () = report => {}
        }
        set_all(&health, ServingStatus::NotServing).await;
        let ServerConfig { drain, drain_rate, .. } = *self.config;
        _ = stop.send(true);
        registry.stop(drain, drain_rate);
        match tokio::time::timeout(drain + LAST_WORDS, serving).await {
            Ok(result) => result.map_err(ServeError::Accept),
            // A client that reads nothing does not keep the server.
            Err(_) => Ok(()),
        }
    }

    /// The aggregated and every per-type service, a route per method.
    fn add_discovery(&self, routes: Routes, registry: &Arc<StreamRegistry>) -> Routes {
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
        let (clients, lists) = (Arc::<ClientGroups>::default(), Arc::<Lists>::default());
        let streams = Arc::new(Semaphore::new(self.config.streams_limit));
        for (name, method, service, protocol) in rows.chain(aggregated) {
            let method_service = Method {
                cache: Arc::clone(&self.cache),
                config: Arc::clone(&self.config),
                service,
                protocol,
                clients: Arc::clone(&clients),
                registry: Arc::clone(registry),
                lists: Arc::clone(&lists),
                streams: Arc::clone(&streams),
            };
            router = router.route_service(&format!("/{name}/{method}"), method_service);
        }
        Routes::from(router)
    }
}

/// Every service, and the server as a whole.
async fn set_all(health: &HealthReporter, status: ServingStatus) {
    for service in SERVICES.iter().map(|row| row.service).chain([ADS, CSDS, ""]) {
        health.set_service_status(service, status).await;
    }
}

/// G13: before the first commit nobody can be told anything, so clients are better off elsewhere.
async fn synced(cache: &Cache) {
    // Before the look, so that no commit comes in between.
    let mut commits = cache.commits(1);
    while !cache.read(Snapshot::is_synced) {
        if commits.next().await.is_none() {
            return;
        }
    }
}

/// How long streams that were told of their end may take to say so.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Of a path at which there is nothing.
const PATH_SHOWN_BYTES: usize = 256;

/// G5: a method that is not there, such as SotW VHDS, is `UNIMPLEMENTED`. S41: any other path is
/// not found.
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

/// Both versions of the reflection protocol; tools in use know one or the other.
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
    cache: Arc<Cache>,
    config: Arc<ServerConfig>,
    service: Service,
    protocol: Protocol,
    clients: Arc<ClientGroups>,
    registry: Arc<StreamRegistry>,
    lists: Arc<Lists>,
    /// One permit for each stream that may be.
    streams: Arc<Semaphore>,
}

impl tonic::codegen::Service<Request<axum::body::Body>> for Method {
    type Response = Response<axum::body::Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    /// The headers go out at once: some clients wait for them before they send.
    fn call(&mut self, request: Request<axum::body::Body>) -> Self::Future {
        let Ok(permit) = Arc::clone(&self.streams).try_acquire_owned() else {
            if let Some(observer) = &self.config.observer {
                observer.on_event(&Client::default(), Event::TooManyStreams);
            }
            let limit = self.config.streams_limit;
            let text = format!("more than {limit} streams at the same time exceed the limit");
            return ready(Ok(Status::resource_exhausted(text).into_http()));
        };
        let peer = Peer::of(request.extensions());
        let inbound = Requests::new(request.into_body(), self.config.request_limit_bytes);
        let Self { cache, config, clients, registry, lists, .. } = self;
        let shared = ServerParts { cache, config, clients, registry, lists };
        let service = (self.service.clone(), self.protocol);
        let (driver, slot) = Driver::new(&shared, service, peer, inbound, permit);
        tokio::spawn(driver);
        let body = axum::body::Body::new(ResponseBody::new(slot));
        let mut response = Response::new(body);
        let grpc = http::HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
        ready(Ok(response))
    }
}
