//! After the last step: faults stop, all messages arrive, time passes, and then everything must be
//! correct.

use std::time::Duration;

use xds_core::RolloutOrder;

use crate::agent::{Access, Agent};
use crate::client::Client;
use crate::content::{Change, Kind, NAMES, SCHEMES, selected};
use crate::invariant::{
    Violation, agree, converge, goes_on, healed, left, memory, replicas, settled, trials, upstream,
};
use crate::random::Random;
use crate::relay::Relay;
use crate::rollouts::Rollouts;
use crate::script::{Action, Home};
use crate::world::World;

pub(crate) fn heal(world: &mut World, salt: u64) -> Result<(), Violation> {
    world.trace.note(world.now, || "faults stop".to_owned());
    // G13: a replica without any commit does not know what exists.
    world.source.commit(&[]);
    (0..world.replicas.len()).for_each(|replica| world.catch_up(replica));
    connect_all(world);
    replace_liars(world)?;
    accept_types(world)?;
    settle(world)?;
    wait_for_resends(world)?;
    // A client that rejected a response has other content, and the server keeps the resources that
    // this content uses (S33). Content that one client of a proxy tried and rejected is not sent to
    // the others.
    let has_refused = world.relays.iter().any(|relay| !relay.ever_refused.is_empty());
    if !has_refused && world.clients.iter().all(|client| client.rejected.is_empty()) {
        converge::check(world)?;
        // What one server refused another one may have.
        let mut rollouts = world.replicas.iter().filter_map(|replica| replica.rollouts.as_ref());
        if rollouts.all(|rollouts| !rollouts.has_refused) {
            agree::check(world)?;
        }
    }
    if !has_refused {
        healed::check(world)?;
    }
    let mut random = Random::new(salt);
    let has_routes = world.relays.is_empty();
    let names = world.source.name_count();
    for mut commit in [mend(names), vary(&mut random, names)] {
        if !has_routes {
            commit.iter_mut().for_each(|change| change.clusters = 0);
        }
        commit_all(world, &commit);
        settle(world)?;
        promote_refused(world)?;
        compare(world)?;
        settled::check(world)?;
    }
    rest(world)?;
    upstream::check_at_rest(world)?;
    trials::check_at_rest(world)?;
    move_all(world)?;
    settled::check(world)?;
    rest(world)?;
    upstream::check_at_rest(world)?;
    left::check(world)?;
    memory::check(world)
}

/// Our clients can reach all their servers, and no server lies any more.
fn replace_liars(world: &mut World) -> Result<(), Violation> {
    world.cut_streams_of(Home::Liar)?;
    world.serve_truth();
    for agent in &mut world.agents {
        agent.access.fill(Access::Open);
    }
    for relay in &mut world.relays {
        relay.disk.iter_mut().for_each(|disk| disk.fill(None));
        relay.access = Access::Open;
        relay.cut_liar(world.now);
        if relay.is_deceived {
            relay.cut(world.now);
        }
    }
    world.drive_all()
}

/// G4b: while servers refuse types, the others go on. Then the servers refuse no type any more.
fn accept_types(world: &mut World) -> Result<(), Violation> {
    let refused = world.replicas.iter().map(|replica| replica.refusals.len()).max();
    // G4b: if several types end streams in a row without any response, C7 applies, and a stream may come after two
    // minutes.
    if refused == Some(1) && !has_trials(world) {
        world.ends.clear();
        pass_rounds(world)?;
        let mut commit = mend(world.source.name_count());
        commit.iter_mut().filter(|_| !world.relays.is_empty()).for_each(|change| change.clusters = 0);
        commit_all(world, &commit);
        pass_rounds(world)?;
        // C7: names without a resource are silent in SotW, so a search may have blamed them one after the other.
        for _ in 0..BACKOFFS {
            if goes_on::check(world).is_ok() {
                break;
            }
            pass_rounds(world)?;
        }
        goes_on::check(world)?;
    }
    for replica in 0..world.origins {
        for kind in Kind::ALL {
            world.refuse(replica, kind, None)?;
        }
    }
    wait_for_probes(world)?;
    if goes_on::isolated(world).is_some() {
        // G4b: a type that has responses on its own stream returns to the main stream when that stream has ended.
        for relay in &mut world.relays {
            relay.cut(world.now);
        }
        wait_for_probes(world)?;
    }
    goes_on::is_served(world)
}

