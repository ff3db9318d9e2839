//! Whatever happened on a stream, in the end its client holds what it asked for as the cache has
//! it.
//!
//! A model client of each protocol asks by name or by locator, ACKs late, comes back on new
//! streams; commits happen in between, which also change whom the variants of a name are for. Then
//! all is answered and time passes, and what the client holds must be what the newest snapshot has
//! for it, and what it believes absent what is not there.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod client;
mod found;
mod history;
mod known;

use std::sync::Arc;
use std::time::Duration;

use quickcheck::{Gen, QuickCheck};
use xds_core::{Cache, Commit, Outcome};
use xds_proto::type_url::ROUTE_CONFIGURATION;

use client::{Client, DeltaClient, SotwClient};
use history::{ByName, History, Located, Step, commit, parameters};

/// Runs the steps, heals, and compares.
fn converges(cache: &Arc<Cache>, client: &mut dyn Client, history: &History) -> Result<(), String> {
    let mut commits = Vec::new();
    // A commit is about those who asked for what it changed when it was made.
    let mut has_asked = false;
    for step in &history.steps {
        match step {
            Step::Commit(changes) => {
                has_asked &= !client.is_idle();
                commits.push(commit(cache, changes));
            }
            Step::Ask { type_url, asked } => {
                has_asked = true;
                client.ask(history::type_of(*type_url), asked.iter().map(history::asked_of).collect());
            }
            Step::Take { accept } => _ = client.take(*accept),
            Step::Pass { ms } => client.pass(Duration::from_millis((*ms).into())),
            Step::Reconnect => client.reconnect(),
        }
        // Now and then a request follows before the server gets to answer.
        if !matches!(step, Step::Ask { type_url: 128.., .. }) {
            client.receive();
            // Who is said to use all that there is does not have anything else.
            if !has_asked
                && outcomes(&commits).all(|outcome| matches!(outcome, Outcome::Acked | Outcome::Disconnected))
            {
                client.check_held()?;
            }
        }
    }
    if !cache.snapshot().is_synced() {
        commits.push(commit(cache, &[]));
    }
    settle(client);
    // S33: what was NACKed holds removals until something of its type is accepted.
    if !history.steps.iter().any(|step| matches!(step, Step::Take { accept: false })) {
        client.check()?;
        decided(&commits, |outcome| matches!(outcome, Outcome::Acked | Outcome::Disconnected))?;
    }
    for last in history.last_commits() {
        commits.push(commit(cache, &last));
        settle(client);
    }
    client.check_last()?;
    decided(&commits, |outcome| *outcome != Outcome::Pending)
}

/// What became of commits at all streams.
fn outcomes(commits: &[Commit]) -> impl Iterator<Item = Outcome> {
    commits.iter().flat_map(|commit| commit.applied(|_| true).results()).map(|result| result.outcome)
}

/// Those who wrote must know by now what became of it.
fn decided(commits: &[Commit], is_fine: impl Fn(&Outcome) -> bool) -> Result<(), String> {
    for commit in commits {
        if let Some(outcome) = outcomes(std::slice::from_ref(commit)).find(|outcome| !is_fine(outcome)) {
            return Err(format!("{commit:?} is {outcome:?}"));
        }
    }
    Ok(())
}

/// The client takes all there is, until nothing more comes.
fn settle(client: &mut dyn Client) {
    // As long as it asks for routes that are gone it uses those it has, and their clusters stay
    // (S33).
    client.give_up_missing(ROUTE_CONFIGURATION);
    for _ in 0..8 {
        client.pass(Duration::from_secs(20));
        client.receive();
        while client.take(true) {
            client.receive();
        }
    }
}

fn sotw(history: &History) -> bool {
    let cache = Cache::new();
    report(converges(&cache, &mut SotwClient::new(&cache, parameters(history.node)), history))
}

fn delta(history: &History) -> bool {
    let cache = Cache::new();
    report(converges(&cache, &mut DeltaClient::new(&cache, parameters(history.node)), history))
}

/// Histories of up to 30 steps, each of up to 30 changes. They are the same in each run, so that a
/// failure is that of a change; `SEED` and `TESTS` choose others.
fn quick() -> QuickCheck {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    QuickCheck::new().rng(Gen::from_size_and_seed(30, number("SEED", 0))).tests(number("TESTS", 1000))
}

fn report(result: Result<(), String>) -> bool {
    result.inspect_err(|difference| eprintln!("{difference}")).is_ok()
}

#[test]
fn a_sotw_client_holds_what_the_cache_has() {
    fn holds(history: ByName) -> bool {
        sotw(&history.0)
    }
    quick().quickcheck(holds as fn(ByName) -> bool);
}

#[test]
fn a_delta_client_holds_what_the_cache_has() {
    fn holds(history: ByName) -> bool {
        delta(&history.0)
    }
    quick().quickcheck(holds as fn(ByName) -> bool);
}

#[test]
fn a_sotw_client_with_locators_holds_what_the_cache_has() {
    fn holds(history: Located) -> bool {
        sotw(&history.0)
    }
    quick().quickcheck(holds as fn(Located) -> bool);
}

#[test]
fn a_delta_client_with_locators_holds_what_the_cache_has() {
    fn holds(history: Located) -> bool {
        delta(&history.0)
    }
    quick().quickcheck(holds as fn(Located) -> bool);
}

/// Each went wrong once.
#[test]
fn histories_that_were_found_converge() {
    for history in found::histories() {
        assert!(sotw(&history), "{history:?}");
        assert!(delta(&history), "{history:?}");
    }
}
