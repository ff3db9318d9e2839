//! A type of your own: feature switches of services, served beside the types of Envoy.
//!
//! For the server a resource has a type URL, a name and bytes; it does not need the message type. A
//! client can watch any prost message that implements `prost::Name`. This program contains a server
//! and clients, connected by sockets:
//!
//! ```text
//! cargo run --example custom_type
//! ```
//!
//! It prints the switches of `checkout` that a client with `env=prod` and one with `env=test` get.
//! `checkout` has a variant for each.

use std::error::Error;
use std::sync::Arc;

use prost::Message;
use tokio::net::TcpListener;
use xds::client::bootstrap::Bootstrap;
use xds::client::{Client, Event};
use xds::{Cache, Resource, Server, Transaction};

/// The type that `prost-build` makes from `package acme.v1; message Switches { string name = 1;
/// repeated string on = 2; }`.
///
/// The name is in field 1, as in the messages of Envoy, because a SotW response has no other place
/// for it.
#[derive(Clone, PartialEq, Message)]
struct Switches {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, repeated, tag = "2")]
    on: Vec<String>,
}

impl prost::Name for Switches {
    const PACKAGE: &'static str = "acme.v1";
    const NAME: &'static str = "Switches";
}

const TYPE_URL: &str = "type.googleapis.com/acme.v1.Switches";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let cache = Cache::new();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let server = format!("http://{}", listener.local_addr()?);
    tokio::spawn(Server::new(Arc::clone(&cache)).serve(listener, std::future::pending()));

    commit(&cache, &[("env=prod", &["fast-path"]), ("env!=prod", &["fast-path", "new-cart"])])?;
    // A client gets its parameters from its node, as an Envoy does: `env` is in the metadata of the
    // node.
    let (_prod, mut in_prod) = client(&server, "prod")?;
    let (_test, mut in_test) = client(&server, "test")?;
    println!("prod: {}", next(&mut in_prod).await?);
    println!("test: {}", next(&mut in_test).await?);

    println!("new-cart is switched on in prod");
    commit(&cache, &[("env=prod", &["fast-path", "new-cart"]), ("env!=prod", &["fast-path", "new-cart"])])?;
    // Nothing changed for the other client, so the server sends it nothing.
    println!("prod: {}", next(&mut in_prod).await?);
    Ok(())
}

/// Replaces the variants of `checkout`, all at once.
fn commit(cache: &Cache, variants: &[(&str, &[&str])]) -> Result<(), Box<dyn Error>> {
    let mut transaction = Transaction::new();
    for (when, on) in variants {
        let switches = Switches { name: "checkout".into(), on: on.iter().map(ToString::to_string).collect() };
        let resource = Resource::new(TYPE_URL, "checkout", switches.encode_to_vec())?;
        transaction.put(resource.with_constraints(when.parse()?));
    }
    cache.commit(transaction)?;
    Ok(())
}

type Watcher = xds::client::Watcher<Switches>;

fn client(server: &str, env: &str) -> Result<(Client, Watcher), Box<dyn Error>> {
    let node = serde_json::json!({ "id": format!("checkout-{env}"), "metadata": { "env": env } });
    let bootstrap = serde_json::json!({
        "xds_servers": [{ "server_uri": server, "channel_creds": [{ "type": "insecure" }] }],
        "node": node,
    });
    let client = Client::start(Bootstrap::from_json(&bootstrap.to_string())?)?;
    let watcher = client.watch("checkout")?;
    Ok((client, watcher))
}

async fn next(watcher: &mut Watcher) -> Result<String, Box<dyn Error>> {
    loop {
        match watcher.next().await.ok_or("the client ended")? {
            Event::Changed(switches) => return Ok(switches.on.join(", ")),
            Event::Absent(why) => return Err(why.to_string().into()),
            Event::Ambient(_) => {}
        }
    }
}
