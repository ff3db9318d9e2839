use xds_proto::xds::store::v1 as proto;
use xds_store::phase::Phase;

use crate::driven::migrating::*;
use crate::driven::*;

/// A server in F3 whose records were written before the plan began.
fn with_records(count: usize) -> Server {
    let mut server = in_phase(Phase::F0);
    let puts: Vec<_> = (0..count).map(|number| put(&format!("a{number:04}"), "1")).collect();
    server.commit(of(puts)).unwrap();
    go_to(&mut server, Phase::F3);
    server
}

/// Whether the store has the new form of a record itself, with the current stamp.
fn is_copied(server: &Server, name: &str) -> bool {
    get(server, &key(name, ""), "").unwrap().unwrap().content.unwrap().schema == "1.1+downgraded"
}

fn is_clean(server: &Server) -> bool {
    server.store.passes().iter().all(|pass| pass.is_clean)
}

#[test]
fn sv21_sv40_a_pass_writes_what_is_missing_and_the_next_one_is_clean() {
    let mut server = with_records(250);
    // 1,000 records in a second.
    assert!(is_copied(&server, "a0099") && !is_copied(&server, "a0100"));
    server.wait(SECOND / 10);
    assert!(is_copied(&server, "a0199") && !is_copied(&server, "a0200") && !is_clean(&server));
    server.wait(2 * SECOND);
    assert!(is_copied(&server, "a0249") && is_clean(&server));
    let last = server.published.iter().rfind(|commit| commit.changed.len() > 1).unwrap();
    assert_eq!(last.entry.identity, "migration");
    // SV22: passes go on, and write nothing.
    let before = server.engine_revision();
    server.wait(600 * SECOND);
    assert_eq!(server.engine_revision(), before);
}

#[test]
fn sv20_sv21_a_pass_ends_splits_and_touches_nothing_else() {
    let mut server = in_phase(Phase::F2);
    server.commit(of([put("a", "1"), put_new("ac", "new:1|more"), put("b", "1")])).unwrap();
    let forced = proto::CommitRequest { force_schema: true, ..of([put("a", "2")]) };
    below(&server.engine).commit(forced).unwrap();
    server.step(xds_store::store::Event::Changed);
    let untouched = get(&server, &key("b", ""), "").unwrap();
    step(&mut server, 2, 3).unwrap();
    server.wait(2 * SECOND);
    assert!(is_clean(&server) && is_copied(&server, "a"));
    assert_eq!(server.store.counts().0, 5, "two of two forms, and one of none");
    assert_eq!(shown(&server, &new_key("a"), "").0, "new:2");
    assert_eq!(shown(&server, &new_key("ac"), "").0, "new:1|more", "what is up to date is not written again");
    assert_eq!(get(&server, &key("b", ""), "").unwrap(), untouched);
}

#[test]
fn sv21_sv27_new_records_without_an_old_one_are_deleted_in_f3_and_all_in_f0() {
    let mut server = in_phase(Phase::F1);
    let puts: Vec<_> = (0..150).map(|number| put(&format!("a{number:03}"), "1")).collect();
    server.commit(of(puts)).unwrap();
    step(&mut server, 1, 0).unwrap();
    assert_eq!(server.store.counts().0, 300);
    // The pass of F0 has not come to the new records. One of them loses its old record.
    server.commit(of([delete("a000")])).unwrap();
    go_to(&mut server, Phase::F3);
    server.wait(2 * SECOND);
    assert!(is_clean(&server));
    assert_eq!((server.store.counts().0, shown(&server, &new_key("a000"), "").0), (298, String::new()));
    for (from, to) in [(3, 2), (2, 1), (1, 0)] {
        step(&mut server, from, to).unwrap();
    }
    server.wait(5 * SECOND);
    assert_eq!(server.store.counts().0, 149, "the old ones");
    let before = server.engine_revision();
    server.wait(600 * SECOND);
    assert_eq!(server.engine_revision(), before);
}

/// The counts of the plan, which are those that a server finds that starts now.
fn counts(server: &Server) -> [u64; 4] {
    let of = |server: &Server| server.store.plans()[0].counts;
    let found = of(server);
    let mut same = server.store.config().clone();
    same.server = 99;
    let started = Server::with(server.engine.clone(), server.now, |config| *config = same);
    assert_eq!(of(&started), found);
    [found.old, found.new, found.behind, found.split]
}

