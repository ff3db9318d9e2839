use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{Draft, RefusalCode};
use xds_store::engine::Engine;
use xds_store::phase::{Converter, Phase, PhaseStep, Plan, PlanSpec, Schemas};
use xds_store::read::{EventQuery, Filter, Knows, ListQuery, Payload, Position, ReadError, Reads};
use xds_store::record::named_owners;
use xds_store::store::{Action, Config, Event, LoadError, Store, Ticket};

use crate::driven::migrating::*;
use crate::driven::*;

fn text(payload: &str, version: &str) -> (String, String) {
    (payload.to_owned(), version.to_owned())
}

fn nothing() -> (String, String) {
    text("", "")
}

/// What readers of the old and of the new form get.
fn both(server: &Server) -> [(String, String); 2] {
    [shown(server, &key("a", ""), ""), shown(server, &new_key("a"), "")]
}

/// The row of the first violation, and the code.
fn refused(server: &mut Server, request: proto::CommitRequest) -> (RefusalCode, String) {
    let refused = server.commit(request).unwrap_err();
    match &refused.violations[0].why {
        Some(proto::violation::Why::Schema(why)) => (refused.code, why.rule.clone()),
        other => panic!("{other:?}"),
    }
}

fn forced(changes: impl Into<Vec<proto::Change>>) -> proto::CommitRequest {
    proto::CommitRequest { force_schema: true, ..of(changes) }
}

const FAILED: RefusalCode = RefusalCode::FailedPrecondition;

#[test]
fn sv14_a_phase_changes_by_one_step_that_names_the_present_phase() {
    let mut server = in_phase(Phase::F0);
    assert_eq!(step(&mut server, 1, 2).unwrap_err().code, RefusalCode::Aborted);
    assert_eq!(step(&mut server, 0, 2).unwrap_err().code, RefusalCode::InvalidArgument);
    assert_eq!(step(&mut server, 0, 0).unwrap_err().code, RefusalCode::InvalidArgument);
    assert_eq!(step(&mut server, 0, 1).unwrap().revision, 1);
    // Another operator wanted the same step.
    assert_eq!(step(&mut server, 0, 1).unwrap_err().code, RefusalCode::Aborted);
    let unknown = PhaseStep { plan: 2, from: Phase::F0, to: Phase::F1 };
    server.step(Event::Commit(Ticket(90), Draft::set_phase(unknown, "me".into(), false)));
    assert_eq!(server.answers[&90].as_ref().unwrap_err().code, RefusalCode::NotFound);
    // ST15.
    let next = PhaseStep { plan: 1, from: Phase::F1, to: Phase::F2 };
    server.step(Event::Commit(Ticket(91), Draft::set_phase(next, "me".into(), true)));
    assert!(server.answers[&91].is_ok());
    assert!(step(&mut server, 1, 2).is_ok(), "a dry run leaves no trace");
}

#[test]
fn sv12_sv28_a_phase_is_a_commit_of_the_log_that_is_not_replicated() {
    let mut server = in_phase(Phase::F2);
    let entries: Vec<_> = server.published.iter().map(|commit| &commit.entry).collect();
    assert_eq!(entries.iter().map(|entry| &*entry.identity).collect::<Vec<_>>(), ["token:op", "token:op"]);
    assert_eq!((server.store.head().counter, server.store.revision()), (0, 2));
    // A server that starts later, and one that follows the log, have the phase.
    let mut other = knowing(&server.engine);
    server.commit(of([put("a", "1")])).unwrap();
    step(&mut server, 2, 1).unwrap();
    other.step(Event::Changed);
    assert_eq!(refused(&mut other, of([put_new("a", "new:1")])), (FAILED, String::new()));
    assert_eq!(step(&mut other, 2, 1).unwrap_err().code, RefusalCode::Aborted);
    step(&mut other, 1, 2).unwrap();
}

