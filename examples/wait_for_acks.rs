//! A rollout that waits for the ACKs of its clients, and goes back if one of them rejects it.
//!
//! ```text
//! cargo run --example wait_for_acks
//! ```
//!
//! Two clients have the same resource. One of them is older and cannot read the new content. The
//! program commits the new content and waits for the ACKs. Because one client rejects it, the
//! program commits the old content again.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::net::TcpListener;
use xds::client::bootstrap::Bootstrap;
use xds::client::{Client, Event, ResourceType, Watcher};
use xds::{Cache, Outcome, Resource, Server, Transaction};

/// `message Quota { string name = 1; uint32 requests = 2; }`
#[derive(Clone, PartialEq, Message)]
struct Quota {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint32, tag = "2")]
    requests: u32,
}

/// A later, incompatible version of the message: `message Quota { string name = 1; string requests
/// = 2; }`
#[derive(Clone, PartialEq, Message)]
struct NewQuota {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    requests: String,
}

impl prost::Name for Quota {
    const PACKAGE: &'static str = "acme.v1";
    const NAME: &'static str = "Quota";
}

/// A client that does not decode the resource, so it accepts any content.
#[derive(Clone, PartialEq, Message)]
struct Anything {}

impl prost::Name for Anything {
    const PACKAGE: &'static str = "acme.v1";
    const NAME: &'static str = "Quota";
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let cache = Cache::new();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = format!("http://{}", listener.local_addr()?);
    tokio::spawn(Server::new(Arc::clone(&cache)).serve(listener, std::future::pending()));

    let good = Quota { name: "shop".into(), requests: 100 };
    let bad = NewQuota { name: "shop".into(), requests: "100 per minute".into() };
    roll_out(&cache, "the first quota", good.encode_to_vec()).await?;
    let _old = watch::<Quota>(&server, "edge-old").await?;
    let _new = watch::<Anything>(&server, "edge-new").await?;

    if !roll_out(&cache, "a quota of another type", bad.encode_to_vec()).await? {
        roll_out(&cache, "the first quota again", good.encode_to_vec()).await?;
    }
    Ok(())
}

/// Commits the content, and returns whether all affected clients ACKed it within 10 seconds.
async fn roll_out(cache: &Cache, what: &str, content: Vec<u8>) -> Result<bool, Box<dyn Error>> {
    let mut transaction = Transaction::new();
    transaction.put(Resource::new("type.googleapis.com/acme.v1.Quota", "shop", content)?);
    let commit = cache.commit(transaction)?;

    // The second argument selects clients, for example only canaries.
    let results = xds::applied(&commit, |_client| true, Duration::from_secs(10)).await;
    println!("{what}: affects {} clients", results.len());
    for result in &results {
        match &result.outcome {
            Outcome::Acked => println!("  {} has it", result.client.id),
            Outcome::Nacked { detail, .. } => println!("  {} rejected it: {detail}", result.client.id),
            Outcome::Disconnected => println!("  {} left", result.client.id),
            Outcome::Splitting | Outcome::Pending | Outcome::Late => {
                println!("  {} did not answer", result.client.id);
            }
        }
    }
    Ok(results.iter().all(|result| result.outcome == Outcome::Acked))
}

/// A client that subscribes to the resource.
async fn watch<T: ResourceType>(server: &str, id: &str) -> Result<(Client, Watcher<T>), Box<dyn Error>> {
    let mut bootstrap = Bootstrap::to_server(server);
    bootstrap.node.id = id.into();
    let client = Client::start(bootstrap)?;
    let mut watcher = client.watch("shop")?;
    while !matches!(watcher.next().await.ok_or("the client ended")?, Event::Changed(_)) {}
    Ok((client, watcher))
}
