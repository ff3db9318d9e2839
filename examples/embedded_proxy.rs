//! A program that embeds a caching proxy and reads typed resources from its cache, without a network
//! stream of its own.
//!
//! An agent on a host is such a program: it serves xDS to the workloads beside it, and needs some
//! of the resources itself. It subscribes and reads in the process, and goes on reading while the
//! control plane is away.
//!
//! ```text
//! cargo run --example embedded_proxy
//! ```
//!
//! The program starts a control plane, and the proxy in front of it. It prints what it reads of
//! `checkout`, which has a variant for `env=prod` and one for all others: before the first response,
//! after it, after a change, and after the control plane stopped.

use std::error::Error;
use std::sync::Arc;

use prost::{Message, Name};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use xds::client::bootstrap::Bootstrap;
use xds::client::proxy::Proxy;
use xds::client::proxy::view::{ViewChange, ViewEvent, ViewRequest, ViewWatch};
use xds::client::{ReadGuard, ReadRoute};
use xds::{Cache, Parameters, Resource, Server, Transaction, TypeUrl};

/// `message Switches { string name = 1; repeated string on = 2; }`
#[derive(Clone, PartialEq, Message)]
struct Switches {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, repeated, tag = "2")]
    on: Vec<String>,
}

impl Name for Switches {
    const NAME: &'static str = "Switches";
    const PACKAGE: &'static str = "acme.v1";
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let control_plane = Cache::new();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let bootstrap = Bootstrap::to_server(format!("http://{}", listener.local_addr()?));
    let (stop, stopped) = oneshot::channel::<()>();
    let server = Server::new(Arc::clone(&control_plane)).serve(listener, async { _ = stopped.await });
    let server = tokio::spawn(server);
    commit(&control_plane, &[("env=prod", "fast-path"), ("env!=prod", "new-cart")])?;

    // To serve clients too, give `proxy.cache()` to a `Server`.
    let proxy = Proxy::builder(bootstrap).start()?;
    // The first read makes the view: a program that never reads here pays nothing for it.
    println!("before the first response, prod reads {}", shown(&proxy.read(), "prod"));

    let prod = proxy.subscribe::<Switches>(["checkout"], parameters("prod"))?;
    let test = proxy.subscribe::<Switches>(["checkout"], parameters("test"))?;
    let types = vec![TypeUrl::of::<Switches>()];
    let mut watch = proxy.view().watch(ViewRequest { types, ..ViewRequest::default() })?;
    next_changes(&mut watch, 2).await?;
    prod.ready().await;
    test.ready().await;
    println!("prod reads {}", shown(&prod.read(), "prod"));
    println!("test reads {}", shown(&test.read(), "test"));

    commit(&control_plane, &[("env=prod", "fast-path and new-cart")])?;
    next_changes(&mut watch, 1).await?;
    println!("prod reads {}", shown(&prod.read(), "prod"));

    _ = stop.send(());
    server.await??;
    println!("after the control plane stopped, prod reads {}", shown(&prod.read(), "prod"));
    Ok(())
}

/// The switches of `checkout` in an environment. All reads of one guard are of one moment. Keep it for a
/// short time: its snapshot stays in memory.
fn shown(guard: &ReadGuard<Switches>, env: &str) -> String {
    match guard.route() {
        ReadRoute::Cache(switches) => match switches.get_with("checkout", &parameters(env)) {
            Ok(Some(checkout)) => checkout.on.join(", "),
            Ok(None) => "no variant".to_owned(),
            Err(error) => error.to_string(),
        },
        // The upstream rejects the type, or has not answered yet.
        ReadRoute::Upstream(status) => format!("a status: {status}"),
    }
}

/// Prints the events of the watch until this many variants have changed.
async fn next_changes(watch: &mut ViewWatch, count: usize) -> Result<(), Box<dyn Error>> {
    let mut seen = 0;
    while seen < count {
        match watch.next().await.ok_or("the proxy ended")?? {
            ViewEvent::Init(init) => println!("generation {} begins", init.generation),
            ViewEvent::Reclassified { type_url, state } => println!("{type_url} is {state:?}"),
            ViewEvent::Changes(changes) => {
                seen += changes.len();
                for change in changes {
                    match change {
                        ViewChange::Put { variant, .. } => {
                            println!("{} [{}] changed", variant.name(), variant.constraints());
                        }
                        ViewChange::Removed(id) => println!("{} [{}] was removed", id.name, id.constraints),
                    }
                }
            }
        }
    }
    Ok(())
}

fn parameters(env: &str) -> Parameters {
    Parameters::from_iter([("env", env)])
}

/// Puts variants of `checkout` into the cache of the control plane, all at once.
fn commit(cache: &Cache, variants: &[(&str, &str)]) -> Result<(), Box<dyn Error>> {
    let mut transaction = Transaction::new();
    for (when, on) in variants {
        let switches = Switches { name: "checkout".into(), on: vec![(*on).to_owned()] };
        let resource = Resource::new(TypeUrl::of::<Switches>(), "checkout", switches.encode_to_vec())?;
        transaction.put(resource.with_constraints(when.parse()?));
    }
    cache.commit(transaction)?;
    Ok(())
}
