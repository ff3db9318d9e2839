//! The server under test. It uses only what every program that embeds the library can use.
//!
//! | module | holds |
//! | --- | --- |
//! | `arguments` | `-name value` pairs, as the bench appends them |
//! | `control` | the port that tells when all is ready and takes updates |
//! | `resources` | clusters and load assignments, field for field as the other servers have them |
#![forbid(unsafe_code)]

mod arguments;
mod control;
mod resources;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use tokio::net::TcpListener;
use xds_core::server::{StreamConfig, TypeConfig};
use xds_core::{Audience, Cache, Candidate, Transaction};
use xds_proto::type_url::CLUSTER_LOAD_ASSIGNMENT;
use xds_server::{Server, ServerConfig};

use arguments::Arguments;
use control::query;
use resources::{Error, Shape, cluster, load_assignment};

/// The allocator of the `xds` binary.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let arguments = Arguments::read(std::env::args().skip(1))?;
    let shape =
        Shape { endpoints: arguments.number("endpoints", 10)?, variants: arguments.number("variants", 1)? };
    let (clusters, assignments) = (arguments.number("clusters", 1000)?, arguments.number("eds", 1000)?);
    let cache = Cache::new();
    let mut transaction = Transaction::new();
    for index in 0..clusters {
        transaction.put(cluster(index)?);
    }
    for index in 0..assignments {
        for variant in 0..shape.variants {
            transaction.put(load_assignment(index, 0, variant, shape)?);
        }
    }
    cache.commit(transaction)?;

    let listener = TcpListener::bind(arguments.text("grpc", "127.0.0.1:18000")).await?;
    let control = TcpListener::bind(arguments.text("http", "127.0.0.1:19000")).await?;
    let updated = Arc::clone(&cache);
    // What an update costs while so many of the clients try something else, for all rounds.
    let trying = arguments.number("rollout", 0)?;
    let tried: OnceLock<Candidate> = OnceLock::new();
    let on_path = move |path: &str| {
        let Some(round) = query(path, "round").filter(|_| path.starts_with("/update")) else { return Ok(()) };
        if trying > 0 && tried.get().is_none() {
            let mut transaction = Transaction::new();
            transaction.put(load_assignment(0, u32::MAX, 0, shape)?);
            _ = tried.set(updated.begin(transaction, &Audience::Clients(trying))?);
        }
        let count = query(path, "count").unwrap_or(1);
        // The variants of each name that change; the others stay the same.
        let changed_variants = query(path, "variants").unwrap_or(shape.variants);
        let mut transaction = Transaction::new();
        for step in 0..count {
            let index = (round * 7919 + step * (assignments / count)) % assignments;
            for variant in 0..changed_variants {
                transaction.put(load_assignment(index, u32::try_from(round)?, variant, shape)?);
            }
        }
        updated.commit(transaction)?;
        Ok(())
    };
    tokio::spawn(control::serve(control, Arc::new(on_path)));

    let mut types = BTreeMap::new();
    // The other way to serve SotW: every response has all resources.
    if arguments.number("sotw-full", 0)? == 1 {
        let full = TypeConfig { full_state: true, ..TypeConfig::of(CLUSTER_LOAD_ASSIGNMENT) };
        types.insert(CLUSTER_LOAD_ASSIGNMENT.into(), full);
    }
    let stream = StreamConfig { types, ..StreamConfig::default() };
    let server = Server::new(cache).with_config(ServerConfig { stream, ..ServerConfig::default() });
    Ok(server.serve(listener, std::future::pending()).await?)
}
