//! The phases F4 and F5, and the ways back from them.

use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{RefusalCode, Refused};
use xds_store::phase::Phase;
use xds_store::store::Event;

use crate::driven::migrating::*;
use crate::driven::*;

/// Goes on to this phase, with a clean pass in F3.
fn go_on(server: &mut Server, from: u32, to: u32) {
    for number in from..to {
        server.wait(2 * SECOND);
        step(server, number, number + 1).unwrap();
    }
}

/// A server in this phase with the record `a`, which was written in F2.
fn with_record(phase: u32) -> Server {
    let mut server = in_phase(Phase::F2);
    server.commit(of([put("a", "1")])).unwrap();
    go_on(&mut server, 2, phase);
    server
}

/// The payloads that readers of the old and the new form get.
fn both(server: &Server) -> [String; 2] {
    [shown(server, &key("a", ""), "").0, shown(server, &new_key("a"), "").0]
}

fn texts(old: &str, new: &str) -> [String; 2] {
    [old.to_owned(), new.to_owned()]
}

/// The old record as it is stored.
fn stored_old(server: &Server) -> Option<Vec<u8>> {
    let view = xds_store::engine::Engine::view(&server.engine).unwrap();
    let reads = xds_store::read::Reads::new(&*view).unwrap();
    let version = reads.get(&xds_store::key::RecordKey::parse(&key("a", "")).unwrap(), server.now).unwrap();
    version.map(|version| version.state.content.unwrap().payload.to_vec())
}

