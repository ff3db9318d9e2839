//! When all is quiet, each client uses the newest content of each name, also if the client rejected
//! responses before (S6c, S6e). A client keeps the older copy of what is bad for it, and of a listener
//! whose address another listener of the client has.

use super::Violation;
use super::converge::{self, Target};
use crate::client::Client;
use crate::content::Kind;
use crate::known::{Known, Rejects};
use crate::world::World;

pub(crate) fn check(world: &World) -> Result<(), Violation> {
    for (at, client) in world.clients.iter().enumerate() {
        let is_excused = |known: &Known, target: &Target<'_>| is_refused(client, known, target);
        let is_skipped = |known: &Known| has_refused_all(client, known);
        let checked = converge::check_client(world, client, is_skipped, is_excused);
        checked.map_err(|what| Violation::new("healed", format!("c{at}: {what}")))?;
    }
    Ok(())
}

/// S6c: a full state is not split, and some clients use nothing of one with a bad content.
fn has_refused_all(client: &Client, known: &Known) -> bool {
    client.profile.rejects == Rejects::Whole && known.takes_full_state() && client.has_unused(known.kind)
}

/// Whether the client cannot use what exists for a name.
fn is_refused(client: &Client, known: &Known, target: &Target<'_>) -> bool {
    let has_address = |address: i32| {
        let mut others = known.held.iter().filter(|((name, _), _)| name != target.name);
        address != 0 && others.any(|(_, held)| held.content.address == address)
    };
    match client.profile.rejects {
        Rejects::Nothing => false,
        Rejects::Bad | Rejects::Whole => target.content.is_bad,
        Rejects::Envoy => {
            // S6e: a full state is repeated once; three listeners that pass their addresses on from one to the
            // next may need more.
            let with_address = known.held.values().filter(|held| held.content.address != 0).count();
            let is_chain = known.takes_full_state() && client.has_unused(known.kind) && with_address >= 2;
            let is_conflict =
                has_address(target.content.address) || (is_chain && target.content.address != 0);
            target.content.is_bad || (known.kind == Kind::Listener && is_conflict)
        }
    }
}
