use xds_core::FieldPath;
use xds_proto::type_url;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{Draft, RefusalCode, Refused};
use xds_store::engine::MemoryEngine;
use xds_store::key::RecordKey;
use xds_store::phase::{Converter, Phase, PhaseStep, Plan, PlanSpec, Schemas};
use xds_store::record::{RecordRevision, Uid};
use xds_store::rules::FieldSource;
use xds_store::store::ReferrersQuery;

use crate::driven::envoy::*;
use crate::driven::migrating::step;
use crate::driven::*;

/// Clusters `shop-*` get `xdstp://` names.
fn schemas() -> Schemas {
    Schemas::default().with_plans(vec![Plan::new(spec()).unwrap()]).unwrap()
}

fn spec() -> PlanSpec {
    PlanSpec {
        number: 1,
        name: "new-names".into(),
        from_type: type_url::CLUSTER.into(),
        from_names: vec!["shop-*".into()],
        to_type: type_url::CLUSTER.into(),
        to_name: "xdstp://acme/envoy.config.cluster.v3.Cluster/{name}".into(),
        to_version: "2.0".parse().unwrap(),
        up: Converter::Identity,
        down: Converter::Identity,
        heartbeat: false,
        rewrite_references: false,
    }
}

/// A server whose plan rewrites references.
fn rewriting(engine: &MemoryEngine, spec: PlanSpec) -> Server {
    let plan = Plan::new(PlanSpec { rewrite_references: true, ..spec }).unwrap();
    let schemas = Schemas::default().with_plans(vec![plan]).unwrap();
    Server::with(engine.clone(), SECOND, |config| config.schemas = schemas.into())
}

fn payload_of(change: proto::Change) -> Vec<u8> {
    match change.act {
        Some(proto::change::Act::Put(put)) => put.content.unwrap().payload.to_vec(),
        other => panic!("{other:?}"),
    }
}

fn stored(server: &Server, key: &proto::Key) -> (Vec<u8>, u64) {
    let state = server.state(key).unwrap();
    (state.content.unwrap().payload.to_vec(), state.generation)
}

const NEW: &str = "xdstp://acme/envoy.config.cluster.v3.Cluster/shop-a";

fn server() -> Server {
    let engine: MemoryEngine = Server::new().engine;
    Server::with(engine, SECOND, |config| config.schemas = schemas().into())
}

/// A store with the cluster `shop-a`, in a phase.
fn in_phase(phase: Phase) -> Server {
    let mut server = server();
    server.commit(of([eds_cluster("shop-a", "e"), endpoints("e")])).unwrap();
    go_until(&mut server, phase);
    server
}

/// Goes to a phase, with the pass before F4.
fn go_until(server: &mut Server, phase: Phase) {
    for number in 1..=phase.number() {
        for _ in 0..100 {
            if number != 4 || server.store.passes().first().is_some_and(|pass| pass.is_clean) {
                break;
            }
            server.wait(SECOND);
        }
        step(server, number - 1, number).unwrap();
    }
}

fn live(server: &Server, name: &str) -> Option<proto::State> {
    let key = cluster_key(name);
    let state = server.state(&key)?;
    (state.lifecycle() != proto::State::Deleted).then(|| state.lifecycle())
}

fn missing(server: &mut Server, name: &str) -> bool {
    let refused = server.commit(of([routes("new", &[name])]));
    let Err(refused) = refused else {
        server.commit(of([delete_at(routes_key("new"))])).unwrap();
        return false;
    };
    assert!(
        matches!(refused.violations[0].why, Some(proto::violation::Why::MissingTarget(_))),
        "{refused:?}"
    );
    true
}

#[test]
fn sv30_sg3_a_reference_may_name_either_form_that_can_be_seen() {
    for number in 0..=5 {
        let phase = Phase::of_number(number).unwrap();
        let mut server = in_phase(phase);
        // In F5 clients do not find the old one.
        assert_eq!(missing(&mut server, "shop-a"), number == 5, "{phase:?}");
        assert_eq!(missing(&mut server, NEW), number < 2, "{phase:?}");
        assert!(missing(&mut server, "shop-b"));
    }
}