#[test]
fn sv28_a_write_behind_a_step_of_the_same_batch_is_judged_in_the_new_phase() {
    let mut server = in_phase(Phase::F0);
    let (reader, now) = (server.engine.reader(), server.now);
    let first = Draft::parse(of([put("b", "1")]), "me".into()).unwrap();
    let mut actions = server.store.step(Event::Commit(Ticket(90), first), now, &*reader);
    let begin = Draft::set_phase(PhaseStep { plan: 1, from: Phase::F0, to: Phase::F1 }, "op".into(), false);
    let write = Draft::parse(of([put("a", "1")]), "me".into()).unwrap();
    for (ticket, draft) in [(91, begin), (92, write)] {
        actions.extend(server.store.step(Event::Commit(Ticket(ticket), draft), now, &*reader));
    }
    let [Action::Write(batch)] = &actions[..] else { panic!("{actions:?}") };
    let written = server.engine.commit(batch);
    server.step(Event::Written(written));
    let effects = &server.answers[&92].as_ref().unwrap().effects;
    assert_eq!(effects.iter().map(|effect| effect.key.to_proto()).collect::<Vec<_>>(), [new_key("a")]);
}

#[test]
fn sv13_a_server_without_a_begun_plan_does_not_start_and_stops_writing() {
    let mut server = in_phase(Phase::F0);
    let mut without = Server::on(server.engine.clone(), 2, server.now);
    step(&mut server, 0, 1).unwrap();
    without.step(Event::Changed);
    assert_eq!(without.code(of([put("a", "1")])), RefusalCode::Unavailable);
    assert!(without.store.read_only().unwrap().contains("thing-v2"));
    let load = |server: &Server, plans: Vec<PlanSpec>| {
        let mut config = Config::new(server.engine.limits(), 3);
        let plans = plans.into_iter().map(|spec| Plan::new(spec).unwrap()).collect();
        config.schemas = Schemas::default().with_plans(plans).unwrap().into();
        Store::load(&*server.engine.view().unwrap(), config, server.now, |_| {})
    };
    // The same number and name, and another new form.
    let other = PlanSpec { to_name: "v3/{name}".into(), ..spec() };
    for plans in [vec![], vec![other.clone()]] {
        let found = load(&server, plans);
        assert!(matches!(found, Err(LoadError::LacksPlan { number: 1, phase: 1, .. })), "{found:?}");
    }
    // A later minor version of the same new form.
    load(&server, vec![PlanSpec { to_version: "2.1".parse().unwrap(), ..spec() }]).unwrap();
    // In F0 the store may have new records until a pass has deleted them.
    server.commit(of([put("a", "1")])).unwrap();
    server.fates.push_back(Fate::Written);
    server.fates.extend([Fate::Full; 2]);
    step(&mut server, 1, 0).unwrap();
    assert!(load(&server, vec![]).is_err());
    server.wait(20 * SECOND);
    assert_eq!(server.store.counts().0, 1, "the old record");
    load(&server, vec![other]).unwrap();
    load(&server, vec![]).unwrap();
}

#[test]
fn sv9_a_plan_does_not_begin_over_records_of_its_new_form() {
    let mut before = Server::new();
    before.commit(of([put_new("a", "mine")])).unwrap();
    let mut server = knowing(&before.engine);
    let refused = step(&mut server, 0, 1).unwrap_err();
    assert_eq!(refused.code, FAILED);
    assert!(refused.message.contains("v2/a"), "{refused:?}");
    before.step(Event::Changed);
    before.commit(of([on_new(delete("a"))])).unwrap();
    server.step(Event::Changed);
    step(&mut server, 0, 1).unwrap();
}

#[test]
fn sv2_a_server_that_does_not_know_the_new_form_begins_no_plan() {
    let mut server = below(&Server::new().engine);
    assert_eq!(step(&mut server, 0, 1).unwrap_err().code, FAILED);
}

