use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{RefusalCode, Refused};
use xds_store::engine::{Engine, MemoryEngine};
use xds_store::key::RecordKey;
use xds_store::phase::Schemas;
use xds_store::read::{
    EventQuery, Filter, Knows, ListQuery, Payload, Position, ReadError, Reads, RecordVersion,
};

use crate::driven::*;

/// A server that knows this version of the type.
fn on(engine: &MemoryEngine, version: &str) -> Server {
    let schemas = Schemas::default().declare(TYPE, version.parse().unwrap()).unwrap();
    Server::with(engine.clone(), SECOND, |config| config.schemas = schemas.into())
}

/// A server that knows this version, on a store where a newer server wrote a record with these versions.
fn server(version: &str, stored: &str) -> Server {
    let mut first = on(&Server::new().engine, if stored.is_empty() { version } else { stored });
    if !stored.is_empty() {
        first.commit(of([versioned("a", "old", stored)])).unwrap();
    }
    on(&first.engine, version)
}

fn versioned(name: &str, payload: &str, schema: &str) -> proto::Change {
    let content = proto::Content { schema: schema.into(), ..content(payload) };
    change(name, "", proto::change::Act::Put(proto::Put { content: Some(content), ..Default::default() }))
}

fn forced(changes: impl Into<Vec<proto::Change>>) -> proto::CommitRequest {
    proto::CommitRequest { force_schema: true, ..of(changes) }
}

/// The stored version of the record, as it is stored.
fn stored(server: &Server) -> String {
    server.record("a", "").unwrap().content.unwrap().schema
}

fn rule(refused: &Refused) -> (RefusalCode, &str, bool) {
    match &refused.violations[0].why {
        Some(proto::violation::Why::Schema(why)) => (refused.code, &why.rule, why.may_force),
        other => panic!("{other:?}"),
    }
}

const FAILED: RefusalCode = RefusalCode::FailedPrecondition;

#[test]
fn sv1_a_put_without_a_version_has_the_servers_one_and_records_from_before_are_1_0() {
    // A store of a program without versions.
    let mut before = Server::new();
    before.commit(of([put("a", "old")])).unwrap();
    assert_eq!(stored(&before), "");
    let mut server = on(&before.engine, "1.1");
    assert_eq!(server.outcome(of([put("a", "old")])), proto::Outcome::Updated, "its label is another one");
    assert_eq!(stored(&server), "1.1");
    assert_eq!(server.outcome(of([versioned("a", "old", "1.1")])), proto::Outcome::Unchanged);
    // A type that nobody declares is not affected, however its version is written.
    for schema in ["", "1", "1.0"] {
        let mut other = Server::new();
        other.commit(of([put("a", "same")])).unwrap();
        assert_eq!(other.outcome(of([versioned("a", "same", schema)])), proto::Outcome::Unchanged);
    }
}

#[test]
fn sv2_a_ceiling_hides_a_version() {
    let schemas = Schemas::default().declare(TYPE, "1.1".parse().unwrap()).unwrap();
    let schemas = schemas.with_ceiling(TYPE, "1.0".parse().unwrap()).unwrap();
    let mut server = Server::with(Server::new().engine, SECOND, |config| config.schemas = schemas.into());
    server.commit(of([put("a", "1")])).unwrap();
    assert_eq!(stored(&server), "");
    assert_eq!(rule(&server.commit(of([versioned("a", "1", "1.1")])).unwrap_err()), (FAILED, "W5", false));
}

#[test]
fn sv3_unknown_fields_and_bytes_stay_when_the_version_changes() {
    let mut server = server("1.2", "1.1");
    server.commit(of([versioned("a", "\u{8}\u{1}", "1.2")])).unwrap();
    assert_eq!(server.record("a", "").unwrap().content.unwrap().payload, "\u{8}\u{1}");
}

#[test]
fn sv4_a_content_of_another_major_does_not_belong_under_the_key() {
    let mut server = server("2.0", "1.1");
    for (request, name) in [(of([versioned("a", "1", "2.0")]), "a"), (of([versioned("b", "1", "1.1")]), "b")]
    {
        let refused = server.commit(request).unwrap_err();
        assert_eq!(rule(&refused), (FAILED, "", false), "{name}");
    }
    server.commit(of([versioned("b", "1", "2.0"), versioned("a", "1", "1.1")])).unwrap();
}

#[test]
fn sv5_row_w1_a_known_version_is_written() {
    let mut server = server("1.1", "1.1");
    assert_eq!(server.outcome(of([versioned("a", "new", "1.1")])), proto::Outcome::Updated);
    assert_eq!(stored(&server), "1.1");
}

#[test]
fn sv5_row_w2_w3_a_newer_stored_version_is_overwritten_by_force_only() {
    let mut server = server("1.1", "1.2");
    let refused = server.commit(of([versioned("a", "new", "1.1")])).unwrap_err();
    assert_eq!(rule(&refused), (FAILED, "W2", true));
    let Some(proto::violation::Why::Schema(why)) = &refused.violations[0].why else { panic!("{refused:?}") };
    assert_eq!([&*why.stored, &why.written, &why.server], ["1.2", "1.1", "1.1"]);
    assert_eq!(stored(&server), "1.2", "a refusal loses nothing");
    server.commit(forced([versioned("a", "new", "1.1")])).unwrap();
    assert_eq!(stored(&server), "1.1");
}