#[test]
fn sv30_sg4_a_reference_to_one_form_keeps_both() {
    for number in 2..=5 {
        let phase = Phase::of_number(number).unwrap();
        for named in if phase == Phase::F5 { &[NEW][..] } else { &["shop-a", NEW] } {
            let mut server = in_phase(phase);
            server.commit(of([routes("web", &[named])])).unwrap();
            for asked in ["shop-a", NEW] {
                let key = RecordKey::parse(&cluster_key(asked)).unwrap();
                let query =
                    ReferrersQuery { key: &key, targets: &[], may_read: |_: &_| true, limit: 9, depth: 9 };
                let found = server.store.referrers(&query);
                let forms: Vec<_> = found.referrers.iter().map(|(_, form)| form.name().to_string()).collect();
                assert!(found.exists && forms == [*named] && found.blockers.len() == 1, "{found:?}");
            }
            for deleted in ["shop-a", NEW] {
                if (phase, deleted) == (Phase::F5, "shop-a") {
                    continue;
                }
                let refused = server.commit(of([delete_at(cluster_key(deleted))])).unwrap_err();
                assert_eq!(refused.violations.len(), 1, "{refused:?}");
                let Some(proto::violation::Why::Referred(referred)) = &refused.violations[0].why else {
                    panic!("{refused:?}")
                };
                let field = "virtual_hosts.routes.route.cluster";
                assert_eq!(
                    (referred.count, &*referred.by[0].field),
                    (1, field),
                    "{phase:?} {named} {deleted}"
                );
                assert_eq!(referred.by[0].target.as_ref().unwrap().name, *named);
            }
            // Together they go, and the endpoints with the last cluster that names them (SG5).
            let deleted = if phase == Phase::F5 { NEW } else { "shop-a" };
            server.commit(of([delete_at(cluster_key(deleted)), delete_at(routes_key("web"))])).unwrap();
            assert_eq!((live(&server, "shop-a"), live(&server, NEW)), (None, None), "{phase:?}");
            assert!(
                server.state(&endpoints_key("e")).unwrap().lifecycle() == proto::State::Deleted,
                "{phase:?}"
            );
        }
    }
}

#[test]
fn sv30_sg7_a_deletion_in_progress_is_that_of_both_forms_and_ends_with_the_last_reference() {
    for (number, named, asked) in [
        (1, "shop-a", "shop-a"),
        (2, NEW, "shop-a"),
        (3, "shop-a", NEW),
        (4, "shop-a", "shop-a"),
        (4, NEW, "shop-a"),
        (5, NEW, NEW),
    ] {
        let phase = Phase::of_number(number).unwrap();
        let mut server = in_phase(phase);
        server.commit(of([routes("web", &[named])])).unwrap();
        let forms =
            [live(&server, "shop-a"), live(&server, NEW)].map(|state| state.map(|_| proto::State::Deleting));
        let committed = server.commit(of([drain_at(cluster_key(asked))])).unwrap();
        assert_eq!(committed.results[0].outcome, proto::Outcome::Deleting, "{phase:?}");
        assert_eq!(committed.results[0].blocked_by.len(), 1, "{phase:?}");
        assert_eq!([live(&server, "shop-a"), live(&server, NEW)], forms, "{phase:?}");
        assert_eq!(server.code(of([routes("new", &["shop-a"])])), RefusalCode::FailedPrecondition);
        // A server that starts now knows what the deletion waits for.
        let mut server =
            Server::with(server.engine.clone(), server.now, |config| config.schemas = schemas().into());
        server.commit(of([delete_at(routes_key("web"))])).unwrap();
        assert_eq!((live(&server, "shop-a"), live(&server, NEW)), (None, None), "{phase:?}");
    }
}

#[test]
fn sv30_a_step_that_hides_a_form_waits_until_no_record_names_it() {
    let gate = |refused: Refused| match &refused.violations[0].why {
        Some(proto::violation::Why::Gate(gate)) => (gate.gate.clone(), gate.count),
        why => panic!("{why:?}"),
    };
    let mut server = in_phase(Phase::F4);
    server.commit(of([cluster("shop-b"), routes("web", &["shop-a", "shop-b", NEW])])).unwrap();
    assert_eq!(gate(step(&mut server, 4, 5).unwrap_err()), ("still_named".into(), 2));
    server.commit(of([routes("web", &[NEW])])).unwrap();
    step(&mut server, 4, 5).unwrap();
    for number in (3..=5).rev() {
        step(&mut server, number, number - 1).unwrap();
    }
    for _ in 0..100 {
        server.wait(SECOND);
    }
    assert_eq!(gate(step(&mut server, 2, 1).unwrap_err()), ("still_named".into(), 1));
    server.commit(of([routes("web", &["shop-a"])])).unwrap();
    step(&mut server, 2, 1).unwrap();
    assert_eq!(live(&server, "shop-b"), Some(proto::State::Live), "SV27");
}

