//! Two clients with the same subscriptions end up with the same resources, whatever their protocols
//! and replicas.

use super::Violation;
use crate::client::Client;
use crate::content::Kind;
use crate::known::Known;
use crate::world::World;

pub(crate) fn check(world: &World) -> Result<(), Violation> {
    for (at, client) in world.clients.iter().enumerate() {
        for other in &world.clients[at + 1..] {
            for (kind, known) in &client.types {
                let learn =
                    [client, other].into_iter().all(|client| learns_of_removals(world, client, *kind));
                let theirs = other.types.get(kind).filter(|theirs| learn && is_alike(known, theirs));
                if let Some(theirs) = theirs {
                    let is_removed = |name: &str| {
                        let (type_url, name) = (kind.url().into(), name.into());
                        world.replicas[0].cache.snapshot().get(&type_url, &name).is_none()
                    };
                    compare([client, other], (known, theirs), is_removed)?;
                }
            }
        }
    }
    Ok(())
}

/// S26: whether all proxies in front of the client learn of removals. If not, the client may have
/// resources that others no longer have.
fn learns_of_removals(world: &World, client: &Client, kind: Kind) -> bool {
    let connection = client.connections.get(&client.slot(kind));
    connection.is_none_or(|connection| world.learns_of_removals(connection.replica, kind))
}

fn is_alike(known: &Known, other: &Known) -> bool {
    let (mine, theirs) = ((&known.node, &known.asked), (&other.node, &other.asked));
    mine == theirs && known.knows_locators == other.knows_locators
}

fn compare(
    clients: [&Client; 2],
    (known, other): (&Known, &Known),
    is_removed: impl Fn(&str) -> bool,
) -> Result<(), Violation> {
    let has = |known: &Known, other: &Known| {
        let mut held = known.held.iter();
        let is_used = |name: &str| clients.iter().any(|one| one.is_used(known.kind, name));
        // S26, S33: one of the two clients, or each of them, may have a removed resource, each with the
        // content that was sent to it last.
        held.all(|(key, held)| match other.held.get(key) {
            Some(theirs) => {
                theirs.content == held.content
                    || !(known.learns_of_removals() || other.learns_of_removals())
                    || is_used(&key.0) && is_removed(&key.0)
            }
            None => !known.learns_of_removals() || is_used(&key.0),
        })
    };
    if has(known, other) && has(other, known) {
        return Ok(());
    }
    Err(Violation::new("agree", format!("of {}, one has {known}, the other {other}", known.kind)))
}
