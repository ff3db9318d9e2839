use xds_core::{Cache, Resource, VariantId, Version};

use super::*;

fn commit(cache: &Cache, text: &[(&str, &str, &str)]) {
    let mut transaction = Transaction::new();
    for (name, when, payload) in text {
        let payload = payload.to_owned().to_owned();
        let resource = Resource::new("example.com/acme.Thing", *name, payload).unwrap();
        let resource = resource.with_constraints(when.parse().unwrap()).with_ttl(Duration::from_millis(1500));
        transaction.put(resource.with_aliases([format!("{name}{when}-alias").as_str().into()]));
    }
    cache.commit(transaction).unwrap();
}

#[test]
fn the_stable_state_is_read_as_it_was_and_damage_is_seen() {
    let cache = Cache::new();
    commit(&cache, &[("a", "env=prod", "one"), ("a", "env=test", "two"), ("b", "env", "three")]);
    let bytes = stable_bytes(&cache.snapshot());
    let other = Cache::new();
    other.commit(read_stable(bytes.clone().into()).unwrap()).unwrap();
    assert!(Transaction::between(&cache.snapshot(), &other.snapshot()).is_empty());
    assert!(Transaction::between(&other.snapshot(), &cache.snapshot()).is_empty());
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(read_stable(damaged.into()).is_err());
    }
    assert!(read_stable(bytes[..bytes.len() - 1].to_vec().into()).is_err());
    assert!(read_stable(Bytes::new()).is_err());
    let empty = read_stable(stable_bytes(&Cache::new().snapshot()).into()).unwrap();
    assert!(empty.is_empty());
}

#[test]
fn the_server_can_read_the_order_of_another_user_and_nobody_reads_the_state() {
    let folder = std::env::temp_dir().join(format!("xds-rollout-order-of-others-{}", std::process::id()));
    let state = RolloutState::open(&folder).unwrap();
    fs::write(folder.join("stable.next"), "of an earlier version").unwrap();
    state.store_stable(&Cache::new().snapshot()).unwrap();
    state.store_order(Order::Abort, RolloutCounts::default()).unwrap();
    let mode = |name| fs::metadata(folder.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("order"), mode("stable")), (0o644, 0o600));
    assert_eq!(state.take_order().unwrap(), Some((Order::Abort, [0; 3])));
    assert_eq!(state.take_order().unwrap(), None);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_request_that_is_stable_is_stored_with_the_state() {
    let folder = std::env::temp_dir().join(format!("xds-rollout-requested-{}", std::process::id()));
    let (state, cache) = (RolloutState::open(&folder).unwrap(), Cache::new());
    assert_eq!(state.requested(), 0);
    let mut transaction = Transaction::new();
    transaction.put(Resource::new("example.com/acme.Thing", "a", "one").unwrap());
    let plan = xds_core::RolloutPlan::new(Vec::new(), Duration::ZERO);
    transaction.origin().rollout = Some(xds_core::RequestedRollout { number: 7, plan });
    cache.commit(transaction).unwrap();
    state.store_stable(&cache.snapshot()).unwrap();
    assert_eq!(RolloutState::open(&folder).unwrap().requested(), 7);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_is_refused_is_read_as_it_was_and_damage_is_seen() {
    let folder = std::env::temp_dir().join(format!("xds-rollout-refused-{}", std::process::id()));
    let state = RolloutState::open(&folder).unwrap();
    let variant = |name: &str, when: &str| VariantId {
        constraints: when.parse().unwrap(),
        ..VariantId::unconstrained("example.com/acme.Thing", name)
    };
    let version = Version::of_payload(b"one");
    let contents = [(variant("a", "env=prod"), Some(version)), (variant("b", "env"), None)];
    let refused = RefusedChange::new(contents, "they reject it".into(), Duration::from_millis(1500));
    let other = RefusedChange::new([(variant("c", "env"), None)], "aborted".into(), Duration::ZERO);
    let refused = [refused, other];
    assert_eq!(state.refused().unwrap(), []);
    state.store_refused(&[]).unwrap();
    state.store_refused(&refused).unwrap();
    assert_eq!(RolloutState::open(&folder).unwrap().refused().unwrap(), refused);
    let bytes = refused_bytes(&refused);
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(read_refused(damaged.into()).is_err());
        assert!(read_refused(bytes[..at].to_vec().into()).is_err());
    }
    fs::write(folder.join("refused"), &bytes[1..]).unwrap();
    assert!(matches!(state.refused(), Err(RolloutStateError::DamagedRefusal { .. })));
    state.store_refused(&[]).unwrap();
    assert_eq!(state.refused().unwrap(), []);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_order_is_taken_once() {
    let folder = std::env::temp_dir().join(format!("xds-rollout-order-{}", std::process::id()));
    let state = RolloutState::open(&folder).unwrap();
    assert_eq!(state.take_order().unwrap(), None);
    let mut ended = RolloutCounts::default();
    (ended.promoted, ended.refused, ended.replaced) = (3, 2, 1);
    for order in [Order::Promote, Order::PromoteRefused, Order::Abort] {
        state.store_order(order, ended).unwrap();
        assert!(state.has_order());
        assert_eq!(state.take_order().unwrap(), Some((order, [3, 2, 1])));
        assert_eq!(state.take_order().unwrap(), None);
    }
    assert!(!state.is_used());
    let lock = state.lock().unwrap();
    assert!(state.is_used());
    assert!(matches!(state.lock(), Err(RolloutStateError::Used { .. })));
    drop(lock);
    state.lock().unwrap();
    fs::write(folder.join("order"), "delete everything").unwrap();
    assert_eq!((state.take_order().unwrap(), state.has_order()), (None, false));
    // What would be read for ever, or leads elsewhere.
    std::os::unix::fs::symlink("/dev/zero", folder.join("order")).unwrap();
    state.take_order().unwrap_err();
    let elsewhere = folder.join("elsewhere");
    fs::write(&elsewhere, "of others").unwrap();
    std::os::unix::fs::symlink(&elsewhere, folder.join("order.next")).unwrap();
    state.store_order(Order::Abort, ended).unwrap();
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "of others");
    assert!(state.take_order().unwrap().is_some());
    fs::remove_dir_all(folder).unwrap();
}
