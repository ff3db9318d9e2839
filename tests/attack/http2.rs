//! HTTP/2 as a hostile client writes it: only frames, without the rules of the protocol.

use std::net::SocketAddr;

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use xds::type_url::CLUSTER;
use xds_proto::envoy::config::core::v3::Node;
use xds_proto::envoy::service::discovery::v3::DiscoveryRequest;

/// The first bytes of a client: the preface and an empty SETTINGS frame.
pub(crate) const BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

pub(crate) const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
pub(crate) const PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0attacker";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Opens a stream of ADS.
pub(crate) fn headers(stream: u32) -> Vec<u8> {
    // POST and http by their numbers in the table, everything else as text (RFC 7541, 6.2.2).
    let mut block = vec![0x83, 0x86];
    let mut literal = |name: &[u8], value: &[u8]| {
        block.extend_from_slice(name);
        block.push(u8::try_from(value.len()).unwrap());
        block.extend_from_slice(value);
    };
    literal(&[4], b"/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources");
    literal(&[1], b"localhost");
    literal(b"\0\x0ccontent-type", b"application/grpc");
    literal(b"\0\x02te", b"trailers");
    frame(1, 4, stream, &block)
}

pub(crate) fn data(stream: u32, payload: &[u8]) -> Vec<u8> {
    frame(0, 0, stream, payload)
}

/// Resets a stream.
pub(crate) fn reset(stream: u32) -> Vec<u8> {
    frame(3, 0, stream, &8_u32.to_be_bytes())
}

/// A request for a cluster, as a gRPC message.
pub(crate) fn request(name: &str) -> Vec<u8> {
    let request = DiscoveryRequest {
        type_url: CLUSTER.into(),
        resource_names: vec![name.into()],
        node: Some(Node { id: "attacker".into(), ..Node::default() }),
        ..DiscoveryRequest::default()
    };
    let message = request.encode_to_vec();
    [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), &message].concat()
}

/// The odd numbers: clients use them for streams.
pub(crate) fn streams() -> impl Iterator<Item = u32> {
    (1..1 << 31).step_by(2)
}

/// An open connection. The bytes of the server are read and dropped.
pub(crate) async fn connect(address: SocketAddr) -> OwnedWriteHalf {
    loop {
        let Ok(connection) = TcpStream::connect(address).await else { continue };
        let (mut read, mut write) = connection.into_split();
        tokio::spawn(async move {
            let mut buffer = vec![0; 1 << 16];
            while read.read(&mut buffer).await.is_ok_and(|len| len > 0) {}
        });
        if write.write_all(BEGIN).await.is_ok() {
            return write;
        }
    }
}
