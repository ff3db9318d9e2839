use std::time::Duration;

use xds_core::ResourceName;
use xds_proto::type_url::CLUSTER;
use xds_proto::xds::store::v1 as proto;
use xds_store::engine::{Engine as _, MemoryEngine};
use xds_store::log::LogEntry;
use xds_store::store::{Config, Identity};

use super::*;

const NOW: i64 = 1_000_000_000_000;

fn key(type_url: &str, name: &str, when: &str) -> RecordKey {
    let key = proto::Key { type_url: type_url.into(), name: name.into(), when: when.into() };
    RecordKey::parse(&key).unwrap()
}

fn content(name: &str) -> proto::Content {
    // The field `name` of a cluster.
    let payload = [&[0x0a, u8::try_from(name.len()).unwrap()], name.as_bytes()].concat();
    proto::Content { payload: payload.into(), ..Default::default() }
}

fn live(content: proto::Content) -> RecordState {
    RecordState { lifecycle: State::Live.into(), content: Some(content), ..Default::default() }
}

fn shown(key: &RecordKey, state: &RecordState) -> String {
    match change_of(key, state, NOW).unwrap() {
        CacheChange::Put(resource) => format!("put {:?}", resource.payload()),
        CacheChange::Remove(id) => format!("remove {} [{}]", id.name.as_str(), id.constraints),
        CacheChange::Withhold(id, reason) => {
            format!("withhold {} [{}]: {reason}", id.name.as_str(), id.constraints)
        }
        CacheChange::Nothing => "nothing".to_owned(),
    }
}

#[test]
fn all_fields_of_the_wrapper_and_the_constraints_reach_clients() {
    let ttl = Some(prost_types::Duration { seconds: 5, nanos: 0 });
    let metadata = b"\x0a\x00"[..].into();
    let aliases = vec!["other".into()];
    let full = proto::Content { ttl, aliases, do_not_cache: true, metadata, ..content("a") };
    let change = change_of(&key(CLUSTER, "a", "env=prod"), &live(full), NOW).unwrap();
    let CacheChange::Put(resource) = change else { panic!("it is live") };
    let expected = Resource::new(CLUSTER, "a", content("a").payload).unwrap();
    let expected = expected.with_ttl(Duration::from_secs(5)).with_aliases([ResourceName::from("other")]);
    let expected = expected.with_do_not_cache().with_metadata(b"\x0a\x00"[..].into());
    let expected = expected.with_constraints("env=prod".parse().unwrap());
    assert_eq!((resource.id(), resource.version()), (expected.id(), expected.version()));
}

#[test]
fn a_redirect_is_served_as_one() {
    let key = key(CLUSTER, "xdstp://a.example/envoy.config.cluster.v3.Cluster/c", "");
    let redirect = proto::Content { payload: "".into(), redirect: true, ..Default::default() };
    let CacheChange::Put(resource) = change_of(&key, &live(redirect), NOW).unwrap() else { panic!("live") };
    assert!(resource.is_redirect());
}

#[test]
fn deleted_and_expired_records_leave_and_the_end_of_a_lease_is_a_commit() {
    let key = key(CLUSTER, "a", "env=prod");
    let deleted = RecordState { lifecycle: State::Deleted.into(), ..Default::default() };
    assert_eq!(shown(&key, &deleted), "remove a [env=prod]");
    let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
    let expired = RecordState { expires_at: at(1000), ..live(content("a")) };
    assert_eq!(shown(&key, &expired), "remove a [env=prod]");
    let later = RecordState { expires_at: at(1001), ..live(content("a")) };
    assert!(shown(&key, &later).starts_with("put"));
    let leased = RecordState { lease: Some(prost_types::Duration::default()), ..expired };
    assert!(shown(&key, &leased).starts_with("put"));
}

#[test]
fn sr45_a_quarantined_record_is_replaced_by_what_is_served_in_its_place() {
    let key = key(CLUSTER, "a", "");
    let quarantined = |serve| RecordState {
        lifecycle: State::Quarantined.into(),
        quarantined: Some(proto::Quarantined { serve, reason: "bad".into(), ..Default::default() }),
        ..live(content("a"))
    };
    let good = proto::Content { payload: "\x0a\x01a\x12\x00".into(), ..Default::default() };
    assert_eq!(shown(&key, &quarantined(Some(good))), "put b\"\\n\\x01a\\x12\\0\"");
    assert_eq!(shown(&key, &quarantined(None)), "withhold a [true]: bad");
    let deleted = RecordState { lifecycle: State::Deleted.into(), ..quarantined(None) };
    assert_eq!(shown(&key, &deleted), "remove a [true]");
}

#[test]
fn st55_configuration_of_the_store_is_never_served() {
    let key = key("type.googleapis.com/xds.store.v1.RegionPolicy", "a", "");
    assert_eq!(shown(&key, &live(content("a"))), "nothing");
}

/// Another server of the store wrote these commits, so the head of the store may be ahead of them.
#[test]
fn a_rollout_is_asked_for_by_the_commits_that_the_cache_has() {
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init(&Identity::default())).unwrap();
    let config = Config::new(engine.limits(), 1);
    let store = Store::load(&*engine.view().unwrap(), config, 0, |_| {}).unwrap();
    let cache = Cache::new();
    let source = Source::new(Arc::clone(&cache));
    let publish = |revision, name: &str, step: Option<&str>| {
        let rollout = step.map(|step| proto::Rollout { steps: vec![step.to_owned()], wait: None });
        let entry = LogEntry { rollout, ..LogEntry::default() };
        let changed = vec![(key(CLUSTER, name, ""), live(content(name)))];
        let commit = Published { revision, entry, changed, shown: BTreeMap::new() };
        source.publish(&store, &[commit], NOW).unwrap();
        cache.snapshot().origin().rollout.as_ref().map(|requested| requested.number)
    };
    assert_eq!(publish(10, "a", None), None);
    assert_eq!(publish(11, "b", Some("2 clients")), Some(11));
    assert_eq!(publish(12, "c", None), Some(11));
    // It changes nothing that is served, so there is nothing to roll out, and the next commit does not inherit it.
    publish(13, "c", Some("100%"));
    assert_eq!(publish(14, "d", None), Some(11));
}