/// Passes the time in which each refused type is tried again.
fn wait_for_probes(world: &mut World) -> Result<(), Violation> {
    for _ in 0..PROBE_ROUNDS {
        if goes_on::isolated(world).is_none() {
            break;
        }
        world.exchange_all()?;
        world.pass(SETTLING)?;
    }
    Ok(())
}

fn compare(world: &World) -> Result<(), Violation> {
    agree::check(world)?;
    converge::check(world)
}

fn connect_all(world: &mut World) {
    for at in 0..world.clients.len() {
        if std::mem::take(&mut world.clients[at].is_silent) {
            world.clients[at].disconnect_all();
        }
        for kind in Kind::ALL {
            let client = &mut world.clients[at];
            if client.types.contains_key(&kind) && client.connection(kind).is_none() {
                world.connect(at, kind, at);
            }
        }
    }
}

/// Clients exchange messages while time passes, enough for everything that does not wait for a refused type.
fn pass_rounds(world: &mut World) -> Result<(), Violation> {
    for _ in 0..REFUSED_ROUNDS {
        give_up_missing_routes(world);
        world.exchange_all()?;
        world.pass(REFUSED_STEP)?;
    }
    world.exchange_all().map(drop)
}

/// Whether responses wait for a few clients that try them.
fn has_trials(world: &World) -> bool {
    world.relays.iter().any(|relay| relay.profile.canaries > 0)
        || world.replicas.iter().any(|replica| replica.rollouts.is_some())
}

/// Lets messages arrive and time pass until no message is left.
fn settle(world: &mut World) -> Result<(), Violation> {
    // One wait may begin when another ends, so the world is at rest after two quiet rounds.
    let mut quiet = 0;
    for _ in 0..ROUNDS {
        give_up_missing_routes(world);
        let before = world.exchange_all()?;
        // Each pass is longer than all grace times. With trials, clients answer in between, because
        // responses wait for each other.
        let steps = if has_trials(world) { 8 } else { 1 };
        for _ in 1..steps {
            world.pass(SETTLING / steps)?;
            world.exchange_all()?;
        }
        world.pass(SETTLING / steps)?;
        let after = world.exchange_all()?;
        let is_rolling =
            world.replicas.iter().filter_map(|of| of.rollouts.as_ref()).any(Rollouts::is_running);
        // After a long outage, a client waits for some minutes before it connects again.
        let is_waiting =
            world.agents.iter().any(Agent::will_connect) || world.relays.iter().any(Relay::will_connect);
        quiet = if before || after || is_rolling || is_waiting { 0 } else { quiet + 1 };
        // A proxy ends an upstream subscription 30 s after the last user left; the next proxy
        // follows after that.
        if quiet == 2 * (1 + world.relays.len()) {
            return Ok(());
        }
    }
    Err(Violation::new("quiet", "the servers continue to send although nothing changes"))
}

/// S6e: a rejected listener may wait for 10 minutes before it is sent again.
fn wait_for_resends(world: &mut World) -> Result<(), Violation> {
    if world.clients.iter().all(|client| client.rejected.is_empty()) {
        return Ok(());
    }
    for _ in 0..ROUNDS {
        world.pass(LONGEST_BACKOFF)?;
        if !world.exchange_all()? {
            return Ok(());
        }
    }
    Err(Violation::new("quiet", "the servers continue to repeat what clients reject"))
}

/// At rest nothing is sent, whatever time passes.
fn rest(world: &mut World) -> Result<(), Violation> {
    world.pass(Duration::from_secs(3600))?;
    world.serve_all()?;
    if world.exchange_all()? {
        return Err(Violation::new("quiet", "something was sent at rest"));
    }
    Ok(())
}

/// As long as a client subscribes to removed routes, it uses the ones that it has, and their
/// clusters stay (S33).
fn give_up_missing_routes(world: &mut World) {
    for at in 0..world.clients.len() {
        let replica = world.clients[at].connection(Kind::Route).map(|connection| connection.replica);
        let Some(snapshot) = replica.map(|replica| world.truth_of(replica)) else { continue };
        let client = &mut world.clients[at];
        let Some(known) = client.types.get(&Kind::Route) else { continue };
        let mut asked = known.asked.clone();
        asked.retain(|(name, params)| {
            let params = params.as_ref().unwrap_or(&known.node);
            name.as_ref().is_none_or(|name| selected(&snapshot, Kind::Route, name, params).is_some())
        });
        if asked != known.asked {
            client.ask(Kind::Route, asked);
        }
    }
}

fn commit_all(world: &mut World, changes: &[Change]) {
    world.trace.note(world.now, || changes.iter().map(Change::to_string).collect::<Vec<_>>().join(", "));
    world.source.commit(changes);
    world.serve_truth();
    (0..world.replicas.len()).for_each(|replica| world.catch_up(replica));
}