#[test]
fn sv5_sv38_row_w4_a_newer_version_that_the_server_knows_is_written() {
    let mut server = server("1.2", "1.1");
    server.commit(of([versioned("a", "new", "1.2")])).unwrap();
    assert_eq!(stored(&server), "1.2");
}

#[test]
fn sv5_row_w5_a_version_that_the_server_does_not_know_is_never_written() {
    let mut server = server("1.1", "1.1");
    for request in [of([versioned("a", "new", "1.2")]), forced([versioned("a", "new", "1.2")])] {
        assert_eq!(rule(&server.commit(request).unwrap_err()), (FAILED, "W5", false));
    }
}

#[test]
fn sv7_row_w6_w7_w8_a_downgraded_content_is_written_back_by_force_only_and_without_its_mark() {
    let mut knowing = server("1.1", "1.2");
    let downgraded = || [versioned("a", "new", "1.1+downgraded")];
    assert_eq!(rule(&knowing.commit(of(downgraded())).unwrap_err()), (FAILED, "W6", true));
    knowing.commit(forced(downgraded())).unwrap();
    assert_eq!(stored(&knowing), "1.1");
    let mut older = server("1.0", "1.2");
    assert_eq!(rule(&older.commit(forced(downgraded())).unwrap_err()), (FAILED, "W8", false));
}

#[test]
fn sv5_row_w13_an_absent_or_deleted_record_is_written() {
    let mut server = server("1.1", "1.1");
    server.commit(of([delete("a"), versioned("b", "new", "1.1")])).unwrap();
    server.commit(of([versioned("a", "new", "1.1")])).unwrap();
    assert_eq!(stored(&server), "1.1");
}

#[test]
fn sv34_sv35_row_w14_a_record_of_an_unknown_major_is_neither_overwritten_nor_deleted() {
    let mut server = server("1.1", "2.0");
    for act in [put("a", "new"), versioned("a", "new", "1.1"), delete("a"), quarantine("a")] {
        for request in [of([act.clone()]), forced([act])] {
            let refused = server.commit(request).unwrap_err();
            assert_eq!(rule(&refused), (RefusalCode::Unimplemented, "W14", false));
        }
    }
    assert_eq!(stored(&server), "2.0");
    server.commit(of([put("b", "new")])).unwrap();
}

#[test]
fn sv5_row_w16_a_condition_is_judged_before_the_table() {
    let mut server = server("1.1", "1.2");
    let stale = proto::condition::Is::Revision("0".repeat(32));
    assert_eq!(server.code(of([only_if(stale, versioned("a", "new", "1.1"))])), RefusalCode::Aborted);
}

#[test]
fn sv5_all_refused_versions_of_a_commit_are_reported() {
    let mut server = server("1.1", "1.2");
    let refused = server.commit(of([versioned("b", "1", "1.5"), put("c", "1"), put("a", "1")])).unwrap_err();
    let rows = refused.violations.iter().map(|violation| match &violation.why {
        Some(proto::violation::Why::Schema(why)) => (violation.change, &*why.rule),
        other => panic!("{other:?}"),
    });
    assert_eq!(rows.collect::<Vec<_>>(), [(0, "W5"), (2, "W2")]);
}

/// What a read of the record `a` answers as its version, at this server for this client.
fn read(server: &Server, knows: &str) -> Result<String, ReadError> {
    let view = server.engine.view().unwrap();
    let reads = Reads::with_schemas(&*view, &server.store.config().schemas).unwrap();
    let key = RecordKey::parse(&key("a", "")).unwrap();
    let version = reads.get(&key, server.now).unwrap().unwrap();
    let knows = if knows.is_empty() { Knows::default() } else { Knows::of(&key, knows.parse().unwrap()) };
    let record = reads.answer_to(&version, Payload::With, &knows)?;
    Ok(record.content.unwrap().schema)
}

fn refused_row(read: Result<String, ReadError>) -> (RefusalCode, String) {
    let Err(ReadError::Schema(refused)) = read else { panic!("{read:?}") };
    let code = if refused.is_unknown_major() { RefusalCode::Unimplemented } else { FAILED };
    (code, refused.rule.to_string())
}

#[test]
fn sv6_row_rd1_rd2_a_server_downgrades_to_what_it_knows() {
    let server = server("1.1", "1.2");
    for knows in ["", "1.1", "1.2"] {
        assert_eq!(read(&server, knows).unwrap(), "1.1+downgraded", "{knows}");
    }
}

#[test]
fn sv6_sv35_row_rd3_rd4_an_unknown_major_is_not_read() {
    let server = server("1.1", "2.0");
    assert_eq!(refused_row(read(&server, "1.1")), (RefusalCode::Unimplemented, "Rd3".to_owned()));
    assert_eq!(refused_row(read(&server, "2.0")), (RefusalCode::Unimplemented, "Rd4".to_owned()));
}

