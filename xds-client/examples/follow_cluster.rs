//! Follows one cluster and its endpoints, as a proxy or a gRPC library would.
//!
//! ```text
//! GRPC_XDS_BOOTSTRAP=bootstrap.json cargo run -p xds-client --example follow_cluster -- checkout
//! ```
//!
//! An example of the file `bootstrap.json`:
//!
//! ```json
//! {
//!   "xds_servers": [{ "server_uri": "127.0.0.1:18000", "channel_creds": [{ "type": "insecure" }] }],
//!   "node": { "id": "follower" }
//! }
//! ```

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use xds_client::bootstrap::Bootstrap;
use xds_client::{Client, Event};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("which cluster? Give its name")?;
    let client = Client::start(Bootstrap::from_env()?)?;
    let mut cluster = client.watch::<Cluster>(&name)?;
    let mut endpoints = client.watch::<ClusterLoadAssignment>(&name)?;
    let mut watched = name.clone();
    loop {
        tokio::select! {
            Some(event) = cluster.next() => match event {
                Event::Changed(cluster) => {
                    println!("{name}: lb policy {:?}, version {}", cluster.lb_policy(), cluster.version());
                    let service = cluster.eds_cluster_config.as_ref().map_or("", |eds| &eds.service_name);
                    let service = if service.is_empty() { &name } else { service };
                    // Watching another name in its place ends the subscription to the former.
                    if service != watched {
                        endpoints = client.watch::<ClusterLoadAssignment>(service)?;
                        watched = service.to_owned();
                    }
                }
                Event::Absent(error) => println!("{name}: not to be used: {error}"),
                Event::Ambient(Some(error)) => println!("{name}: still in use, but {error}"),
                Event::Ambient(None) => println!("{name}: all is well again"),
            },
            Some(event) = endpoints.next() => match event {
                Event::Changed(assignment) => {
                    let endpoints = assignment.endpoints.iter().map(|locality| locality.lb_endpoints.len());
                    println!("{name}: {} endpoints", endpoints.sum::<usize>());
                }
                Event::Absent(error) => println!("{name}: no endpoints: {error}"),
                Event::Ambient(Some(error)) => println!("{name}: endpoints as before, but {error}"),
                Event::Ambient(None) => {}
            },
            else => return Ok(()),
        }
    }
}
