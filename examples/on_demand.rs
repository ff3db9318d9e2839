//! Loading on demand: a resource is loaded when the first client subscribes to it, and dropped when
//! the last client unsubscribes.
//!
//! For data that is too large for memory or that is elsewhere, such as a table of tenants, or
//! another control plane.
//!
//! ```text
//! cargo run --example on_demand
//! ```
//!
//! Three clients subscribe to two names, one of which does not exist. The program prints what it
//! loads, and what the clients get.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;

use prost::Message;
use tokio::net::TcpListener;
use xds::client::bootstrap::Bootstrap;
use xds::client::{Client, Event, Protocol, Watcher};
use xds::{
    Cache, Code, LocatorStatus, NodeParameters, Parameters, Resource, Server, ServerConfig, Transaction,
    TypeUrl, VariantId,
};

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

/// An example of a query that takes time and may fail.
async fn query(name: &str) -> Result<Option<Tenant>, String> {
    tokio::task::yield_now().await;
    Ok((name == "acme").then(|| Tenant { name: name.into(), plan: "gold".into() }))
}

/// Loads the resources that streams subscribe to. It ends when there are no subscriptions any more;
/// a real server would go on.
async fn load_subscribed(cache: Arc<Cache>) {
    let subscriptions = cache.on_demand_subscriptions().expect("the cache was made by Cache::on_demand");
    let mut loaded = BTreeSet::new();
    loop {
        subscriptions.changed().await;
        // Each locator comes once, for any number of clients, with its newest state: nothing queues
        // up while a query takes long.
        for subscription in subscriptions.take() {
            let name = subscription.locator.name.clone();
            let mut transaction = Transaction::new();
            let is_tenant = *subscription.type_url.as_str() == *TYPE_URL;
            let status = if subscription.streams == 0 {
                if is_tenant {
                    println!("dropping {}", name.as_str());
                    loaded.remove(&name);
                    transaction.remove(VariantId::unconstrained(TypeUrl::from(TYPE_URL), name));
                }
                // The name is unknown from now on. The next subscriber waits until it is loaded
                // again. A status that is kept costs memory for ever.
                None
            } else if !is_tenant {
                // This source does not have the type. Its subscribers get the error, and keep their
                // resources.
                Some(LocatorStatus::Failed { code: Code::UNIMPLEMENTED, message: "tenants only".into() })
            } else {
                println!("loading {}", name.as_str());
                loaded.insert(name.clone());
                match query(name.as_str()).await {
                    Ok(None) => Some(LocatorStatus::Complete),
                    Ok(Some(tenant)) => {
                        let payload = tenant.encode_to_vec();
                        transaction
                            .put(Resource::new(TYPE_URL, name, payload).expect("subscribed names are valid"));
                        Some(LocatorStatus::Complete)
                    }
                    // A failure does not say whether the resource exists.
                    Err(why) => Some(LocatorStatus::Failed { code: Code::UNAVAILABLE, message: why.into() }),
                }
            };
            transaction.set_status(subscription.type_url, subscription.locator, status);
            cache.commit(transaction).expect("one variant without constraints has no conflict");
        }
        if loaded.is_empty() {
            return;
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let cache = Cache::on_demand();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = format!("http://{}", listener.local_addr()?);
    // A tenant has no variants, so clients have no parameters. With other parameters one name would
    // be another subscription, and the end of one would remove the tenant of the other.
    let parameters = NodeParameters::by(|_, _| Parameters::new());
    let config = ServerConfig { parameters, ..ServerConfig::default() };
    let server_of_tenants = Server::new(Arc::clone(&cache)).with_config(config);
    tokio::spawn(server_of_tenants.serve(listener, std::future::pending()));
    let loading = tokio::spawn(load_subscribed(Arc::clone(&cache)));

    let mut clients = Vec::new();
    for name in ["acme", "acme", "nobody"] {
        // With delta a client knows at once that a resource does not exist; with SotW it would wait
        // for 15 s.
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
            Event::Absent(why) => return Ok(format!("no tenant: {why}")),
            Event::Ambient(_) => {}
        }
    }
}