#[test]
fn sv37_in_f0_and_f1_the_new_form_is_neither_read_nor_written() {
    for phase in [Phase::F0, Phase::F1] {
        let mut server = in_phase(phase);
        server.commit(of([put("a", "1")])).unwrap();
        for act in [put_new("a", "new:1"), on_new(delete("a")), on_new(quarantine("a"))] {
            assert_eq!(refused(&mut server, of([act])), (FAILED, String::new()));
        }
        let exists = only_if(proto::condition::Is::Exists(true), put_new("a", "new:1"));
        assert_eq!(server.code(of([exists])), RefusalCode::NotFound, "nobody sees it");
        assert_eq!(both(&server), [text("1", "1.1"), nothing()]);
        assert_eq!(shown(&server, &key("a", ""), "2.0"), text("1", "1.1"));
    }
}

#[test]
fn sv16_a_write_changes_both_forms_in_one_commit_and_stamps_the_new_one() {
    for phase in [Phase::F1, Phase::F2, Phase::F3] {
        let mut server = in_phase(phase);
        let committed = server.commit(of([put("a", "1")])).unwrap();
        assert_eq!(committed.effects.len(), 1);
        let commit = server.published.last().unwrap();
        let [(_, old), (_, new)] = &commit.changed[..] else { panic!("{commit:?}") };
        let revision = committed.results[0].record.unwrap().0.to_string();
        assert_eq!((&new.mirror_of, &*old.mirror_of), (&revision, ""));
        assert_eq!(new.content.as_ref().unwrap().payload, "new:1");
        // Again it changes nothing.
        let again = server.commit(of([put("a", "1")])).unwrap();
        assert_eq!((again.revision, again.effects.len()), (committed.revision, 0));
    }
}

#[test]
fn sv5_sv39_row_w11_w12_either_form_is_written_to_both() {
    let mut server = in_phase(Phase::F2);
    server.commit(of([put("a", "1")])).unwrap();
    assert_eq!(both(&server), [text("1", "1.1+downgraded"), text("new:1", "2.0")]);
    // W12: what only the new form has is kept there.
    assert_eq!(server.outcome(of([put_new("a", "new:1|more")])), proto::Outcome::Updated);
    assert_eq!(both(&server), [text("1", "1.1+downgraded"), text("new:1|more", "2.0")]);
    assert_eq!(server.outcome(of([put_new("a", "new:1|more")])), proto::Outcome::Unchanged);
    // The old form has this content already.
    assert_eq!(server.outcome(of([put("a", "1")])), proto::Outcome::Unchanged);
    assert_eq!(both(&server)[1].0, "new:1|more");
    server.commit(of([put("a", "2")])).unwrap();
    assert_eq!(both(&server), [text("2", "1.1+downgraded"), text("new:2", "2.0")]);
    // A new resource by its new form.
    assert_eq!(server.outcome(of([put_new("ab", "new:3")])), proto::Outcome::Created);
    assert_eq!(shown(&server, &key("ab", ""), "").0, "3");
}

#[test]
fn sv20_row_w9_w10_w15_a_server_below_splits_a_record_by_force() {
    let mut server = in_phase(Phase::F2);
    server.commit(of([put("a", "1")])).unwrap();
    let mut low = below(&server.engine);
    assert_eq!(refused(&mut low, of([put("a", "2")])), (FAILED, "W9".to_owned()));
    low.commit(forced([put("a", "2")])).unwrap();
    server.step(Event::Changed);
    // SV17, SV20: the old form counts, and is converted for readers of the new one.
    assert_eq!(both(&server), [text("2", "1.1"), text("new:2", "2.0")]);
    let record = get(&server, &new_key("a"), "").unwrap().unwrap();
    assert!(record.is_split);
    // Its revision is good for a condition.
    let is = proto::condition::Is::Revision(record.revision);
    server.commit(of([only_if(is, put_new("a", "new:3"))])).unwrap();
    assert!(!get(&server, &new_key("a"), "").unwrap().unwrap().is_split);
    assert_eq!(both(&server), [text("3", "1.1+downgraded"), text("new:3", "2.0")]);
}