#[test]
fn sv20_sv40_the_store_knows_how_many_records_have_each_form() {
    let mut server = in_phase(Phase::F0);
    let puts: Vec<_> = (0..150).map(|number| put(&format!("a{number:03}"), "1")).collect();
    server.commit(of(puts)).unwrap();
    server.commit(of([put("b", "1"), put("a-odd", "odd")])).unwrap();
    assert_eq!(counts(&server), [151, 0, 151, 0]);
    go_to(&mut server, Phase::F2);
    server.commit(of([put("a000", "2"), put_new("a-new", "new:1"), delete("a001")])).unwrap();
    assert_eq!(counts(&server), [151, 2, 149, 0]);
    let forced = proto::CommitRequest { force_schema: true, ..of([put("a000", "3")]) };
    below(&server.engine).commit(forced).unwrap();
    server.step(xds_store::store::Event::Changed);
    assert_eq!(counts(&server), [151, 2, 150, 1]);
    step(&mut server, 2, 3).unwrap();
    server.wait(2 * SECOND);
    assert_eq!(counts(&server), [151, 150, 1, 0], "one cannot be converted");
    server.commit(of([delete("a-odd")])).unwrap();
    server.wait(70 * SECOND);
    step(&mut server, 3, 4).unwrap();
    server.commit(of([put_new("a000", "new:4"), delete("a002")])).unwrap();
    step(&mut server, 4, 5).unwrap();
    server.wait(2 * SECOND);
    assert_eq!(counts(&server), [0, 149, 0, 0]);
    for from in [5, 4, 3, 2] {
        server.wait(5 * SECOND);
        step(&mut server, from, from - 1).unwrap();
        counts(&server);
    }
    step(&mut server, 1, 0).unwrap();
    server.wait(5 * SECOND);
    assert_eq!(counts(&server), [149, 0, 149, 0]);
}

#[test]
fn sv22_another_server_goes_on_where_the_last_one_stopped() {
    let mut server = with_records(1_000);
    server.wait(SECOND / 2);
    let copied = server.published.iter().filter(|commit| commit.entry.identity == "migration").count();
    assert!((2..9).contains(&copied), "{copied}");
    let mut next = knowing(&server.engine);
    next.now = server.now;
    next.wait(SECOND / 10);
    let first = &next.published[0].changed;
    let name = |number: usize| format!("v2/a{number:04}");
    let is_first = |(key, _): &(xds_store::key::RecordKey, _)| key.name().as_str() == name(copied * 100);
    assert!(first.iter().any(is_first), "it does not begin again");
    next.wait(10 * SECOND);
    assert!(is_clean(&next) && is_copied(&next, "a0999"));
}

#[test]
fn sv21_sv22_writes_during_a_pass_are_neither_delayed_nor_lost() {
    let mut server = with_records(500);
    for number in 0..20 {
        server.wait(SECOND / 20);
        let name = format!("a{:04}", (number * 53) % 500);
        if number % 3 == 0 {
            server.commit(of([delete(&name)])).unwrap();
        } else {
            server.commit(of([put_new(&name, &format!("new:{number}|more"))])).unwrap();
        }
    }
    server.wait(5 * SECOND);
    assert!(is_clean(&server));
    for number in 0..20 {
        let name = format!("a{:04}", (number * 53) % 500);
        let expected = if number % 3 == 0 { String::new() } else { format!("new:{number}|more") };
        assert_eq!(shown(&server, &new_key(&name), "").0, expected, "{name}");
    }
}

#[test]
fn sv11_sv21_a_record_that_cannot_be_converted_stays_and_is_counted() {
    let mut server = in_phase(Phase::F0);
    server.commit(of([put("a1", "1"), put("a2", "odd"), put("a3", "1")])).unwrap();
    go_to(&mut server, Phase::F3);
    server.wait(SECOND / 10);
    assert_eq!(server.store.passes()[0].failed, 1);
    server.wait(2 * SECOND);
    assert!(!is_clean(&server) && is_copied(&server, "a1") && is_copied(&server, "a3"));
    assert_eq!(shown(&server, &key("a2", ""), "").0, "odd");
    server.commit(of([put("a2", "2")])).unwrap();
    server.wait(61 * SECOND);
    assert!(is_clean(&server));
}

#[test]
fn sv22_a_full_disk_delays_a_pass_and_it_goes_on_when_there_is_room() {
    let mut server = with_records(100);
    server.fates.extend([Fate::Full; 3]);
    server.wait(SECOND);
    assert!(!server.fates.is_empty(), "it does not try all the time");
    server.fates.clear();
    server.wait(20 * SECOND);
    assert!(is_clean(&server) && is_copied(&server, "a0099"));
}

#[test]
fn sv19_sv21_a_server_below_copies_nothing() {
    let mut server = with_records(300);
    let mut low = below(&server.engine);
    low.now = server.now;
    low.wait(600 * SECOND);
    assert!(low.store.passes().is_empty() && !is_copied(&low, "a0299"));
    step(&mut server, 3, 2).unwrap();
    server.wait(10 * SECOND);
    assert!(server.store.passes().is_empty(), "the copy ends with its phase");
}

