//! Commits that ask for a rollout.

use xds_core::Audience;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::RefusalCode;

use crate::driven::{Server, of, put};

fn asking(name: &str, payload: &str, steps: &[&str]) -> proto::CommitRequest {
    let steps = steps.iter().map(ToString::to_string).collect();
    proto::CommitRequest { rollout: Some(proto::Rollout { steps, wait: None }), ..of([put(name, payload)]) }
}

/// The number and the first step of the last rollout that was asked for.
fn last(server: &Server) -> Option<(u64, Audience)> {
    let requested = server.store.head().requested_rollout()?;
    Some((requested.number, requested.plan.steps()[0].clone()))
}

#[test]
fn the_last_steps_that_were_asked_for_outlast_other_commits_and_a_restart() {
    let mut server = Server::new();
    server.commit(of([put("a", "1")])).unwrap();
    assert_eq!(last(&server), None);
    server.commit(asking("a", "2", &["2 clients", "100%"])).unwrap();
    server.commit(of([put("b", "1")])).unwrap();
    assert_eq!(last(&server), Some((2, Audience::Clients(2))));
    server.restart();
    assert_eq!(last(&server), Some((2, Audience::Clients(2))));
    server.commit(asking("a", "3", &["10%"])).unwrap();
    assert_eq!(last(&server), Some((4, Audience::Percent(10))));
    // It changes nothing, so there is nothing to roll out.
    server.commit(asking("a", "3", &["1 client"])).unwrap();
    assert_eq!(last(&server), Some((4, Audience::Percent(10))));
}

#[test]
fn a_peer_gets_the_steps_with_the_entry_under_a_revision_of_its_own() {
    let (mut one, mut other) = (Server::node("one"), Server::node("other"));
    other.commit(of([put("c", "1")])).unwrap();
    one.commit(asking("a", "1", &["2 clients"])).unwrap();
    other.merge(one.entries_for(&other, 9));
    assert_eq!(last(&other), Some((2, Audience::Clients(2))));
}

#[test]
fn steps_that_cannot_be_read_are_invalid() {
    let mut server = Server::new();
    for steps in [&[][..], &["10"], &["0 clients"]] {
        assert_eq!(server.code(asking("a", "1", steps)), RefusalCode::InvalidArgument);
    }
    assert_eq!(server.store.revision(), 0);
}