#[test]
fn sv19_a_server_below_writes_the_old_form_only_and_deletes_both() {
    let mut server = in_phase(Phase::F2);
    let mut low = below(&server.engine);
    let committed = low.commit(of([put("a", "1"), put("ab", "1")])).unwrap();
    assert!(committed.effects.is_empty());
    assert_eq!(refused(&mut low, of([put_new("a", "new:1")])), (FAILED, "W5".to_owned()));
    server.step(Event::Changed);
    assert_eq!(both(&server), [text("1", "1.1"), text("new:1", "2.0")]);
    server.commit(of([put("a", "2")])).unwrap();
    low.step(Event::Changed);
    low.commit(of([delete("a")])).unwrap();
    server.step(Event::Changed);
    assert_eq!(both(&server), [nothing(), nothing()]);
}

#[test]
fn sv6_row_rd8_rd9_rd10_rd11_the_form_depends_on_the_server_and_the_client() {
    let mut server = in_phase(Phase::F2);
    server.commit(of([put("a", "1")])).unwrap();
    let low = below(&server.engine);
    for knows in ["", "1.1", "2.0"] {
        assert_eq!(shown(&low, &key("a", ""), knows), text("1", "1.1+downgraded"), "{knows}");
    }
    for key in [key("a", ""), new_key("a")] {
        assert_eq!(shown(&server, &key, "2.0"), text("new:1", "2.0"));
        assert_eq!(shown(&server, &key, "1.1"), text("1", "1.1+downgraded"));
    }
    let record = get(&server, &key("a", ""), "2.0").unwrap().unwrap();
    assert_eq!(record.key, Some(new_key("a")), "the key is that of the form that was read");
}

#[test]
fn sv8_sv27_a_step_back_removes_the_mark() {
    let mut server = in_phase(Phase::F2);
    server.commit(of([put("a", "1")])).unwrap();
    assert_eq!(both(&server)[0], text("1", "1.1+downgraded"));
    step(&mut server, 2, 1).unwrap();
    assert_eq!(both(&server), [text("1", "1.1"), nothing()]);
    step(&mut server, 1, 0).unwrap();
    // In F0 nobody writes the new form, so it is outdated afterwards.
    server.commit(of([put("a", "2")])).unwrap();
    go_to(&mut server, Phase::F2);
    assert_eq!(both(&server), [text("2", "1.1"), text("new:2", "2.0")]);
}

#[test]
fn sv17_a_stamped_new_record_without_an_old_one_counts_as_absent() {
    let mut server = in_phase(Phase::F2);
    server.commit(of([put("a", "1")])).unwrap();
    step(&mut server, 2, 1).unwrap();
    step(&mut server, 1, 0).unwrap();
    server.commit(of([delete("a")])).unwrap();
    go_to(&mut server, Phase::F3);
    assert_eq!(both(&server), [nothing(), nothing()]);
    let absent = only_if(proto::condition::Is::Absent(true), put_new("a", "new:2"));
    server.commit(of([absent])).unwrap();
    assert_eq!(both(&server), [text("2", "1.1+downgraded"), text("new:2", "2.0")]);
}