#[test]
fn sv18_sg15_the_owners_of_one_form_protect_the_other() {
    for number in 2..=4 {
        let mut server = server();
        let by =
            |owner: &str, change: proto::Change| proto::CommitRequest { owner: owner.into(), ..of([change]) };
        server.commit(by("shop", cluster("shop-a"))).unwrap();
        go_until(&mut server, Phase::of_number(number).unwrap());
        for name in ["shop-a", NEW] {
            let refused = server.commit(by("ads", eds_cluster(name, "other"))).unwrap_err();
            assert!(
                matches!(refused.violations[0].why, Some(proto::violation::Why::Owned(_))),
                "{refused:?}"
            );
            assert_eq!(server.code(by("ads", delete_at(cluster_key(name)))), RefusalCode::FailedPrecondition);
        }
        server.commit(by("shop", eds_cluster(NEW, "other"))).unwrap();
        assert_eq!(server.outcome(by("shop", delete_at(cluster_key("shop-a")))), proto::Outcome::Deleted);
    }
}

#[test]
fn sv30_in_f4_other_records_get_the_new_name() {
    let mut server = rewriting(&Server::new().engine, spec());
    server.commit(of([cluster("shop-a"), cluster("shop-b"), cluster("other")])).unwrap();
    let both = ["shop-a", "other", "shop-b", "shop-a"];
    server.commit(of([routes("r", &both), routes("s", &["other"])])).unwrap();
    let quarantined = proto::Quarantine { reason: "bad".into(), serve_nothing: false };
    server.commit(of([routes("q", &["shop-a"])])).unwrap();
    server.commit(of([routes("q", &["shop-a", "other"])])).unwrap();
    let quarantine = proto::change::Act::Quarantine(quarantined);
    server
        .commit(of([proto::Change { key: Some(routes_key("q")), act: Some(quarantine), condition: None }]))
        .unwrap();
    go_until(&mut server, Phase::F3);
    server.wait(2 * SECOND);
    assert_eq!(stored(&server, &routes_key("r")), (payload_of(routes("r", &both)), 1));
    step(&mut server, 3, 4).unwrap();
    server.wait(2 * SECOND);
    let new_b = &*NEW.replace("shop-a", "shop-b");
    let expected = payload_of(routes("r", &[NEW, "other", new_b, NEW]));
    assert_eq!(stored(&server, &routes_key("r")), (expected, 2));
    assert_eq!(stored(&server, &routes_key("s")).1, 1);
    // Both contents of a quarantined record have it, and the record stays quarantined (SG2).
    let state = server.state(&routes_key("q")).unwrap();
    assert_eq!(state.content.unwrap().payload, payload_of(routes("q", &[NEW, "other"])));
    let served = state.quarantined.unwrap().serve.unwrap();
    assert_eq!(served.payload, payload_of(routes("q", &[NEW])));
    // SV22: nothing more is written, until somebody writes an old name.
    let before = server.engine_revision();
    server.wait(600 * SECOND);
    assert!(server.engine_revision() == before && server.store.passes()[0].is_clean);
    server.commit(of([routes("s", &["shop-a"])])).unwrap();
    server.wait(61 * SECOND);
    assert_eq!(stored(&server, &routes_key("s")).0, payload_of(routes("s", &[NEW])));
    let last = server.published.iter().rfind(|commit| commit.changed.len() > 1).unwrap();
    assert_eq!(last.entry.identity, "migration");
}

