//! At rest each client has the resources of its subscriptions as its replica has them, and knows
//! which do not exist.
//!
//! S26: where no response can report a removal, a SotW client keeps the resource.

use std::collections::BTreeMap;

use xds_core::server::Protocol;
use xds_core::{Constraints, Parameters, Snapshot};

use super::Violation;
use crate::client::Client;
use crate::content::{Content, names, selected};
use crate::known::{Held, Key, Known};
use crate::world::World;

pub(crate) fn check(world: &World) -> Result<(), Violation> {
    for (at, client) in world.clients.iter().enumerate() {
        check_client(world, client, |_| false, |_, _| false)
            .map_err(|what| Violation::new("converge", format!("c{at}: {what}")))?;
    }
    Ok(())
}

/// What exists for a client.
pub(crate) struct Target<'a> {
    pub(crate) name: &'a str,
    pub(crate) content: Content,
}

/// Checks what a client has, but for types that are skipped, and for what the client need not use.
pub(crate) fn check_client(
    world: &World,
    client: &Client,
    is_skipped: impl Fn(&Known) -> bool,
    is_excused: impl Fn(&Known, &Target<'_>) -> bool,
) -> Result<(), String> {
    for (kind, known) in client.types.iter().filter(|(_, known)| !is_skipped(known)) {
        let Some(connection) = client.connections.get(&client.slot(*kind)) else {
            return Err("it has no stream".into());
        };
        let snapshot = world.truth_of(connection.replica);
        let hears = world.learns_of_removals(connection.replica, *kind);
        let is_unheard = |name: &str, params: &Parameters| {
            !hears && world.is_unheard(connection.replica, *kind, name, params)
        };
        compare(client, known, &snapshot, hears, is_unheard, |target| is_excused(known, target))?;
        knows_absences(client, known, &snapshot, hears)?;
    }
    Ok(())
}

fn compare(
    client: &Client,
    known: &Known,
    snapshot: &Snapshot,
    hears: bool,
    is_unheard: impl Fn(&str, &Parameters) -> bool,
    is_excused: impl Fn(&Target<'_>) -> bool,
) -> Result<(), String> {
    let mut expected = expected(known, snapshot, &is_unheard)?;
    let is_excused = |name: &str, content: &Content| is_excused(&Target { name, content: content.clone() });
    // What the client has instead of something that it need not use.
    let is_instead = |key: &Key, held: &Held| {
        let locators = known.locators(&key.0);
        let mut users = locators.iter().filter(|params| known.is_for(key, held, params));
        users.any(|params| {
            let variant = selected(snapshot, known.kind, &key.0, params);
            let content = variant.and_then(|variant| Content::of(known.kind, variant.payload()).ok());
            content.is_some_and(|content| is_excused(&key.0, &content))
        })
    };
    let instead: Vec<_> = known.held.iter().filter(|(key, held)| is_instead(key, held)).collect();
    expected.retain(|(name, _), content| !is_excused(name, content));
    let counts = |key: &Key, held: &Held| {
        let locators = known.locators(&key.0);
        let mut users = locators.iter().filter(|params| known.is_for(key, held, params));
        let is_there = |params: &Parameters| selected(snapshot, known.kind, &key.0, params).is_some();
        !users.clone().any(|params| is_unheard(&key.0, params))
            && ((hears && known.learns_of_removals()) || users.all(is_there))
    };
    // C5: on a SotW stream that starts without a version, no response reports that a name does not
    // exist (S17, S32). The timer of a client would remove the copy; this one has no timer (seed 108534).
    //
    // S32: a client that applied a part of a response that it rejected brings the version of before.
    // If that is the version of a state without resources, and there are none again, nothing is sent
    // (seed 9955).
    let is_version_of_before = expected.is_empty()
        && known.nonce.is_empty()
        && known.version.bytes().all(|digit| digit == b'0')
        && client.rejected.contains(&known.kind);
    let is_silent = known.takes_full_state()
        && (known.version.is_empty() || is_version_of_before)
        && known.asked.iter().all(|(name, _)| name.is_some());
    let is_kept = |held: &Held| is_silent && !held.is_of_this_stream();
    let counts =
        |key: &Key, held: &Held| counts(key, held) && !client.is_used(known.kind, &key.0) && !is_kept(held);
    let held = known.held.iter().filter(|(key, _)| !instead.iter().any(|(other, _)| other == key));
    let held = held.filter(|(key, held)| expected.contains_key(*key) || counts(key, held));
    let held: BTreeMap<_, _> = held.map(|(key, held)| (key.clone(), held.content.clone())).collect();
    if held == expected {
        return Ok(());
    }
    let wanted =
        expected.iter().map(|((name, constraints), content)| format!(" {name}[{constraints}]={content}"));
    Err(format!("{} has {known}, and should have {{{} }}", known.kind, wanted.collect::<String>()))
}

/// The resources that a client should have.
fn expected(
    known: &Known,
    snapshot: &Snapshot,
    is_unheard: impl Fn(&str, &Parameters) -> bool,
) -> Result<BTreeMap<Key, Content>, String> {
    let mut expected = BTreeMap::new();
    for name in names(snapshot, known.kind) {
        for params in known.locators(name) {
            let Some(variant) = selected(snapshot, known.kind, name, &params) else { continue };
            if is_unheard(name, &params) {
                continue;
            }
            let constraints =
                if known.knows_locators { variant.constraints().clone() } else { Constraints::NONE };
            expected.insert((name.to_owned(), constraints), Content::of(known.kind, variant.payload())?);
        }
    }
    Ok(expected)
}

/// D10: a delta client knows which of its subscribed names do not exist. S17: a SotW client does
/// not.
///
/// S33: a client that has a removed cluster keeps it as long as its routes name the cluster. If the
/// client subscribes to it by name and has a wildcard too, the removal waits all the same (seed
/// 3236).
fn knows_absences(client: &Client, known: &Known, snapshot: &Snapshot, hears: bool) -> Result<(), String> {
    if known.protocol == Protocol::Sotw {
        return Ok(());
    }
    for (name, params) in &known.asked {
        let (Some(name), params) = (name, params.as_ref().unwrap_or(&known.node)) else { continue };
        let is_there = selected(snapshot, known.kind, name, params).is_some();
        // D8: what it was sent and rejected, it may have.
        let may_have = known.serves(name, params).is_some() || client.rejects(known.kind, name);
        let is_kept = may_have && client.is_used(known.kind, name);
        if !is_there && !is_kept && hears && !known.absent.contains(&(name.clone(), params.clone())) {
            return Err(format!(
                "D10: it does not know that there is no {} {name} for {{{params}}}",
                known.kind
            ));
        }
    }
    Ok(())
}