#[test]
fn sv18_deletes_quarantines_touches_and_owners_apply_to_both_forms() {
    let mut server = in_phase(Phase::F3);
    let by = |owner: &str, changes: Vec<proto::Change>| proto::CommitRequest {
        owner: owner.into(),
        ..of(changes)
    };
    server.commit(by("shop", vec![put_lease("a", "1", 60)])).unwrap();
    server.commit(by("ads", vec![on_new(put_lease("a", "new:1", 60))])).unwrap();
    let states = |server: &Server| -> Vec<proto::RecordState> {
        let mut states = Vec::new();
        let mut config = Config::new(server.engine.limits(), 9);
        config.schemas = schemas().into();
        Store::load(&*server.engine.view().unwrap(), config, server.now, |loaded| {
            let is_thing = loaded.key.type_url().as_str().starts_with("example.com");
            states.extend(Some(loaded.state).filter(|_| is_thing));
        })
        .unwrap();
        states
    };
    let owners = |state: &proto::RecordState| named_owners(state).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(states(&server).iter().map(owners).collect::<Vec<_>>(), [["ads", "shop"], ["ads", "shop"]]);
    // A touch of either form renews both leases, and so a third of them later.
    server.wait(30 * SECOND);
    server.commit(of([on_new(touch("a"))])).unwrap();
    let ends: Vec<_> = states(&server).iter().map(|state| state.expires_at.unwrap().seconds).collect();
    assert_eq!(ends, [91, 91]);
    assert!(!get(&server, &new_key("a"), "").unwrap().unwrap().is_split);

    server.commit(of([on_new(quarantine("a"))])).unwrap();
    assert!(states(&server).iter().all(|state| state.quarantined.is_some()));
    assert!(!get(&server, &new_key("a"), "").unwrap().unwrap().is_split);
    // A prune of an owner releases the resource once.
    let prune = proto::CommitRequest { prune: true, ..by("ads", vec![]) };
    let pruned = server.commit(prune).unwrap();
    let outcomes: Vec<_> = pruned.effects.iter().map(|effect| effect.result.outcome).collect();
    assert!(outcomes.contains(&proto::Outcome::Released), "{outcomes:?}");
    assert_eq!(states(&server).iter().map(owners).collect::<Vec<_>>(), [["shop"], ["shop"]]);
    assert_eq!(server.outcome(by("shop", vec![on_new(delete("a"))])), proto::Outcome::Deleted);
    assert_eq!(both(&server), [nothing(), nothing()]);
}

#[test]
fn sv18_a_prune_keeps_a_resource_that_the_commit_names_in_either_form() {
    let mut server = in_phase(Phase::F2);
    let pruning = |changes: Vec<proto::Change>| proto::CommitRequest {
        owner: "shop".into(),
        prune: true,
        ..of(changes)
    };
    server.commit(pruning(vec![put("a", "1"), put("ab", "1")])).unwrap();
    server.commit(pruning(vec![put_new("a", "new:2"), put("ab", "1")])).unwrap();
    assert_eq!(both(&server), [text("2", "1.1+downgraded"), text("new:2", "2.0")]);
    server.commit(pruning(vec![put("a", "2")])).unwrap();
    assert_eq!(shown(&server, &new_key("ab"), ""), nothing());
}

#[test]
fn sv10_sv11_a_put_that_cannot_be_converted_is_refused() {
    let mut server = in_phase(Phase::F0);
    server.commit(of([put("a", "odd")])).unwrap();
    go_to(&mut server, Phase::F2);
    for act in [put("a", "odd 2"), put_new("a", "new:odd"), put_new("a", "other")] {
        assert_eq!(refused(&mut server, of([act])), (FAILED, String::new()));
    }
    // What is there already stays, and readers of the new form get the reason.
    assert_eq!(shown(&server, &key("a", ""), ""), text("odd", "1.1"));
    assert!(get(&server, &new_key("a"), "").unwrap_err().to_string().contains("an odd payload"));
    server.commit(of([quarantine("a"), put("ab", "1")])).unwrap();
    server.commit(of([delete("a")])).unwrap();
}

#[test]
fn st7_the_forms_of_a_resource_are_not_changed_twice_in_a_commit() {
    let mut server = in_phase(Phase::F2);
    assert_eq!(server.code(of([put("a", "1"), put_new("a", "new:2")])), RefusalCode::InvalidArgument);
    server.commit(of([put("a", "1"), put_new("ab", "new:2")])).unwrap();
}

#[test]
fn sv9_names_outside_of_a_plan_are_not_affected() {
    let mut server = in_phase(Phase::F2);
    assert!(server.commit(of([put("b", "1")])).unwrap().effects.is_empty());
    assert_eq!(shown(&server, &key("b", ""), ""), text("1", "1.1"));
}