fn gate(refused: Refused) -> String {
    assert_eq!(refused.code, RefusalCode::FailedPrecondition);
    match &refused.violations[0].why {
        Some(proto::violation::Why::Gate(gate)) => gate.gate.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn sv23_f4_needs_a_clean_pass_that_began_in_f3() {
    let mut server = in_phase(Phase::F0);
    let puts: Vec<_> = (0..150).map(|number| put(&format!("a{number}"), "1")).collect();
    server.commit(of(puts)).unwrap();
    go_to(&mut server, Phase::F3);
    assert_eq!(gate(step(&mut server, 3, 4).unwrap_err()), "pass_not_clean");
    server.wait(2 * SECOND);
    // A step back and forth needs another pass.
    step(&mut server, 3, 2).unwrap();
    step(&mut server, 2, 3).unwrap();
    assert_eq!(gate(step(&mut server, 3, 4).unwrap_err()), "pass_not_clean");
    server.wait(2 * SECOND);
    step(&mut server, 3, 4).unwrap();
}

#[test]
fn sv20_sv23_a_record_that_is_split_after_a_clean_pass_closes_the_gate() {
    let mut server = with_record(3);
    server.wait(2 * SECOND);
    let mut low = below(&server.engine);
    low.now = server.now;
    low.commit(proto::CommitRequest { force_schema: true, ..of([put("a", "2")]) }).unwrap();
    server.step(Event::Changed);
    assert_eq!(gate(step(&mut server, 3, 4).unwrap_err()), "pass_not_clean");
    server.wait(120 * SECOND);
    step(&mut server, 3, 4).unwrap();
    assert_eq!(both(&server), texts("2", "new:2"));
}

#[test]
fn sv11_sv23_a_record_that_cannot_be_converted_closes_the_gate() {
    let mut server = in_phase(Phase::F0);
    server.commit(of([put("a", "odd")])).unwrap();
    go_to(&mut server, Phase::F3);
    server.wait(120 * SECOND);
    assert_eq!(gate(step(&mut server, 3, 4).unwrap_err()), "pass_not_clean");
}

#[test]
fn sv25_in_f4_both_forms_are_written_as_the_new_one_and_read_from_it() {
    let mut server = with_record(4);
    assert_eq!(both(&server), texts("1", "new:1"));
    // ST12: nothing is written again because of the phase.
    assert_eq!(server.outcome(of([put("a", "1")])), proto::Outcome::Unchanged);
    assert_eq!(server.outcome(of([put_new("a", "new:1")])), proto::Outcome::Unchanged);
    assert_eq!(server.outcome(of([put("a", "2")])), proto::Outcome::Updated);
    assert_eq!(both(&server), texts("2", "new:2"));
    assert_eq!(stored_old(&server).unwrap(), b"1", "the old record stays as it is");
    assert_eq!(shown(&server, &key("a", ""), "").1, "1.1+downgraded");
    // What a reader of the old form gets is good for a condition.
    let record = get(&server, &key("a", ""), "").unwrap().unwrap();
    let is = proto::condition::Is::Revision(record.revision);
    let committed = server.commit(of([only_if(is, put("a", "3"))])).unwrap();
    let after = get(&server, &key("a", ""), "").unwrap().unwrap();
    assert_eq!(committed.results[0].record.unwrap().0.to_string(), after.revision);
    server.commit(of([put_new("a", "new:4|more")])).unwrap();
    assert_eq!(both(&server), texts("4", "new:4|more"));
}

#[test]
fn sv25_in_f5_a_write_of_the_old_form_is_refused_with_the_new_key() {
    let mut server = with_record(5);
    for act in [put("a", "2"), delete("a"), quarantine("a")] {
        let refused = server.commit(of([act])).unwrap_err();
        assert_eq!(refused.code, RefusalCode::FailedPrecondition);
        assert!(refused.message.contains("v2/a"), "{refused:?}");
    }
    server.commit(of([put_new("a", "new:2")])).unwrap();
    assert_eq!(both(&server), texts("2", "new:2"));
}

#[test]
fn sv18_in_f4_and_f5_a_delete_applies_to_both_records() {
    for phase in [4, 5] {
        let mut server = with_record(phase);
        let owner = proto::CommitRequest { owner: "shop".into(), ..of([put_new("a", "new:2")]) };
        server.commit(owner).unwrap();
        let prune = proto::CommitRequest { owner: "shop".into(), prune: true, ..of([]) };
        server.commit(prune).unwrap();
        assert_eq!((both(&server), stored_old(&server)), (texts("", ""), None));
        // Nothing comes back.
        for (from, to) in (2..=phase).rev().map(|from| (from, from - 1)) {
            server.wait(2 * SECOND);
            step(&mut server, from, to).unwrap();
            assert_eq!(both(&server), texts("", ""), "F{to}");
        }
    }
}

#[test]
fn sv19_in_f4_a_server_below_writes_nothing_of_the_plan() {
    let server = with_record(4);
    let mut low = below(&server.engine);
    for change in [put("a", "2"), put("ab", "1"), delete("a")] {
        let request = proto::CommitRequest { force_schema: true, ..of([change]) };
        assert_eq!(low.code(request), RefusalCode::Unimplemented);
    }
    low.commit(of([put("b", "1")])).unwrap();
}

#[test]
fn sv27_after_f4_a_pass_writes_the_old_form_of_what_was_written_there() {
    let mut server = with_record(4);
    server.commit(of([put("a", "2"), put_new("ab", "new:1|more")])).unwrap();
    step(&mut server, 4, 3).unwrap();
    assert_eq!(both(&server), texts("2", "new:2"));
    step(&mut server, 3, 2).unwrap();
    // The pass may be done already; a step needs one that had nothing to do.
    server.wait(2 * SECOND);
    assert_eq!(stored_old(&server).unwrap(), b"2");
    step(&mut server, 2, 1).unwrap();
    assert_eq!(both(&server), texts("2", ""));
    assert_eq!(shown(&server, &key("ab", ""), "").0, "1");
    step(&mut server, 1, 0).unwrap();
}

#[test]
fn sv27_the_way_back_is_closed_until_a_pass_is_clean() {
    let mut server = with_record(4);
    server.commit(of([put("a", "2")])).unwrap();
    step(&mut server, 4, 3).unwrap();
    step(&mut server, 3, 2).unwrap();
    assert_eq!(gate(step(&mut server, 2, 1).unwrap_err()), "way_back_not_clean");
    // A write does what the pass would do.
    server.commit(of([put_new("a", "new:3|more")])).unwrap();
    assert_eq!((both(&server), stored_old(&server).unwrap()), (texts("3", "new:3|more"), b"3".to_vec()));
    server.wait(2 * SECOND);
    step(&mut server, 2, 1).unwrap();
    assert_eq!(both(&server), texts("3", ""));
}

#[test]
fn sv26_in_f5_old_records_are_removed_and_take_the_stamp_with_them() {
    let mut server = in_phase(Phase::F2);
    server.commit(of([put("a", "1"), put_lease("ab", "1", 3600)])).unwrap();
    go_on(&mut server, 2, 5);
    server.wait(2 * SECOND);
    assert_eq!(stored_old(&server), None);
    let new = get(&server, &new_key("a"), "").unwrap().unwrap();
    assert_eq!(
        (&*new.mirror_of, new.generation),
        ("", 2),
        "SR39: without the stamp it is another generation"
    );
    assert_eq!(both(&server), texts("1", "new:1"));
    // The other one is there until its lease ends.
    assert_eq!(server.store.counts().0, 3, "two new ones and one old one");
    // All the way back, nothing is lost.
    for (from, to) in [(5, 4), (4, 3), (3, 2), (2, 1)] {
        step(&mut server, from, to).unwrap();
        assert_eq!(both(&server)[0], "1", "F{to}");
        server.wait(2 * SECOND);
    }
    assert_eq!(stored_old(&server).unwrap(), b"1");
}

#[test]
fn sv26_an_old_record_that_ends_in_f4_takes_the_stamp_with_it() {
    let mut server = in_phase(Phase::F2);
    server.commit(of([put_lease("a", "1", 60)])).unwrap();
    go_on(&mut server, 2, 4);
    for _ in 0..4 {
        server.wait(25 * SECOND);
        server.commit(of([touch("a")])).unwrap();
    }
    assert_eq!((stored_old(&server), both(&server)), (None, texts("1", "new:1")));
    step(&mut server, 4, 3).unwrap();
    assert_eq!(both(&server), texts("1", "new:1"), "a stamp without an old record would mean absent");
    server.wait(61 * SECOND);
    assert_eq!(both(&server), texts("", ""));
}

#[test]
fn sv23_a_record_that_is_split_behind_a_running_pass_closes_the_gate() {
    let mut server = in_phase(Phase::F0);
    let puts: Vec<_> = (0..250).map(|number| put(&format!("a{number:03}"), "1")).collect();
    server.commit(of(puts)).unwrap();
    go_to(&mut server, Phase::F3);
    // The first pass writes. The second one has nothing to do, and is past the first record.
    let copied = |server: &Server| server.store.passes()[0].looked_at;
    while copied(&server) < 500 {
        server.wait(SECOND / 10);
    }
    while copied(&server) != 200 {
        server.wait(SECOND / 10);
    }
    let mut low = below(&server.engine);
    low.now = server.now;
    low.commit(proto::CommitRequest { force_schema: true, ..of([put("a000", "2")]) }).unwrap();
    server.step(Event::Changed);
    while copied(&server) < 500 {
        server.wait(SECOND / 10);
    }
    assert_eq!(gate(step(&mut server, 3, 4).unwrap_err()), "pass_not_clean");
    server.wait(10 * SECOND);
    step(&mut server, 3, 4).unwrap();
    assert_eq!(shown(&server, &new_key("a000"), "").0, "new:2");
}

#[test]
fn sv23_a_new_record_that_ends_before_its_old_one_closes_the_gate() {
    let mut server = in_phase(Phase::F2);
    server.commit(of([put_lease("a", "1", 600)])).unwrap();
    go_on(&mut server, 2, 3);
    let mut low = below(&server.engine);
    server.wait(300 * SECOND);
    low.now = server.now;
    // The server below renews the old record alone.
    low.commit(of([touch("a")])).unwrap();
    while server.store.counts().0 == 2 {
        server.wait(SECOND / 100);
    }
    assert_eq!(gate(step(&mut server, 3, 4).unwrap_err()), "pass_not_clean");
    server.wait(70 * SECOND);
    step(&mut server, 3, 4).unwrap();
    assert_eq!(both(&server), texts("1", "new:1"));
}

#[test]
fn sv11_sv25_in_f4_a_put_that_readers_of_the_old_form_cannot_get_is_refused() {
    let mut server = with_record(4);
    let odd = || of([put_new("a", "new:odd")]);
    assert_eq!(server.code(odd()), RefusalCode::FailedPrecondition);
    assert_eq!(both(&server), texts("1", "new:1"));
    step(&mut server, 4, 5).unwrap();
    server.commit(odd()).unwrap();
}