/// A node that knows one version of the type, of a cluster whose nodes know different ones.
fn node_on(id: &str, version: &str) -> Server {
    let schemas = Schemas::default().declare(TYPE, version.parse().unwrap()).unwrap();
    Server::with(Server::node(id).engine, SECOND, |config| {
        (config.is_replicated, config.schemas) = (true, schemas.into());
    })
}

#[test]
fn sg38_sv34_sr43_a_node_that_lacks_a_version_gives_it_on_and_goes_on_with_all_others() {
    let (mut newer, mut older) = (node_on("a", "2.0"), node_on("b", "1.1"));
    let mut third = node_on("c", "2.0");
    newer.commit(of([versioned("a", "of a", "2.0")])).unwrap();
    assert!(older.merge(newer.entries_for(&older, 9)).is_empty());
    // Its API does not touch what it cannot read.
    assert_eq!(refused_row(read(&older, "1.1")), (RefusalCode::Unimplemented, "Rd3".to_owned()));
    let refused = older.commit(of([delete("a")])).unwrap_err();
    assert_eq!(rule(&refused), (RefusalCode::Unimplemented, "W14", false));
    older.commit(of([put("b", "of b")])).unwrap();
    // What it does not understand reaches a node that was never connected to the first one.
    assert!(third.merge(older.entries_for(&third, 9)).is_empty());
    assert!(newer.merge(older.entries_for(&newer, 9)).is_empty());
    assert_eq!(read(&third, "2.0").unwrap(), "2.0");
    for node in [&mut newer, &mut older, &mut third] {
        assert_eq!(node.clients(), ["a [] of a", "b [] of b"], "a client may move between them");
        node.restart();
    }
    // The newer nodes end it, and so it ends at all.
    third.commit(of([delete("a")])).unwrap();
    assert!(older.merge(third.entries_for(&older, 9)).is_empty());
    assert_eq!(older.clients(), ["b [] of b"]);
}

#[test]
fn sv6_row_rd5_rd6_rd7_a_client_gets_no_newer_version_than_it_knows() {
    let server = server("1.1", "1.1");
    for (knows, shown) in [("1", "1.0+downgraded"), ("1.2", "1.1"), ("2", "1.1"), ("", "1.1")] {
        assert_eq!(read(&server, knows).unwrap(), shown, "{knows}");
    }
}

#[test]
fn sv6_a_client_that_knows_an_older_major_is_refused_if_nothing_converts() {
    assert_eq!(refused_row(read(&server("2.0", "2.0"), "1.1")), (FAILED, String::new()));
}

#[test]
fn sv6_an_undeclared_type_is_read_without_a_version() {
    let mut server = Server::new();
    server.commit(of([versioned("a", "1", "1.0")])).unwrap();
    assert_eq!(read(&server, "").unwrap(), "");
    assert_eq!(read(&on(&server.engine, "1.1"), "").unwrap(), "1.0");
}

#[test]
fn sv36_lists_and_watches_leave_out_what_the_server_does_not_know() {
    let mut newer = on(&Server::new().engine, "2.0");
    newer.commit(of([put("a", "1"), put("b", "1")])).unwrap();
    let mut older = on(&newer.engine, "1.1");
    older.commit(of([put("c", "1")])).unwrap();
    let view = older.engine.view().unwrap();
    let reads = Reads::with_schemas(&*view, &older.store.config().schemas).unwrap();
    let filter = Filter::parse(None).unwrap();
    let query = ListQuery {
        filter: &filter,
        at: 2,
        now: older.now,
        may_read: &|_| true,
        knows: Knows::ALL,
        after: None,
        taken: 0,
        limit: 10,
        limit_bytes: 1 << 20,
        scan_limit: 100,
    };
    let names = |records: Vec<RecordVersion>| records.iter().map(|of| of.key.name().to_string()).collect();
    let listed: Vec<String> = names(reads.list(query).unwrap().records);
    assert_eq!(listed, ["c"]);
    let events = EventQuery {
        filter: &filter,
        may_read: &|_| true,
        payload: Payload::With,
        knows: Knows::ALL,
        limit: 10,
        limit_bytes: 1 << 20,
        scan_limit: 100,
    };
    let watched = reads.events(&mut Position::after(0), events).unwrap().events;
    let watched = watched.into_iter().map(|event| event.record.unwrap().key.unwrap().name);
    assert_eq!(watched.collect::<Vec<_>>(), ["c"]);
    // A caller that knows only the first major sees no record of the second one.
    let view = newer.engine.view().unwrap();
    let reads = Reads::with_schemas(&*view, &newer.store.config().schemas).unwrap();
    let knows = Knows::of(&RecordKey::parse(&key("a", "")).unwrap(), "1.5".parse().unwrap());
    let listed: Vec<String> = names(reads.list(ListQuery { knows: &knows, ..query }).unwrap().records);
    assert_eq!(listed, ["c"]);
}