/// The names that a list has, and those of the events behind a revision.
fn listed(server: &Server, after: u64) -> (Vec<String>, Result<Vec<String>, ReadError>) {
    let view = server.engine.view().unwrap();
    let reads = Reads::with_schemas(&*view, &server.store.config().schemas).unwrap();
    let filter = Filter::parse(None).unwrap();
    let list = ListQuery {
        filter: &filter,
        at: reads.head().revision,
        now: server.now,
        may_read: &|_| true,
        knows: Knows::ALL,
        after: None,
        taken: 0,
        limit: 10,
        limit_bytes: 1 << 20,
        scan_limit: 100,
    };
    let names =
        reads.list(list).unwrap().records.iter().map(|version| version.key.name().to_string()).collect();
    (names, filtered(server, after, proto::Filter::default()))
}

/// The events after a revision for a watch with a filter.
fn filtered(server: &Server, after: u64, filter: proto::Filter) -> Result<Vec<String>, ReadError> {
    let view = server.engine.view().unwrap();
    let reads = Reads::with_schemas(&*view, &server.store.config().schemas).unwrap();
    let filter = Filter::parse(Some(filter)).unwrap();
    let events = EventQuery {
        filter: &filter,
        may_read: &|_| true,
        payload: Payload::With,
        knows: Knows::ALL,
        limit: 10,
        limit_bytes: 1 << 20,
        scan_limit: 100,
    };
    let read = reads.events(&mut Position::after(after), events)?;
    let name = |event: proto::Event| event.record.unwrap().key.unwrap().name;
    Ok(read.events.into_iter().map(name).collect())
}

#[test]
fn sv29_sv36_lists_and_watches_have_the_forms_that_the_phase_shows() {
    let mut server = in_phase(Phase::F1);
    server.commit(of([put("a", "1")])).unwrap();
    let (names, events) = listed(&server, 1);
    assert_eq!((names, events.unwrap()), (vec!["a".to_owned()], vec!["a".to_owned()]));
    server.commit(of([delete("a")])).unwrap();
    assert_eq!(listed(&server, 2).1.unwrap(), ["a"], "nobody saw the new form, so nobody sees its end");
    server.commit(of([put("a", "1")])).unwrap();

    step(&mut server, 1, 2).unwrap();
    // New forms appear without a change, so a watch starts again behind the step.
    let ended = listed(&server, 4).1.unwrap_err();
    assert!(matches!(ended, ReadError::FormsChanged { revision: 5, from: 1, to: 2, .. }), "{ended}");
    assert!(ended.to_string().contains("from F1 to F2 of the plan thing-v2"), "{ended}");
    // Watches that cannot have a record of either form go on.
    let other = proto::Filter { type_urls: vec!["t/other".into()], ..Default::default() };
    assert_eq!(filtered(&server, 4, other).unwrap(), [""; 0]);
    let old = key("a", "").type_url;
    let elsewhere = proto::Filter { type_urls: vec![old], names: vec!["b/*".into()], ..Default::default() };
    assert!(filtered(&server, 4, elsewhere).is_err(), "a pattern may match");
    let named = |name: &str| proto::Filter { names: vec![name.into()], ..Default::default() };
    assert!(filtered(&server, 4, named("v2/a")).is_err() && filtered(&server, 4, named("a")).is_err());
    assert_eq!(listed(&server, 5).0, ["a", "v2/a"]);
    server.commit(of([put("a", "2")])).unwrap();
    assert_eq!(listed(&server, 5).1.unwrap(), ["a", "v2/a"]);
    // A new form that does not count is not listed.
    below(&server.engine).commit(forced([put("a", "3")])).unwrap();
    assert_eq!(listed(&server, 6).0, ["a"]);
}