#[test]
fn sv30_the_job_resumes_and_changes_each_record_once_and_never_a_newer_write() {
    let mut server = rewriting(&Server::new().engine, spec());
    server.commit(of([cluster("shop-a"), cluster("other")])).unwrap();
    let name = |number: usize| format!("r{number:03}");
    let all: Vec<_> = (0..350).map(|number| routes(&name(number), &["shop-a"])).collect();
    server.commit(of(all)).unwrap();
    go_until(&mut server, Phase::F4);
    server.wait(SECOND / 10);
    let is_new = |server: &Server, number: usize| {
        stored(server, &routes_key(&name(number))).0 == payload_of(routes(&name(number), &[NEW]))
    };
    assert!(is_new(&server, 0) && !is_new(&server, 349), "1,000 records in a second");
    // Another server goes on where this one crashed. Meanwhile somebody writes and deletes.
    let mut next = rewriting(&server.engine, spec());
    next.now = server.now;
    let (written, deleted) = (name(340), name(341));
    next.commit(of([routes(&written, &["other", "shop-a"]), delete_at(routes_key(&deleted))])).unwrap();
    next.wait(5 * SECOND);
    assert_eq!(stored(&next, &routes_key(&written)).0, payload_of(routes(&written, &["other", NEW])));
    assert_eq!(next.state(&routes_key(&deleted)).unwrap().lifecycle(), proto::State::Deleted);
    for number in (0..350).filter(|number| !(340..342).contains(number)) {
        assert!(is_new(&next, number) && stored(&next, &routes_key(&name(number))).1 == 2, "{number}");
    }
    // SG4: what named the old form keeps the new one.
    assert_eq!(next.code(of([delete_at(cluster_key(NEW))])), RefusalCode::FailedPrecondition);
}

#[test]
fn sv27_sv30_on_the_way_back_other_records_get_the_old_name_again() {
    let mut server = rewriting(&Server::new().engine, spec());
    // The cluster `shop-b` is of the plan itself.
    let puts = [cluster("shop-a"), cluster("other"), aggregate("shop-b", "shop-a")];
    server.commit(of(puts)).unwrap();
    let all: Vec<_> = (0..250).map(|number| routes(&format!("r{number}"), &["shop-a", "other"])).collect();
    server.commit(of(all)).unwrap();
    go_until(&mut server, Phase::F4);
    server.wait(5 * SECOND);
    let new_b = &*NEW.replace("shop-a", "shop-b");
    assert_eq!(stored(&server, &cluster_key(new_b)).0, payload_of(aggregate(new_b, NEW)));
    server.commit(of([routes("own", &[NEW])])).unwrap();
    step(&mut server, 4, 3).unwrap();
    step(&mut server, 3, 2).unwrap();
    server.wait(SECOND / 10);
    assert!(step(&mut server, 2, 1).is_err(), "the gate way_back_not_clean");
    server.wait(5 * SECOND);
    for number in 0..250 {
        let name = format!("r{number}");
        let expected = payload_of(routes(&name, &["shop-a", "other"]));
        assert_eq!(stored(&server, &routes_key(&name)).0, expected, "{number}");
    }
    assert_eq!(stored(&server, &routes_key("own")).0, payload_of(routes("own", &["shop-a"])));
    assert_eq!(stored(&server, &cluster_key("shop-b")).0, payload_of(aggregate("shop-b", "shop-a")));
    let new = server.state(&cluster_key(new_b)).unwrap();
    let old = RecordRevision::of(&server.state(&cluster_key("shop-b")).unwrap());
    assert_eq!(new.mirror_of, old.to_string(), "the new form belongs to the old one");
    step(&mut server, 2, 1).unwrap();
    step(&mut server, 1, 0).unwrap();
}

#[test]
fn sv30_x16_a_cluster_names_its_renamed_endpoints() {
    let new = "xdstp://acme/envoy.config.endpoint.v3.ClusterLoadAssignment/";
    let of_endpoints = || PlanSpec {
        from_type: type_url::CLUSTER_LOAD_ASSIGNMENT.into(),
        from_names: vec!["e-*".into()],
        to_type: type_url::CLUSTER_LOAD_ASSIGNMENT.into(),
        to_name: format!("{new}{{name}}"),
        ..spec()
    };
    let mut server = rewriting(&Server::new().engine, of_endpoints());
    let own = proto::Key { name: "e-b".into(), ..cluster_key("") };
    let with_own_name = |config: &[u8]| [&b"\x0a\x03e-b\x10\x03"[..], config].concat();
    let own_endpoints = put_at(own.clone(), with_own_name(b""));
    let puts = [own_endpoints, eds_cluster("c", "e-a"), endpoints("e-a"), endpoints("e-b")];
    server.commit(of(puts)).unwrap();
    go_until(&mut server, Phase::F4);
    server.wait(2 * SECOND);
    let expected = payload_of(eds_cluster("c", &format!("{new}e-a")));
    assert_eq!(stored(&server, &cluster_key("c")).0, expected);
    let name = format!("{new}e-b");
    let length = u8::try_from(name.len()).unwrap();
    let config = [&[0x1a, length + 2, 0x12, length], name.as_bytes()].concat();
    assert_eq!(stored(&server, &own).0, with_own_name(&config));
    // SG5: the endpoints are used, by their new name.
    assert!(server.state(&endpoints_key(&name)).unwrap().lifecycle() == proto::State::Live);
}

