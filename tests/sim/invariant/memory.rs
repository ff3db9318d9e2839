//! When all clients are disconnected, nothing is stored for them: no stream keeps a cache alive,
//! and no variant outlives its removal.
//!
//! The public API shows neither classes nor cursors, but the variants that they would keep alive
//! show them.

use std::sync::{Arc, Weak};

use xds_core::{Snapshot, Variant};

use super::Violation;
use crate::content::{Change, Kind};
use crate::rollouts::Rollouts;
use crate::world::World;

/// Ends all streams, and checks what remains.
pub(crate) fn check(world: &mut World) -> Result<(), Violation> {
    world.clients.iter_mut().for_each(|client| client.connections.clear());
    if !world.groups.values().all(|group| group.is_empty()) {
        return violation("a client without streams has some in its group");
    }
    let histories = world.replicas.iter_mut().map(|replica| std::mem::take(&mut replica.history));
    let variants: Vec<_> = histories.flatten().flat_map(|snapshot| all_variants(&snapshot)).collect();
    // A proxy and its cache refer to each other; without the proxy nothing refers to the cache.
    world.relays.clear();
    world.replicas.iter_mut().filter_map(|replica| replica.rollouts.take()).for_each(Rollouts::finish);
    // The removals of a commit stay stored until the next commit of their type.
    for number in 0..2 {
        world.source.commit(&Kind::ALL.map(|kind| touch(kind, number)));
        (0..world.replicas.len()).for_each(|replica| world.catch_up(replica));
    }
    for replica in &mut world.replicas {
        replica.history.clear();
        if Arc::strong_count(&replica.cache) != 1 {
            return violation("something keeps the cache");
        }
        if replica.lost.iter().any(|lost| lost.strong_count() > 0) {
            return violation("something keeps the cache of a crashed replica");
        }
    }
    let kept: Vec<_> =
        world.replicas.iter().flat_map(|replica| all_variants(&replica.cache.snapshot())).collect();
    let is_kept =
        |variant: &Arc<Variant>| kept.iter().any(|kept| Weak::ptr_eq(kept, &Arc::downgrade(variant)));
    world.replicas.truncate(world.origins);
    match variants.iter().filter_map(Weak::upgrade).find(|variant| !is_kept(variant)) {
        None => Ok(()),
        Some(variant) => violation(&format!("something keeps {}[{}]", variant.name(), variant.constraints())),
    }
}

fn all_variants(snapshot: &Snapshot) -> Vec<Weak<Variant>> {
    let of_kind = |kind: Kind| snapshot.of_type(&kind.url().into()).into_iter();
    let of_names = Kind::ALL.into_iter().flat_map(of_kind).flat_map(|resources| resources.iter());
    of_names.flat_map(|(_, variants)| variants.iter()).map(Arc::downgrade).collect()
}

fn touch(kind: Kind, number: i32) -> Change {
    Change {
        kind,
        name: 0,
        scheme: 1,
        number: 9_000 + number,
        is_bad: false,
        address: 0,
        is_varied: false,
        clusters: 0,
    }
}

fn violation(what: &str) -> Result<(), Violation> {
    Err(Violation::new("memory", what))
}