#[test]
fn sv10_clusters_get_new_names_unless_they_have_aliases() {
    let cluster = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
    let renaming = PlanSpec {
        from_type: cluster.into(),
        from_names: vec!["shop-*".into()],
        to_type: cluster.into(),
        to_name: "xdstp://acme/envoy.config.cluster.v3.Cluster/{name}".into(),
        up: Converter::Identity,
        down: Converter::Identity,
        heartbeat: false,
        rewrite_references: false,
        ..spec()
    };
    let schemas = Schemas::default().with_plans(vec![Plan::new(renaming).unwrap()]).unwrap();
    let engine = Server::new().engine;
    let mut server = Server::with(engine, SECOND, |config| config.schemas = schemas.into());
    let key =
        |name: &str| proto::Key { type_url: cluster.into(), name: name.into(), when: "env=prod".into() };
    let (old, new) = (key("shop-a"), key("xdstp://acme/envoy.config.cluster.v3.Cluster/shop-a"));
    let put = |aliases: &[&str]| {
        let aliases = aliases.iter().map(|alias| (*alias).to_owned()).collect();
        let payload = "\n\u{6}shop-a\u{10}\u{3}".into();
        let content = proto::Content { payload, aliases, ..Default::default() };
        let put = proto::Put { content: Some(content), ..Default::default() };
        let act = Some(proto::change::Act::Put(put));
        of([proto::Change { key: Some(old.clone()), act, condition: None }])
    };
    server.commit(put(&["alias"])).unwrap();
    go_to(&mut server, Phase::F3);
    server.wait(2 * SECOND);
    // D24: nothing is lost, and the plan does not go on.
    assert!(!server.store.passes()[0].is_clean);
    assert!(server.commit(put(&["other"])).unwrap_err().message.contains("aliases"));
    server.commit(put(&[])).unwrap();
    server.wait(70 * SECOND);
    let content = |key: &proto::Key| get(&server, key, "").unwrap().unwrap().content.unwrap();
    let renamed = content(&new);
    assert!(renamed.payload[2..].starts_with(new.name.as_bytes()));
    // X16: the endpoints keep their name.
    assert!(renamed.payload.ends_with(b"shop-a"));
    step(&mut server, 3, 4).unwrap();
    assert_eq!(get(&server, &old, "").unwrap().unwrap().key, Some(old.clone()));
}

#[test]
fn sv15_a_server_of_the_store_that_lacks_the_plan_prevents_its_steps_while_it_is_alive() {
    let mut server = knowing(&Server::new().engine);
    assert!(server.store.liveness(true).is_none(), "ST5: no commit was made");
    server.commit(of([put("x", "1")])).unwrap();
    let mut old = Server::on(server.engine.clone(), 7, server.now);
    let say = |server: &mut Server, is_alive| {
        let draft = server.store.liveness(is_alive).unwrap();
        let ticket = server.draft(draft);
        server.answers.remove(&ticket).unwrap().unwrap().revision
    };
    let counter = server.store.head().counter;
    let revision = say(&mut old, true);
    assert_eq!(say(&mut old, true), revision, "a repetition renews the lease alone");
    server.step(Event::Changed);
    say(&mut server, true);
    let gates = |refused: xds_store::commit::Refused| match &refused.violations[..] {
        [proto::Violation { why: Some(proto::violation::Why::Gate(gate)), .. }] => {
            (gate.gate.clone(), gate.node.clone())
        }
        other => panic!("{other:?}"),
    };
    let lacks = ("server_lacks_plan".to_owned(), format!("{:016x}", 7));
    assert_eq!(gates(step(&mut server, 0, 1).unwrap_err()), lacks);
    // It said that it stops, or it was killed.
    let mut ended = Server::on(server.engine.clone(), 8, server.now);
    say(&mut ended, true);
    say(&mut ended, false);
    server.step(Event::Changed);
    assert_eq!(gates(step(&mut server, 0, 1).unwrap_err()), lacks);
    server.wait(31 * SECOND);
    step(&mut server, 0, 1).unwrap();
    assert_eq!(server.store.head().counter, counter, "it is not replicated");
}
