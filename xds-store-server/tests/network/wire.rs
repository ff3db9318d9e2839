//! What tonic needs to run over the simulated network.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_stream::Stream;
use tonic::codegen::http::Uri;
use tonic::transport::Endpoint;
use tonic::transport::server::Connected;
use turmoil::net::{TcpListener, TcpStream};
use xds_store_server::{Connecting, PeerConnection, PeerConnector};

/// A connection that a server accepted.
pub(crate) struct Accepted(TcpStream);

impl Connected for Accepted {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// The connections of a host, as they come.
pub(crate) fn accepted(listener: TcpListener) -> impl Stream<Item = io::Result<Accepted>> {
    futures_util::stream::unfold(listener, async |listener| {
        let accepted = listener.accept().await.map(|(stream, _)| Accepted(stream));
        Some((accepted, listener))
    })
}

/// Connects with the token that a node has at that time.
#[derive(Debug)]
pub(crate) struct Connector(pub(crate) Arc<Mutex<String>>);

impl PeerConnector for Connector {
    fn connect(&self, address: &str) -> Connecting {
        let endpoint = Endpoint::from_shared(address.to_owned()).unwrap();
        let authorization = Some(format!("Bearer {}", self.0.lock().unwrap()).parse().unwrap());
        let connector = tower::service_fn(async |uri: Uri| {
            let stream = TcpStream::connect((uri.host().unwrap(), uri.port_u16().unwrap())).await?;
            Ok::<_, io::Error>(TokioIo::new(stream))
        });
        Box::pin(async move {
            let channel = endpoint.connect_with_connector(connector).await;
            Ok(PeerConnection { channel: channel.map_err(|error| error.to_string())?, authorization })
        })
    }
}
