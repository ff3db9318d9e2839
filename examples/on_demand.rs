//! Loading by interest: a resource is fetched when the first client asks for it, and dropped when
//! the last one goes.
//!
//! For what is too much to hold, or is somewhere else: a table of tenants, a foreign control plane.
//!
//! ```text
//! cargo run --example on_demand
//! ```
//!
//! Three clients ask for two names, one of which does not exist. The program prints what it loads,
//! and what they get.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;

use prost::Message;
use tokio::net::TcpListener;
use xds::client::bootstrap::Bootstrap;
use xds::client::{Client, Event, Protocol, Watcher};
use xds::{Cache, Code, LocatorStatus, Resource, Server, Transaction, TypeUrl, VariantId};

/// `message Tenant { string name = 1; string plan = 2; }`
#[derive(Clone, PartialEq, Message)]
struct Tenant {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    plan: String,
}

impl prost::Name for Tenant {
    const PACKAGE: &'static str = "acme.v1";
    const NAME: &'static str = "Tenant";
}

const TYPE_URL: &str = "type.googleapis.com/acme.v1.Tenant";

/// Stands for a query that takes its time and may fail.
async fn query(name: &str) -> Result<Option<Tenant>, String> {
    tokio::task::yield_now().await;
    Ok((name == "acme").then(|| Tenant { name: name.into(), plan: "gold".into() }))
}

/// Follows what streams ask for. Here until nobody asks for anything any more; a server would go
/// on.
async fn load_what_is_asked_for(cache: Arc<Cache>) {
    let subscriptions = cache.on_demand_subscriptions().expect("the cache is one on demand");
    let mut asked_for = BTreeSet::new();
    loop {
        subscriptions.changed().await;
        // Each locator once, however many clients ask, and as it stands now: nothing queues while a
        // query takes long.
        for subscription in subscriptions.take() {
            let name = subscription.locator.name.clone();
            let mut transaction = Transaction::new();
            let status = if *subscription.type_url.as_str() != *TYPE_URL {
                // A type that is not had here. Who asks is told so, and keeps what it has.
                Some(LocatorStatus::Failed { code: Code::UNIMPLEMENTED, message: "tenants only".into() })
            } else if subscription.streams == 0 {
                println!("nobody asks for {} any more", name.as_str());
                asked_for.remove(&name);
                transaction.remove(VariantId::unconstrained(TypeUrl::from(TYPE_URL), name));
                // From now on nobody knows; the next one who asks waits until it is loaded again.
                None
            } else {
                println!("loading {}", name.as_str());
                asked_for.insert(name.clone());
                match query(name.as_str()).await {
                    Ok(None) => Some(LocatorStatus::Complete),
                    Ok(Some(tenant)) => {
                        let payload = tenant.encode_to_vec().into();
                        transaction
                            .put(Resource::new(TYPE_URL.into(), name, payload).expect("it has a name"));
                        Some(LocatorStatus::Complete)
                    }
                    // Nothing is said of whether it exists.
                    Err(why) => Some(LocatorStatus::Failed { code: Code::UNAVAILABLE, message: why.into() }),
                }
            };
            transaction.set_status(subscription.type_url, subscription.locator, status);
            cache.commit(transaction).expect("one variant without constraints contradicts nothing");
        }
        if asked_for.is_empty() {
            return;
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let cache = Cache::on_demand();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = format!("http://{}", listener.local_addr()?);
    tokio::spawn(Server::new(Arc::clone(&cache)).serve(listener, std::future::pending()));
    let loading = tokio::spawn(load_what_is_asked_for(Arc::clone(&cache)));

    let mut clients = Vec::new();
    for name in ["acme", "acme", "nobody"] {
        // In delta a client is told at once of what does not exist; in SotW it would wait for 15 s.
        let client = Client::builder(Bootstrap::to_server(&server)).protocol(Protocol::Delta).start()?;
        let mut tenant = client.watch(name)?;
        println!("{}", next(&mut tenant).await?);
        clients.push((client, tenant));
    }
    // Dropping the last watcher of a name ends the subscription to it.
    drop(clients);
    loading.await?;
    Ok(())
}

async fn next(watcher: &mut Watcher<Tenant>) -> Result<String, Box<dyn Error>> {
    loop {
        match watcher.next().await.ok_or("the client ended")? {
            Event::Changed(tenant) => {
                return Ok(format!("{} has the plan {}", tenant.name, tenant.plan));
            }
            Event::Absent(why) => return Ok(format!("there is none: {why}")),
            Event::Ambient(_) => {}
        }
    }
}