/// The resource owners of a record: their names, and whether their uids are those of their records.
fn owners_of(server: &Server, owned: &proto::Key) -> Vec<(String, bool)> {
    let state = server.state(owned).unwrap();
    let present = state.owners.into_iter().filter(|owner| owner.is_present);
    let owner = |owner: proto::OwnerState| match owner.owner.unwrap().who.unwrap() {
        proto::owner::Who::Resource(owner) => {
            let key = owner.key.unwrap();
            (key.name.clone(), owner.uid == uid_of(server, &key))
        }
        proto::owner::Who::Name(name) => panic!("the named owner {name}"),
    };
    present.map(owner).collect()
}

fn uid_of(server: &Server, key: &proto::Key) -> String {
    let incarnation = server.state(key).unwrap().incarnation;
    Uid::of(&RecordKey::parse(key).unwrap(), incarnation).to_string()
}

fn exists(server: &Server, name: &str) -> bool {
    server.store.exists(&RecordKey::parse(&key(name, "")).unwrap())
}

fn owned_by(mut change: proto::Change, owner: proto::Key, uid: String) -> proto::Change {
    let owner = proto::ResourceOwner { key: Some(owner), uid, ..Default::default() };
    if let Some(proto::change::Act::Put(put)) = &mut change.act {
        put.owners = vec![owner];
    }
    change
}

#[test]
fn sv30_sg20_in_f4_owners_get_the_new_name_and_on_the_way_back_the_old_one() {
    let mut server = rewriting(&Server::new().engine, spec());
    server.commit(of([cluster("shop-a"), cluster("shop-b")])).unwrap();
    let uid = uid_of(&server, &cluster_key("shop-a"));
    server.commit(of([owned_by(put("x", "1"), cluster_key("shop-a"), uid)])).unwrap();
    // SG19: this one is of another record with this name, and is dropped in time.
    let other = uid_of(&server, &cluster_key("shop-b"));
    server.commit(of([owned_by(put("y", "1"), cluster_key("shop-a"), other)])).unwrap();
    go_until(&mut server, Phase::F4);
    server.wait(2 * SECOND);
    let thing = key("x", "");
    assert_eq!(owners_of(&server, &thing), [(NEW.to_owned(), true)]);
    assert_eq!(server.state(&thing).unwrap().generation, 1, "its content is the same");
    let before = server.engine_revision();
    server.wait(100 * SECOND);
    assert!(server.engine_revision() == before && server.store.passes()[0].is_clean);
    step(&mut server, 4, 5).unwrap();
    server.wait(600 * SECOND);
    assert_eq!(owners_of(&server, &thing), [(NEW.to_owned(), true)]);
    assert!(!exists(&server, "y"));
    for from in [5, 4, 3] {
        step(&mut server, from, from - 1).unwrap();
    }
    server.wait(5 * SECOND);
    assert_eq!(owners_of(&server, &thing), [("shop-a".to_owned(), true)]);
    step(&mut server, 2, 1).unwrap();
    server.wait(600 * SECOND);
    server.commit(of([delete_at(cluster_key("shop-a"))])).unwrap();
    server.wait(SECOND);
    assert!(!exists(&server, "x"));
}

#[test]
fn sg20_an_owner_may_have_the_uid_of_its_other_form() {
    let mut server = in_phase(Phase::F4);
    // A reader of the old form gets the identity of the new one, which counts.
    let uid = uid_of(&server, &cluster_key(NEW));
    server.commit(of([owned_by(put("x", "1"), cluster_key("shop-a"), uid)])).unwrap();
    server.wait(600 * SECOND);
    assert!(exists(&server, "x"));
    server.commit(of([delete_at(cluster_key(NEW))])).unwrap();
    server.wait(SECOND);
    assert!(!exists(&server, "x"));
}

