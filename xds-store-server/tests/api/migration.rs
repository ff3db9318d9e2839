//! Plans and their steps.

use std::sync::atomic::{AtomicU64, Ordering};

use xds_proto::xds::store::v1::migration_client::MigrationClient;
use xds_proto::xds::store::v1::violation::Why;
use xds_store::phase::{Convert, Converter, Phase, Plan, PlanSpec};
use xds_store_server::{RunError, StreamsSource};

use super::*;

pub(super) const OLD: &str = "example.com/acme.v1.T";

/// Refuses the payload `odd`.
#[derive(Debug)]
struct NoOdd;

impl Convert for NoOdd {
    fn convert(&self, payload: &bytes::Bytes, _: &str) -> Result<bytes::Bytes, String> {
        if &payload[..] == b"odd" { Err("an odd payload".to_owned()) } else { Ok(payload.clone()) }
    }
}

pub(super) fn schemas() -> Schemas {
    let plan = |number, name: &str, from: &str, to: &str| {
        Plan::new(PlanSpec {
            number,
            name: name.into(),
            from_type: from.into(),
            from_names: vec!["a*".into()],
            to_type: to.into(),
            to_name: "{name}".into(),
            to_version: "2.0".parse().unwrap(),
            up: Converter::Code(Arc::new(NoOdd)),
            down: Converter::Identity,
            heartbeat: false,
            rewrite_references: false,
        })
        .unwrap()
    };
    let plans = vec![
        plan(1, "t-v2", OLD, "example.com/acme.v2.T"),
        plan(2, "u-v2", "example.com/acme.v1.U", "example.com/acme.v2.U"),
    ];
    Schemas::default().with_plans(plans).unwrap()
}

/// A server with two plans, and how many streams it has on old forms.
async fn migrating() -> (Served, Arc<AtomicU64>) {
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init(&Identity::default())).unwrap();
    let mut settings = StoreConfig::default();
    settings.schemas = schemas().into();
    let streams = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&streams);
    let source = StreamsSource::new(move |is_old| {
        let new = "example.com/acme.v2.T";
        let is_first = is_old(OLD, "a", false) && !is_old(OLD, "b", true) && !is_old(new, "a", true);
        let streams = if is_first { counted.load(Ordering::Relaxed) } else { 0 };
        async move { streams }
    });
    (serve_configured(engine, settings, |config| config.streams = source).await, streams)
}

pub(super) async fn migration_as(served: &Served, token: &str) -> MigrationClient<Api> {
    MigrationClient::with_interceptor(served.channel().await, bearer(Some(token)))
}

pub(super) fn to(plan: u32, from_phase: u32, to_phase: u32) -> proto::SetPhaseRequest {
    proto::SetPhaseRequest { plan, from_phase, to_phase, ..Default::default() }
}

async fn plans(client: &mut MigrationClient<Api>) -> Vec<proto::PlanStatus> {
    client.plans(proto::PlansRequest {}).await.unwrap().into_inner().plans
}

/// Waits for a clean pass of the first plan.
async fn clean(client: &mut MigrationClient<Api>) -> proto::PlanStatus {
    until(client, |plan| plan.is_clean).await
}

