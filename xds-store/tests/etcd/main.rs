//! The engine on a real etcd: the conformance kit, and an etcd that is stopped, paused, compacted and
//! restarted.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod server;

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use server::Cluster;
use xds_store::conformance::{Subject, check_engine, check_store};
use xds_store::engine::{AccessError, Batch, Engine, EngineError, EtcdAccess, EtcdEngine};
use xds_store::store::{Config, Event, Identity, Store};

fn engine(cluster: &Cluster, prefix: &str) -> EtcdEngine {
    engine_as(cluster, prefix, &EtcdAccess::default())
}

fn engine_as(cluster: &Cluster, prefix: &str, access: &EtcdAccess) -> EtcdEngine {
    engine_at(cluster, &cluster.address(prefix), access)
}

fn engine_at(cluster: &Cluster, address: &str, access: &EtcdAccess) -> EtcdEngine {
    EtcdEngine::new(cluster.runtime(), address.parse().unwrap(), access).unwrap()
}

/// Waits until a view can be opened.
fn ready(engine: &EtcdEngine) {
    let answered = (0..60).any(|_| {
        let is_ready = engine.view().is_ok();
        if !is_ready {
            // Connections to a port that is not open yet fail at once.
            thread::park_timeout(Duration::from_millis(500));
        }
        is_ready
    });
    assert!(answered, "etcd does not answer");
}

fn put(key: &str, value: &str) -> Batch {
    let write = (Bytes::copy_from_slice(key.as_bytes()), Some(Bytes::copy_from_slice(value.as_bytes())));
    Batch { compares: Vec::new(), writes: vec![write] }
}

struct OnEtcd<'a>(&'a Cluster, u32);

impl Subject for OnEtcd<'_> {
    fn empty(&mut self) -> Box<dyn Engine> {
        self.1 += 1;
        // Keys with a prefix like that of the engine are of somebody else.
        for neighbour in [format!("kit{}0", self.1), format!("kit{}/", self.1)] {
            engine(self.0, neighbour.trim_end_matches('/')).commit(&put("~", "of somebody else")).unwrap();
        }
        Box::new(engine(self.0, &format!("kit{}/own", self.1)))
    }

    fn another(&mut self) -> Option<Box<dyn Engine>> {
        Some(Box::new(engine(self.0, &format!("kit{}/own", self.1))))
    }
}

#[test]
fn st43_the_engine_on_etcd_conforms_with_the_limits_of_etcd() {
    let Some(cluster) = Cluster::start(1, &[]) else { return };
    ready(&engine(&cluster, "x"));
    let mut subject = OnEtcd(&cluster, 0);
    check_engine(&mut subject);
    check_store(&mut subject);
    let mut engine = engine(&cluster, "x");
    let writes = (0..129).flat_map(|number| put(&number.to_string(), "").writes).collect();
    let refused = engine.commit(&Batch { compares: Vec::new(), writes }).unwrap_err().to_string();
    assert!(
        refused.contains("--max-txn-ops") && refused.contains("129") && refused.contains("128"),
        "{refused}"
    );
    let refused = engine.commit(&put("a", &"x".repeat(1 << 21))).unwrap_err().to_string();
    assert!(refused.contains("--max-request-bytes"), "{refused}");
}

/// What became of commits, by their number.
#[derive(Debug, Default)]
struct History {
    acknowledged: Vec<u32>,
    unchanged: Vec<u32>,
    unknown: Vec<u32>,
}

/// Commits one after another, each with two keys, until `is_over`.
fn load(engine: &mut EtcdEngine, is_over: &AtomicBool, acknowledged: &AtomicUsize) -> History {
    let mut history = History::default();
    for number in 0.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let mut batch = put(&format!("a{number}"), "1");
        batch.writes.extend(put(&format!("b{number}"), "1").writes);
        match engine.commit(&batch) {
            Ok(_) => {
                history.acknowledged.push(number);
                acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            Err(EngineError::Unknown(_)) => history.unknown.push(number),
            Err(EngineError::Unavailable(_)) => history.unchanged.push(number),
            Err(error) => panic!("{error:?}"),
        }
    }
    history
}