#[test]
fn st43_sv22_a_step_fits_into_a_batch_of_the_engine() {
    let small = |engine: &xds_store::engine::MemoryEngine| {
        Server::with(engine.clone(), SECOND, |config| {
            config.schemas = schemas().into();
            config.engine.operations = 8;
        })
    };
    let mut server = in_phase(Phase::F0);
    let puts: Vec<_> = (0..40).map(|number| put(&format!("a{number:02}"), "1")).collect();
    server.commit(of(puts)).unwrap();
    let mut server = small(&server.engine);
    for number in 0..5 {
        step(&mut server, number, number + 1).unwrap();
        server.wait(10 * SECOND);
    }
    // The new forms.
    assert_eq!(server.store.counts().0, 40);
    for commit in &server.published {
        assert!(commit.changed.len() + 2 <= 8, "{} records in a commit", commit.changed.len());
    }
    // On the way back both records of a resource change.
    for number in (3..=5).rev() {
        step(&mut server, number, number - 1).unwrap();
        server.wait(10 * SECOND);
    }
    assert_eq!(server.store.counts().0, 80);
    step(&mut server, 2, 1).unwrap();
}

#[test]
fn sv24_records_of_a_heartbeat_plan_are_converted_by_a_put_or_touch_and_not_by_a_pass() {
    let mut server = of_heartbeats(&Server::new().engine);
    server.commit(of([put_lease("a1", "1", 30), put_lease("a2", "1", 30), put("a3", "1")])).unwrap();
    go_to(&mut server, Phase::F3);
    // ST67: a touch that is too early converts nothing.
    assert_eq!(server.outcome(of([touch("a1")])), proto::Outcome::Touched);
    server.wait(12 * SECOND);
    assert_eq!(server.store.counts().0, 3, "the old ones");
    let touched = server.commit(of([touch("a1")])).unwrap();
    assert_eq!(touched.results[0].outcome, proto::Outcome::Touched);
    server.commit(of([put_lease("a2", "1", 30)])).unwrap();
    assert_eq!(server.store.counts().0, 5);
    assert_eq!(shown(&server, &new_key("a1"), ""), ("new:1".to_owned(), "2.0".to_owned()));
    // SV23: the record `a3` does not count. The new forms have the renewed leases.
    step(&mut server, 3, 4).unwrap();
    server.wait(25 * SECOND);
    assert_eq!(shown(&server, &new_key("a1"), "").0, "new:1");
    assert_eq!(shown(&server, &new_key("a2"), "").0, "new:1");
    assert_eq!(shown(&server, &new_key("a3"), "").0, "");
    server.wait(6 * SECOND);
    assert_eq!(shown(&server, &new_key("a1"), "").0, "");
}

#[test]
fn sv24_sv27_on_the_way_back_a_touch_writes_the_old_form_of_a_heartbeat_plan() {
    let mut server = of_heartbeats(&Server::new().engine);
    go_to(&mut server, Phase::F4);
    server.commit(of([put_lease("a1", "1", 30)])).unwrap();
    step(&mut server, 4, 3).unwrap();
    server.wait(12 * SECOND);
    assert_eq!(server.store.counts().0, 1, "the new one");
    server.commit(of([touch("a1")])).unwrap();
    assert_eq!(server.store.counts().0, 2);
    step(&mut server, 3, 2).unwrap();
    step(&mut server, 2, 1).unwrap();
    server.wait(25 * SECOND);
    assert_eq!(shown(&server, &key("a1", ""), "").0, "1");
    server.wait(6 * SECOND);
    assert_eq!(server.store.counts().0, 0);
}

#[test]
fn sv21_sv24_a_pass_deletes_new_records_of_a_heartbeat_plan_without_an_old_one() {
    let mut server = of_heartbeats(&Server::new().engine);
    server.commit(of([put("a1", "1")])).unwrap();
    step(&mut server, 0, 1).unwrap();
    server.commit(of([put("a1", "2")])).unwrap();
    step(&mut server, 1, 0).unwrap();
    server.commit(of([delete("a1")])).unwrap();
    go_to(&mut server, Phase::F3);
    server.wait(2 * SECOND);
    step(&mut server, 3, 4).unwrap();
    assert_eq!(shown(&server, &new_key("a1"), "").0, "");
    // What was written in F4 stays.
    server.commit(of([put_new("a2", "new:1")])).unwrap();
    step(&mut server, 4, 3).unwrap();
    server.wait(2 * SECOND);
    assert_eq!(shown(&server, &new_key("a2"), "").0, "new:1");
}