#[test]
fn sv30_sg11_fields_of_rules_get_the_new_name_too() {
    let mut server = rewriting(&Server::new().engine, spec());
    server.commit(of([cluster("shop-a"), cluster("other")])).unwrap();
    let fields = FieldSource::new(|_, field| (field == "backends.cluster").then(|| FieldPath::new([4, 1])));
    let schemas = server.store.config().schemas.clone();
    let mut server = Server::with(server.engine.clone(), server.now, |config| {
        (config.fields, config.schemas) = (fields, schemas);
    });
    let on_delete = proto::OnDelete::Block;
    let (type_url, target) = (TYPE, type_url::CLUSTER);
    let rule = Rule { type_url, field: "backends.cluster", target, on_delete, external: &[], collect: false };
    server.commit(of([rule.put("things")])).unwrap();
    let thing = |names: &[&str]| {
        let backends: Vec<_> = names.iter().map(|name| path(&[4, 1], name)).collect();
        [path(&[9], "shop-a"), backends.concat()].concat()
    };
    server.commit(of([put_at(key("x", ""), thing(&["shop-a", "other", "shop-a"]))])).unwrap();
    go_until(&mut server, Phase::F4);
    server.wait(2 * SECOND);
    assert_eq!(stored(&server, &key("x", "")), (thing(&[NEW, "other", NEW]), 2));
    // Nothing names the old form any more.
    step(&mut server, 4, 5).unwrap();
    assert_eq!(server.code(of([delete_at(cluster_key(NEW))])), RefusalCode::FailedPrecondition);
    for from in [5, 4, 3] {
        step(&mut server, from, from - 1).unwrap();
    }
    server.wait(5 * SECOND);
    assert_eq!(stored(&server, &key("x", "")).0, thing(&["shop-a", "other", "shop-a"]));
    step(&mut server, 2, 1).unwrap();
}

#[test]
fn sg18_sg20_an_owner_may_name_either_form_of_what_it_owns() {
    let mut server = in_phase(Phase::F0);
    server.commit(of([routes("r", &["shop-a"])])).unwrap();
    let uid = uid_of(&server, &routes_key("r"));
    let mut owned = owned_by(eds_cluster("shop-a", "e"), routes_key("r"), uid);
    if let Some(proto::change::Act::Put(put)) = &mut owned.act {
        put.owners[0].requires_reference = true;
    }
    server.commit(of([owned])).unwrap();
    go_until(&mut server, Phase::F4);
    server.wait(600 * SECOND);
    assert_eq!(live(&server, NEW), Some(proto::State::Live));
    assert_eq!(owners_of(&server, &cluster_key(NEW)), [("r".to_owned(), true)]);
    server.commit(of([routes("r", &[])])).unwrap();
    server.wait(600 * SECOND);
    assert_eq!(live(&server, NEW), None);
}

#[test]
fn sv32_a_plan_without_a_way_down_stays_in_f3_while_the_old_form_is_named() {
    let plan = Plan::new(PlanSpec { down: Converter::Missing, ..spec() }).unwrap();
    let schemas = Schemas::default().with_plans(vec![plan]).unwrap();
    let mut server = Server::with(Server::new().engine, SECOND, |config| config.schemas = schemas.into());
    server.commit(of([cluster("shop-a"), routes("r", &["shop-a"])])).unwrap();
    let next = |server: &mut Server, from: u32| {
        let [from, to] = [from, from + 1].map(|number| Phase::of_number(number).unwrap());
        let ticket = server.draft(Draft::set_phase_at_startup(PhaseStep { plan: 1, from, to }));
        server.answers.remove(&ticket).unwrap()
    };
    for from in 0..3 {
        next(&mut server, from).unwrap();
    }
    server.wait(2 * SECOND);
    let refused = next(&mut server, 3).unwrap_err();
    assert!(refused.message.contains("others still name"), "{refused:?}");
    // Clients have both forms meanwhile.
    assert!(live(&server, NEW).is_some() && live(&server, "shop-a").is_some());
    server.commit(of([routes("r", &[NEW])])).unwrap();
    next(&mut server, 3).unwrap();
    next(&mut server, 4).unwrap();
}
