use xds_proto::type_url;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{RefusalCode, Refused};
use xds_store::engine::MemoryEngine;
use xds_store::key::RecordKey;
use xds_store::phase::{Converter, Phase, Plan, PlanSpec, Schemas};
use xds_store::store::ReferrersQuery;

use crate::driven::envoy::*;
use crate::driven::migrating::step;
use crate::driven::*;

/// Clusters `shop-*` get `xdstp://` names.
fn schemas() -> Schemas {
    let plan = Plan::new(PlanSpec {
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
    })
    .unwrap();
    Schemas::default().with_plans(vec![plan]).unwrap()
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
