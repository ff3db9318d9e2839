//! A control plane in 30 lines and their imports: it reads endpoints of clusters from standard
//! input, and serves them.
//!
//! ```text
//! cargo run --example control_plane
//! ```
//!
//! Type `web 127.0.0.1:8081 127.0.0.1:8082`: each Envoy and gRPC client that subscribes to the
//! endpoints of `web` on this port gets them. Type the line again with other addresses: the clients
//! get those. To see what the clients get, run in another terminal:
//!
//! ```text
//! cargo run -- watch --server 127.0.0.1:18000 EDS web
//! ```
//!
//! The end of the input (Ctrl-D) ends the server. An argument sets another address to listen on.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::core::v3::{Address, SocketAddress, address};
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints,
};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;
use xds::{Cache, Resource, Server, Transaction};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1);
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:18000")).await?;
    println!("listening on {}", listener.local_addr()?);
    let (cache, mut lines) = (Cache::new(), BufReader::new(tokio::io::stdin()).lines());
    let source = Arc::clone(&cache);
    let input = async move {
        while let Ok(Some(line)) = lines.next_line().await {
            // An invalid line changes nothing: a transaction is all or nothing.
            commit(&source, &line).unwrap_or_else(|error| eprintln!("error: {error}"));
        }
    };
    Ok(Server::new(cache).serve(listener, input).await?)
}

fn commit(cache: &Cache, line: &str) -> Result<(), Box<dyn Error>> {
    let (name, addresses) = line.split_once(' ').ok_or("write NAME ADDRESS:PORT..")?;
    let addresses = addresses.split(' ').map(str::parse).collect::<Result<Vec<_>, _>>()?;
    let lb_endpoints = addresses.into_iter().map(endpoint).collect();
    let endpoints = vec![LocalityLbEndpoints { lb_endpoints, ..Default::default() }];
    let assignment = ClusterLoadAssignment { cluster_name: name.into(), endpoints, ..Default::default() };
    let mut transaction = Transaction::new();
    transaction.put(Resource::of(&assignment)?);
    Ok(cache.commit(transaction).map(drop)?)
}

fn endpoint(address: SocketAddr) -> LbEndpoint {
    let port_specifier = Some(PortSpecifier::PortValue(address.port().into()));
    let socket = SocketAddress { address: address.ip().to_string(), port_specifier, ..Default::default() };
    let address = Some(Address { address: Some(address::Address::SocketAddress(socket)) });
    let endpoint = HostIdentifier::Endpoint(Endpoint { address, ..Default::default() });
    LbEndpoint { host_identifier: Some(endpoint), ..Default::default() }
}