/// Every name exists for all clients, with content that no client has seen or rejects.
fn mend(names: usize) -> Vec<Change> {
    changes(names, |kind, name| Change {
        kind,
        name,
        scheme: 1,
        number: 8_000,
        is_bad: false,
        address: 0,
        is_varied: false,
        clusters: 1 << name,
    })
}

/// Some names are removed, some get variants, some stay.
///
/// Routes name only clusters that exist for all clients. A client for which another cluster is
/// removed would keep it (S33).
fn vary(random: &mut Random, names: usize) -> Vec<Change> {
    let mut everywhere = 0;
    changes(names, |kind, name| {
        let scheme = random.below(SCHEMES.len());
        if kind == Kind::Cluster && scheme == 1 {
            everywhere |= 1 << name;
        }
        Change {
            kind,
            name,
            scheme,
            number: 8_000 + random.below(2) as i32,
            is_bad: false,
            address: 0,
            is_varied: random.chance(70),
            clusters: random.below(1 << NAMES) & everywhere,
        }
    })
}

fn changes(names: usize, mut change: impl FnMut(Kind, usize) -> Change) -> Vec<Change> {
    let all = Kind::ALL.into_iter().flat_map(|kind| (0..names).map(move |name| (kind, name)));
    all.map(|(kind, name)| change(kind, name)).collect()
}

/// Nobody rejects what comes now, and the steps are long enough, but for proxies that try each response
/// themselves, one after another. A client leaves a server when one before it answers again (P4.6), also without an ACK.
/// There an operator promotes what was refused.
fn promote_refused(world: &mut World) -> Result<(), Violation> {
    let is_slow = world.relays.iter().any(|relay| relay.profile.canaries > 0)
        || world.agents.iter().any(|agent| agent.returned.is_some());
    let rollouts = world.replicas.iter_mut().filter_map(|replica| replica.rollouts.as_mut());
    let refused = rollouts.filter_map(|rollouts| rollouts.order(RolloutOrder::Promote).then_some(()));
    if refused.count() == 0 {
        return Ok(());
    }
    if !is_slow {
        return Err(Violation::new("trials", "a server refuses what no client rejects"));
    }
    settle(world)
}

/// All clients move to another replica, or to their own one after its restart. It has the same
/// content.
fn move_all(world: &mut World) -> Result<(), Violation> {
    world.trace.note(world.now, || "all clients move".to_owned());
    let before: Vec<_> = world.clients.iter().map(at_rest).collect();
    let homes: Vec<Vec<_>> = world
        .clients
        .iter()
        .map(|client| {
            client.connections.iter().map(|(slot, connection)| (*slot, connection.replica)).collect()
        })
        .collect();
    let restarted = world.replicas.len() - 1;
    world.act(&Action::Crash { replica: restarted })?;
    world.catch_up(restarted);
    world.sent.clear();
    for (at, slots) in homes.into_iter().enumerate() {
        for (slot, replica) in slots {
            world.connect(at, slot.unwrap_or(Kind::Cluster), replica + 1);
        }
    }
    world.exchange_all()?;
    // S26: lies that no response can remove stay in one proxy and not in the other.
    if world.relays.iter().all(|relay| relay.profile.liar.is_none()) {
        let is_grouped = |one, other| world.is_grouped(one, other);
        replicas::check(&before, &world.sent, is_grouped, !world.relays.is_empty())?;
    }
    settle(world)?;
    compare(world)
}

/// What a client knows of each type.
fn at_rest(client: &Client) -> replicas::Before {
    client.types.iter().map(|(kind, known)| (*kind, known.clone())).collect()
}

/// A server that may not send a type sends the others within this number of steps. Each is shorter than the time within
/// which a server answers a version that it has (D21b).
const REFUSED_ROUNDS: usize = 300;
const REFUSED_STEP: Duration = Duration::from_millis(400);

/// How many streams of a search come after the longest back-off, at most.
const BACKOFFS: usize = 4;

/// A refused type is tried again after 10 minutes at most (G4b). Proxies learn of it one after another.
const PROBE_ROUNDS: usize = 3 * 31;

const SETTLING: Duration = Duration::from_secs(20);

/// A bit longer than the longest wait of S6e.
const LONGEST_BACKOFF: Duration = Duration::from_secs(601);

/// The number of rounds of 20 s after which the world must be at rest.
const ROUNDS: usize = 24;
