use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{Draft, RefusalCode, Refused};
use xds_store::phase::{Ceiling, Phase, Schemas};
use xds_store::store::{Committed, Event, Ticket};

use crate::driven::migrating::{NEW_TYPE, go_to, knowing, step};
use crate::driven::*;

/// Sets the ceiling of a type, or lifts it with an empty text.
fn set(server: &mut Server, type_url: &str, version: &str) -> Result<Committed, Refused> {
    let version = if version.is_empty() { None } else { Some(version.parse().unwrap()) };
    let ceiling = Ceiling { type_url: type_url.into(), version };
    server.step(Event::Commit(Ticket(1 << 40), Draft::set_ceiling(ceiling, "token:op".into(), false)?));
    server.answers.remove(&(1 << 40)).expect("the commit is answered")
}

fn versioned(name: &str, version: &str) -> proto::CommitRequest {
    let content = proto::Content { schema: version.into(), ..content("1") };
    let put = proto::Put { content: Some(content), ..Default::default() };
    of([change(name, "", proto::change::Act::Put(put))])
}

/// The closed gates.
fn gates(refused: &Refused) -> Vec<(String, u64)> {
    let gate = |violation: &proto::Violation| match &violation.why {
        Some(proto::violation::Why::Gate(gate)) => (gate.gate.clone(), gate.count),
        why => panic!("{why:?}"),
    };
    refused.violations.iter().map(gate).collect()
}

fn newer() -> Vec<(String, u64)> {
    vec![("needs_newer".into(), 1)]
}

#[test]
fn sv33_a_ceiling_of_the_store_holds_for_all_its_servers_until_it_is_lifted() {
    let mut server = knowing(&Server::new().engine);
    let mut other = knowing(&server.engine);
    server.commit(versioned("x", "1.1")).unwrap();
    // What an older server could not read prevents it.
    assert_eq!(gates(&set(&mut server, TYPE, "1.0").unwrap_err()), newer());
    server.commit(versioned("x", "1.0")).unwrap();
    let revision = set(&mut server, TYPE, "1.0").unwrap().revision;
    assert_eq!(set(&mut server, TYPE, "1.0").unwrap().revision, revision, "ST12");
    let refused = server.commit(versioned("x", "1.1")).unwrap_err();
    assert_eq!(refused.code, RefusalCode::FailedPrecondition);
    // Another server, and one that starts later.
    other.step(Event::Changed);
    assert!(other.commit(versioned("x", "1.1")).is_err());
    let mut later = knowing(&server.engine);
    assert!(later.commit(versioned("x", "1.1")).is_err());
    assert_eq!(later.store.schemas().stored_ceilings().count(), 1);
    // SV1: without a version, a content has the highest one that is allowed.
    later.commit(of([put("y", "1")])).unwrap();
    assert_eq!(later.record("y", "").unwrap().content.unwrap().schema, "");
    set(&mut later, TYPE, "").unwrap();
    later.commit(versioned("x", "1.1")).unwrap();
    assert_eq!(set(&mut later, TYPE, "").unwrap().results[0].outcome, proto::Outcome::Absent);
    assert_eq!(later.store.head().counter, 4, "a ceiling is not replicated");
}

#[test]
fn sv33_a_plan_that_has_begun_prevents_a_ceiling_below_its_new_form() {
    let mut server = knowing(&Server::new().engine);
    go_to(&mut server, Phase::F1);
    for type_url in [TYPE, NEW_TYPE] {
        assert_eq!(gates(&set(&mut server, type_url, "1.9").unwrap_err()), newer());
        set(&mut server, type_url, "2.0").unwrap();
        set(&mut server, type_url, "").unwrap();
    }
    step(&mut server, 1, 0).unwrap();
    set(&mut server, NEW_TYPE, "1.9").unwrap();
    assert_eq!(step(&mut server, 0, 1).unwrap_err().code, RefusalCode::FailedPrecondition);
    // SV33: with all plans in F0 a server that does not have them opens the store, once a pass has
    // found nothing of them.
    server.wait(120 * SECOND);
    let without = Server::with(server.engine.clone(), server.now, |config| {
        config.schemas = Schemas::default().declare(TYPE, "1.1".parse().unwrap()).unwrap().into();
    });
    assert_eq!(without.store.plans().len(), 0);
}

#[test]
fn sv33_what_is_no_type_has_no_ceiling() {
    let mut server = Server::new();
    for wrong in ["", "type.googleapis.com/xds.store.v1.ReferenceRule"] {
        assert_eq!(set(&mut server, wrong, "1.0").unwrap_err().code, RefusalCode::InvalidArgument);
    }
}