async fn until(
    client: &mut MigrationClient<Api>,
    mut is_it: impl FnMut(&proto::PlanStatus) -> bool,
) -> proto::PlanStatus {
    for _ in 0..500 {
        let plan = plans(client).await.remove(0);
        if is_it(&plan) {
            return plan;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("waited in vain");
}

pub(super) fn put_old(name: &str, payload: &str) -> proto::Change {
    let put = put(name, payload);
    let key = proto::Key { type_url: OLD.into(), name: name.into(), when: String::new() };
    proto::Change { key: Some(key), ..put }
}

fn gates(plan: &proto::PlanStatus) -> Vec<(&str, u64)> {
    plan.gates.iter().map(|gate| (&*gate.gate, gate.count)).collect()
}

#[tokio::test]
async fn sv13_sv14_sv23_sv26_a_plan_goes_from_f0_to_f5_by_single_steps_through_open_gates() {
    let (served, streams) = migrating().await;
    served.commit(vec![put_old("a", "1"), put_old("a2", "odd"), put_old("b", "1")]).await;
    let mut client = migration_as(&served, LOCAL).await;
    let all = plans(&mut client).await;
    let plan = &all[0];
    assert_eq!(
        (all.len(), &*plan.name, plan.phase, plan.old_records, plan.new_records),
        (2, "t-v2", 0, 2, 0)
    );
    assert_eq!(plan.old_form, format!("{OLD} a*"));
    assert_eq!(plan.new_form, "example.com/acme.v2.T {name} 2.0");
    assert!(plan.started_at.is_none() && plan.gates.is_empty(), "{plan:?}");
    // SV13.
    let early = client.set_phase(to(2, 0, 1)).await.unwrap_err();
    assert_eq!(early.code(), Code::FailedPrecondition, "{early}");
    for phase in 0..3 {
        let dry_run = proto::SetPhaseRequest { dry_run: true, ..to(1, phase, phase + 1) };
        client.set_phase(dry_run).await.unwrap();
        let done = client.set_phase(to(1, phase, phase + 1)).await.unwrap().into_inner();
        assert_eq!(done.plan.unwrap().phase, phase + 1);
    }
    // A record that cannot be converted closes the gate, and is listed with the reason.
    for _ in 0..500 {
        if plans(&mut client).await[0].failed == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let plan = plans(&mut client).await.remove(0);
    assert_eq!((plan.failed, plan.behind, plan.split, plan.is_clean), (1, 1, 0, false), "{plan:?}");
    let failure = &plan.failures[0];
    assert_eq!(failure.key.as_ref().unwrap().name, "a2");
    assert!(failure.message.contains("an odd payload"), "{failure:?}");
    assert_eq!(gates(&plan), [("pass_not_clean", 0)]);
    let refused = violation(&client.set_phase(to(1, 3, 4)).await.unwrap_err(), Code::FailedPrecondition);
    assert!(matches!(refused.why, Some(Why::Gate(gate)) if gate.gate == "pass_not_clean"));
    // The remedy.
    served.commit(vec![put_old("a2", "even")]).await;
    let plan = clean(&mut client).await;
    assert_eq!((plan.new_records, plan.behind, plan.pass_total), (2, 0, 4), "{plan:?}");
    client.set_phase(to(1, 3, 4)).await.unwrap();
    // SV26: streams that ask for the old form close the last gate, unless forced.
    streams.store(3, Ordering::Relaxed);
    let plan = plans(&mut client).await.remove(0);
    assert_eq!((plan.streams_on_old, gates(&plan)), (3, vec![("streams_on_old", 3)]));
    let refused = client.set_phase(to(1, 4, 5)).await.unwrap_err();
    assert!(refused.message().starts_with("3 streams ask for the old form"), "{refused}");
    client.set_phase(proto::SetPhaseRequest { force: true, ..to(1, 4, 5) }).await.unwrap();
    // The end of the pass is seen before its commit.
    let plan = until(&mut client, |plan| plan.is_clean && plan.done_at.is_some()).await;
    assert!(plan.old_records == 0 && plan.gates.is_empty(), "{plan:?}");
    // SV13: the next plan may begin.
    client.set_phase(to(2, 0, 1)).await.unwrap();
}

#[tokio::test]
async fn sv33_a_ceiling_is_set_if_nothing_prevents_it_and_holds_for_reads_and_writes() {
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init(&Identity::default())).unwrap();
    let mut settings = StoreConfig::default();
    let type_url = key("a").type_url;
    settings.schemas = Schemas::default().declare(&type_url, "1.2".parse().unwrap()).unwrap().into();
    let served = serve_configured(engine, settings, |_| {}).await;
    served.commit(vec![put("a", "1")]).await;
    let mut client = migration_as(&served, LOCAL).await;
    let ceiling = |version: &str| {
        let schema = proto::Knows { type_url: type_url.clone(), version: version.into() };
        let of = Some(proto::set_ceiling_request::Of::Schema(schema));
        proto::SetCeilingRequest { of, dry_run: false }
    };
    // The code says that the ceiling is refused.
    let refused = client.set_ceiling(ceiling("1.1")).await.unwrap_err();
    let why = violation(&refused, Code::FailedPrecondition).why;
    assert!(
        matches!(&why, Some(Why::Gate(gate)) if gate.gate == "needs_newer" && gate.count == 1),
        "{why:?}"
    );
    let dry_run = proto::SetCeilingRequest { dry_run: true, ..ceiling("1.2") };
    client.set_ceiling(dry_run).await.unwrap();
    let all = client.plans(proto::PlansRequest {}).await.unwrap().into_inner();
    assert!(all.ceilings.is_empty(), "a dry run leaves no trace");
    let mut store = served.store().await;
    let delete = proto::change::Act::Delete(proto::Delete::default());
    served.commit(vec![proto::Change { act: Some(delete), ..put("a", "1") }]).await;
    client.set_ceiling(ceiling("1.1")).await.unwrap();
    let all = client.plans(proto::PlansRequest {}).await.unwrap().into_inner();
    assert_eq!(all.ceilings, [proto::Knows { type_url: type_url.clone(), version: "1.1".into() }]);
    served.commit(vec![put("a", "1")]).await;
    let read = store.get(proto::GetRequest { key: Some(key("a")), ..Default::default() }).await.unwrap();
    assert_eq!(read.into_inner().record.unwrap().content.unwrap().schema, "1.1");
    // Wrong requests.
    let wrong = |of| proto::SetCeilingRequest { of, dry_run: false };
    let format = |format| wrong(Some(proto::set_ceiling_request::Of::Format(format)));
    let lower = client.set_ceiling(format(0)).await.unwrap_err();
    assert!(matches!(violation(&lower, Code::FailedPrecondition).why, Some(Why::Gate(_))));
    client.set_ceiling(format(1)).await.unwrap();
    for wrong in [wrong(None), ceiling("new"), format(2)] {
        assert_eq!(client.set_ceiling(wrong).await.unwrap_err().code(), Code::InvalidArgument);
    }
    served.policy.set("token:ci", Rights { inspect: true, ..Rights::nothing() });
    let mut ci = migration_as(&served, CI).await;
    assert_eq!(ci.set_ceiling(ceiling("1.0")).await.unwrap_err().code(), Code::PermissionDenied);
    client.set_ceiling(ceiling("")).await.unwrap();
}

#[tokio::test]
async fn sv14_wrong_steps_are_refused_and_need_the_right_to_operate() {
    let (served, _) = migrating().await;
    let mut local = migration_as(&served, LOCAL).await;
    let refused = async |client: &mut MigrationClient<Api>, request| {
        client.set_phase(request).await.unwrap_err().code()
    };
    assert_eq!(refused(&mut local, to(1, 0, 2)).await, Code::InvalidArgument);
    assert_eq!(refused(&mut local, to(1, 0, 9)).await, Code::InvalidArgument);
    assert_eq!(refused(&mut local, to(1, 1, 2)).await, Code::Aborted);
    assert_eq!(refused(&mut local, to(3, 0, 1)).await, Code::NotFound);
    let without = proto::SetPhaseRequest { without: vec!["n".into()], ..to(1, 0, 1) };
    assert_eq!(refused(&mut local, without).await, Code::InvalidArgument);
    let mut ci = migration_as(&served, CI).await;
    assert_eq!(ci.plans(proto::PlansRequest {}).await.unwrap_err().code(), Code::PermissionDenied);
    served.policy.set("token:ci", Rights { inspect: true, ..Rights::nothing() });
    assert_eq!(plans(&mut ci).await.len(), 2);
    assert_eq!(refused(&mut ci, to(1, 0, 1)).await, Code::PermissionDenied);
    served.policy.set("token:ci", Rights { operate: true, ..Rights::nothing() });
    ci.set_phase(to(1, 0, 1)).await.unwrap();
    // SV12: the log has who it was.
    let request = proto::HistoryRequest::default();
    let history = served.store().await.history(request).await.unwrap().into_inner();
    assert_eq!(history.commits[0].identity, "token:ci");
}

#[tokio::test]
async fn sv32_sv15_at_the_start_no_step_leaves_a_peer_behind_that_serves() {
    let with_plans = |config: &mut StoreConfig| config.schemas = schemas().into();
    let node = async |id| peers::node_with(peers::engine(id, "c"), CI, with_plans).await;
    let (a, b, without) = (node("a").await, node("b").await, peers::node(peers::engine("d", "c"), CI).await);
    a.commit("one", "1").await;
    b.commit("two", "1").await;
    // A peer that does not know the new form.
    b.dial(&[&without]);
    let run = async |node: &peers::Node| {
        let done = node.served.store.run_plans(|_| {}).await;
        done.map_err(|error| match error {
            RunError::Peer { peer, of_peer, phase, .. } => (peer, of_peer.map(Phase::number), phase.number()),
            other => panic!("{other}"),
        })
    };
    assert_eq!(run(&b).await, Err(("d".to_owned(), None, 0)));
    without.served.store.stop().await;
    b.status_when(|peer| !peer.is_up).await;
    // One that knows it and is not as far.
    a.dial(&[&b]);
    assert_eq!(run(&a).await, Err(("b".to_owned(), Some(0), 0)));
    // One that does not answer counts as stopped.
    assert_eq!(run(&b).await, Ok(()));
    a.status_when(|peer| peer.phases.get(&1) == Some(&5)).await;
    // One that is ahead.
    assert_eq!(run(&a).await, Ok(()));
    let standing = a.served.store.standing();
    assert!(standing.borrow().plans.iter().all(|plan| plan.done_at.is_some()));
}