/// What is acknowledged is there, what is refused is not, and all commits are whole.
fn check(engine: &EtcdEngine, history: &History) {
    let mut found: BTreeMap<u32, u32> = BTreeMap::new();
    let view = engine.view().unwrap();
    view.range(b"a", b"c", &mut |key, _| {
        let number = std::str::from_utf8(&key[1..]).unwrap().parse().unwrap();
        *found.entry(number).or_default() += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(found.values().all(|count| *count == 2), "each commit is whole");
    assert!(history.acknowledged.iter().all(|number| found.contains_key(number)), "a commit is lost");
    assert!(history.unchanged.iter().all(|number| !found.contains_key(number)), "a refused commit is there");
}

/// Runs commits while `trouble` happens; it gets a function that waits for further acknowledgements.
fn under_load(engine: &mut EtcdEngine, trouble: impl FnOnce(&dyn Fn())) -> History {
    let (is_over, acknowledged) = (AtomicBool::new(false), AtomicUsize::new(0));
    let wait = || {
        let before = acknowledged.load(Ordering::Relaxed);
        let grows = (0..600).any(|_| {
            thread::park_timeout(Duration::from_millis(100));
            acknowledged.load(Ordering::Relaxed) > before + 20
        });
        assert!(grows, "no commit is acknowledged");
    };
    thread::scope(|scope| {
        let loading = scope.spawn(|| load(engine, &is_over, &acknowledged));
        let trouble = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| trouble(&wait)));
        is_over.store(true, Ordering::Relaxed);
        let history = loading.join().unwrap();
        if let Err(panic) = trouble {
            std::panic::resume_unwind(panic);
        }
        history
    })
}

#[test]
fn st16_an_etcd_that_is_killed_or_paused_under_load_loses_no_acknowledged_commit() {
    let Some(mut cluster) = Cluster::start(1, &[]) else { return };
    let mut engine = engine(&cluster, "load");
    ready(&engine);
    let reader = engine.reader();
    let history = under_load(&mut engine, |wait| {
        wait();
        cluster.members[0].kill();
        assert!(matches!(reader.view(), Err(EngineError::Unavailable(_))));
        cluster.members[0].start();
        wait();
        cluster.members[0].pause();
        assert!(matches!(reader.view(), Err(EngineError::Unavailable(_))));
        cluster.members[0].resume();
        wait();
    });
    assert!(!history.unknown.is_empty() && !history.unchanged.is_empty(), "{history:?}");
    check(&engine, &history);
}

#[test]
fn st16_a_cluster_goes_on_while_each_member_is_killed_in_turn() {
    let Some(mut cluster) = Cluster::start(3, &[]) else { return };
    let mut engine = engine(&cluster, "load");
    ready(&engine);
    let history = under_load(&mut engine, |wait| {
        for number in 0..3 {
            wait();
            cluster.members[number].kill();
            wait();
            cluster.members[number].start();
        }
        wait();
        // One that answers no more, while its connection is open.
        cluster.members[0].pause();
        wait();
        cluster.members[0].resume();
        wait();
    });
    check(&engine, &history);
}

#[test]
fn st21_a_server_whose_prefix_is_emptied_is_read_only_at_once() {
    let Some(cluster) = Cluster::start(1, &[]) else { return };
    let (mut own, mut other) = (engine(&cluster, "emptied"), engine(&cluster, "emptied"));
    ready(&own);
    own.commit(&Store::init(&Identity::default())).unwrap();
    let config = Config::new(own.limits(), 1);
    let mut store = Store::load(&*own.view().unwrap(), config, 0, |_| {}).unwrap();
    let mut changes = own.changes(Store::head_key()).unwrap();
    // The first call begins the watch.
    assert!(changes.wait(Duration::from_secs(10)).unwrap());
    assert!(store.step(Event::Changed, 1, &*own.reader()).is_empty());
    assert_eq!(store.read_only(), None);
    // As `etcdctl del --prefix` does.
    let head = Bytes::from_static(Store::head_key());
    other.commit(&Batch { compares: Vec::new(), writes: vec![(head, None)] }).unwrap();
    assert!(changes.wait(Duration::from_secs(10)).unwrap());
    assert!(store.step(Event::Changed, 2, &*own.reader()).is_empty());
    assert!(store.read_only().unwrap().contains("restore a backup"));
}

#[test]
fn a_commit_to_an_etcd_that_is_not_there_is_unavailable_and_not_unknown() {
    let Some(mut cluster) = Cluster::start(1, &[]) else { return };
    cluster.members[0].kill();
    let mut engine = engine(&cluster, "x");
    let refused = engine.commit(&put("a", "1"));
    assert!(matches!(refused, Err(EngineError::Unavailable(_))), "{refused:?}");
    let mut changes = engine.changes(b"a").unwrap();
    assert!(matches!(changes.wait(Duration::ZERO), Err(EngineError::Unavailable(_))));
    cluster.members[0].start();
    ready(&engine);
    engine.commit(&put("a", "1")).unwrap();
    assert!((0..60).any(|_| matches!(changes.wait(Duration::from_secs(1)), Ok(true))));
}

#[derive(Clone, PartialEq, Message)]
struct CompactionRequest {
    #[prost(int64, tag = "1")]
    revision: i64,
}

