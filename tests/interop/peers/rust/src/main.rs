//! A gRPC client of tonic-xds, for tests/interop/grpc_peer.rs.
//!
//!     grpc-rust-peer client TARGET   makes one call for each line on stdin, and prints `ok ANSWER` or `error REASON`
//!
//! It finds its xDS bootstrap as every gRPC client does, and ends with stdin. Requests and answers are plain bytes, so
//! no generated code is needed.
#![forbid(unsafe_code)]

use std::error::Error;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Status};
use tonic_xds::{XdsChannelBuilder, XdsChannelConfig, XdsChannelGrpc, XdsUri};

/// A codec that leaves bytes as they are.
#[derive(Debug, Default)]
struct Plain;

impl Codec for Plain {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Plain {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().collect();
    let [_, role, target] = &arguments[..] else { return Err("usage: grpc-rust-peer client TARGET".into()) };
    if role != "client" {
        return Err("usage: grpc-rust-peer client TARGET".into());
    }
    let channel =
        XdsChannelBuilder::new(XdsChannelConfig::new(XdsUri::parse(target)?)).build_grpc_channel()?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while lines.next_line().await?.is_some() {
        match call(channel.clone()).await {
            Ok(answer) => println!("ok {}", String::from_utf8_lossy(&answer)),
            Err(status) => {
                let words: Vec<_> = status.message().split_whitespace().collect();
                println!("error {:?} {}", status.code(), words.join(" "));
            }
        }
    }
    Ok(())
}

async fn call(channel: XdsChannelGrpc) -> Result<Vec<u8>, Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let mut request = Request::new(Vec::new());
    request.set_timeout(Duration::from_secs(12));
    let path = PathAndQuery::from_static("/interop.Name/Get");
    Ok(client.unary(request, path, Plain).await?.into_inner())
}