#[test]
fn a_view_of_a_compacted_revision_fails_and_the_next_view_and_a_watch_go_on() {
    let Some(cluster) = Cluster::start(1, &[]) else { return };
    let mut engine = engine(&cluster, "x");
    ready(&engine);
    engine.commit(&put("a", "1")).unwrap();
    let old = engine.view().unwrap();
    let mut changes = engine.changes(b"a").unwrap();
    assert!(changes.wait(Duration::ZERO).unwrap());
    let revision = engine.commit(&put("a", "2")).unwrap();
    cluster
        .call("/etcdserverpb.KV/Compact", CompactionRequest { revision: i64::try_from(revision.0).unwrap() });
    assert!(matches!(old.get(b"a"), Err(EngineError::Compacted)));
    let range = old.range(b"a", b"b", &mut |_, _| ControlFlow::Continue(()));
    assert!(matches!(range, Err(EngineError::Compacted)));
    assert_eq!(engine.view().unwrap().get(b"a").unwrap().unwrap().bytes, "2");
    while changes.wait(Duration::from_millis(500)).unwrap() {}
    engine.commit(&put("a", "3")).unwrap();
    assert!((0..30).any(|_| changes.wait(Duration::from_secs(1)).unwrap()));
}

#[derive(Clone, PartialEq, Message)]
struct Names {
    #[prost(string, tag = "1")]
    first: String,
    #[prost(string, tag = "2")]
    second: String,
}

#[test]
fn an_etcd_with_users_needs_a_password_and_a_new_token_after_its_restart() {
    let Some(mut cluster) = Cluster::start(1, &[]) else { return };
    ready(&engine(&cluster, "x"));
    let names = |first: &str, second: &str| Names { first: first.into(), second: second.into() };
    cluster.call("/etcdserverpb.Auth/UserAdd", names("root", "secret"));
    cluster.call("/etcdserverpb.Auth/RoleAdd", names("root", ""));
    cluster.call("/etcdserverpb.Auth/UserGrantRole", names("root", "root"));
    cluster.call("/etcdserverpb.Auth/AuthEnable", names("", ""));
    let access = |password: &str| EtcdAccess {
        user: Some(("root".to_owned(), password.to_owned())),
        ..EtcdAccess::default()
    };
    for refused in [EtcdAccess::default(), access("wrong")] {
        let result = engine_as(&cluster, "x", &refused).commit(&put("a", "1"));
        assert!(matches!(result, Err(EngineError::Unavailable(_))), "{result:?}");
        assert!(!format!("{refused:?}").contains("wrong"), "a password is in no log");
    }
    let mut engine = engine_as(&cluster, "x", &access("secret"));
    engine.commit(&put("a", "1")).unwrap();
    cluster.members[0].kill();
    cluster.members[0].start();
    ready(&engine);
    engine.commit(&put("a", "2")).unwrap();
    let mut changes = engine.changes(b"a").unwrap();
    assert!(changes.wait(Duration::ZERO).unwrap());
}

#[test]
fn an_etcd_with_tls_is_verified_and_verifies_its_clients() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("etcd-tls-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let certificate = || {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        (params.signed_by(&key, &authority).unwrap().pem(), key.serialize_pem())
    };
    let server = certificate();
    let files = [("ca", authority.pem()), ("cert", server.0), ("key", server.1)].map(|(name, pem)| {
        let path = folder.join(name);
        fs::write(&path, pem).unwrap();
        path.into_os_string().into_string().unwrap()
    });
    let [ca, cert, key] = &files;
    let options = ["--client-cert-auth", "--trusted-ca-file", ca, "--cert-file", cert, "--key-file", key];
    let started = Cluster::start(1, &options);
    let Some(cluster) = started else { return };
    let address = cluster.address("x").replace("etcd://", "etcds://");
    let (cert, key) = certificate();
    let access = EtcdAccess {
        ca: Some(authority.pem().into_bytes()),
        identity: Some((cert.into_bytes(), key.into_bytes())),
        ..EtcdAccess::default()
    };
    let mut engine = engine_at(&cluster, &address, &access);
    ready(&engine);
    engine.commit(&put("a", "1")).unwrap();
    let other = KeyPair::generate().unwrap();
    let other = CertificateParams::default().self_signed(&other).unwrap().pem().into_bytes();
    let unknown = EtcdAccess { ca: Some(other), ..access.clone() };
    let unnamed = EtcdAccess { identity: None, ..access.clone() };
    for refused in [unknown, unnamed] {
        let result = engine_at(&cluster, &address, &refused).commit(&put("a", "2"));
        assert!(matches!(result, Err(EngineError::Unavailable(_) | EngineError::Unknown(_))), "{result:?}");
    }
    assert_eq!(engine.view().unwrap().get(b"a").unwrap().unwrap().bytes, "1");
    let plain = EtcdEngine::new(cluster.runtime(), cluster.address("x").parse().unwrap(), &access);
    assert!(matches!(plain, Err(AccessError::NoTls)));
    fs::remove_dir_all(&folder).unwrap();
}
