//! Nodes that replicate with each other, over the service Peer.

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use xds_proto::xds::store::v1::peer_client::PeerClient;
use xds_store_server::{Connecting, PeerConnection, PeerConnector, PeersConfig, PeersStatus, Replicate};

use super::*;

/// A node whose peers the test sets.
pub(super) struct Node {
    pub(super) served: Served,
    peers: watch::Sender<Vec<String>>,
}

/// Connects with a token, over plain text.
#[derive(Debug)]
struct Connector(&'static str);

impl PeerConnector for Connector {
    fn connect(&self, address: &str) -> Connecting {
        let endpoint = Channel::from_shared(address.to_owned()).unwrap();
        let authorization = Some(format!("Bearer {}", self.0).parse().unwrap());
        Box::pin(async move {
            let channel = endpoint.connect().await.map_err(|error| error.to_string())?;
            Ok(PeerConnection { channel, authorization })
        })
    }
}

pub(super) fn engine(node: &str, cluster: &str) -> MemoryEngine {
    engine_in("", node, cluster)
}

/// The same, in a region.
pub(super) fn engine_in(region: &str, node: &str, cluster: &str) -> MemoryEngine {
    let mut engine = MemoryEngine::default();
    let (node, cluster, region) = (node.into(), cluster.into(), region.into());
    let identity = Identity { node, cluster, region, ..Identity::default() };
    engine.commit(&Store::init(&identity)).unwrap();
    engine
}

/// A node that presents this token, and whose peers present that of CI.
pub(super) async fn node(engine: impl Engine + 'static, token: &'static str) -> Node {
    node_with(engine, token, |_| {}).await
}

/// The same, with other settings.
pub(super) async fn node_with(
    engine: impl Engine + 'static,
    token: &'static str,
    set: impl FnOnce(&mut StoreConfig),
) -> Node {
    let (peers, addresses) = watch::channel(Vec::new());
    let mut config = StoreConfig::default();
    let mut of_peers = PeersConfig::new(addresses, Arc::new(Connector(token)), Handle::current());
    of_peers.pull_interval = Duration::from_millis(200);
    config.peers = Some(of_peers);
    set(&mut config);
    let served = serve_configured(engine, config, |_| {}).await;
    served.policy.set("token:ci", Rights { replicate: Replicate::Any, ..Rights::nothing() });
    Node { served, peers }
}

impl Node {
    fn address(&self) -> String {
        format!("http://{}", self.served.address)
    }

    pub(super) fn dial(&self, others: &[&Self]) {
        self.dial_addresses(others.iter().map(|other| other.address()).collect());
    }

    pub(super) fn dial_addresses(&self, addresses: Vec<String>) {
        self.peers.send(addresses).unwrap();
    }

    pub(super) async fn commit(&self, name: &str, payload: &str) {
        self.served.commit(vec![put(name, payload)]).await;
    }

    /// What it has: the revision of each record.
    async fn records(&self) -> BTreeMap<String, String> {
        let mut client = self.served.store().await;
        let mut request =
            proto::ListRequest { page_size: 10_000, without_payload: true, ..Default::default() };
        let mut records = BTreeMap::new();
        loop {
            let page = match client.list(request.clone()).await {
                // It takes a snapshot (SR20).
                Err(status) if status.code() == Code::Unavailable => {
                    sleep(Duration::from_millis(10)).await;
                    continue;
                }
                page => page.unwrap().into_inner(),
            };
            let named = page.records.into_iter().map(|record| (record.key.unwrap().name, record.revision));
            records.extend(named);
            if page.next_page_token.is_empty() {
                return records;
            }
            request.page_token = page.next_page_token;
        }
    }

    async fn has(&self, name: &str) -> bool {
        self.records().await.contains_key(name)
    }

    pub(super) fn peers_seen(&self) -> Arc<PeersStatus> {
        self.served.store.peers().unwrap()
    }

    /// Until its only peer was answered, or was not.
    pub(super) async fn status_when(&self, is_it: impl Fn(&proto::PeerStatus) -> bool) -> proto::PeerStatus {
        let found = async {
            loop {
                let peers = self.peers_seen().peers.clone();
                if let Some(peer) = peers.iter().find(|peer| is_it(peer)) {
                    return peer.clone();
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(WAIT, found).await.expect("the status comes")
    }
}

/// Waits until all of them have the same records, and this many.
pub(super) async fn converged(nodes: &[&Node], count: usize) -> BTreeMap<String, String> {
    let equal = async {
        loop {
            let first = nodes[0].records().await;
            let mut is_equal = first.len() == count;
            for other in &nodes[1..] {
                is_equal &= other.records().await == first;
            }
            if is_equal {
                return first;
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(WAIT, equal).await.expect("the nodes get each other's commits")
}

pub(super) const WAIT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn sr10_sr16_nodes_get_each_others_commits_also_through_a_third_one() {
    let (a, b, c) = (
        node(engine("a", "c"), CI).await,
        node(engine("b", "c"), CI).await,
        node(engine("c", "c"), CI).await,
    );
    a.commit("from-a", "1").await;
    b.commit("from-b", "1").await;
    c.commit("from-c", "1").await;
    // A and C never call each other.
    a.dial(&[&b]);
    b.dial(&[&a, &c]);
    c.dial(&[&b]);
    converged(&[&a, &b, &c], 3).await;
    // SR43: the same record was changed at both ends.
    a.commit("both", "of a").await;
    c.commit("both", "of c").await;
    converged(&[&a, &b, &c], 4).await;
    let up = a.status_when(|peer| peer.is_up && peer.entries_behind == 0 && peer.clock.len() == 3).await;
    assert_eq!((&*up.node, up.address, up.lag), ("b", b.address(), None));
    assert!(a.peers_seen().alarms.is_empty());
}

#[tokio::test]
async fn sr12_sr13_a_node_that_comes_late_gets_many_entries_and_large_ones() {
    let a = node(engine("a", "c"), CI).await;
    for number in 0..2_500 {
        a.commit(&format!("small-{number}"), "1").await;
    }
    // 24 MiB in one commit: more than a round takes, in messages of which each has a part.
    let large = "x".repeat(3 << 20);
    a.served.commit((0..8).map(|number| put(&format!("large-{number}"), &large)).collect()).await;
    a.commit("last", "1").await;
    let b = node(engine("b", "c"), CI).await;
    b.dial(&[&a]);
    converged(&[&a, &b], 2_509).await;
}

#[tokio::test]
async fn sr17_a_commit_is_answered_when_peers_have_it_or_says_that_they_have_it_not() {
    let (a, b) = (node(engine("a", "c"), CI).await, node(engine("b", "c"), CI).await);
    a.dial(&[&b]);
    b.dial(&[&a]);
    a.status_when(|peer| peer.is_up).await;
    b.status_when(|peer| peer.is_up).await;
    let mut client = a.served.store().await;
    let request = |ack_peers, seconds| proto::CommitRequest {
        ack_peers,
        ack_timeout: Some(prost_types::Duration { seconds, nanos: 0 }),
        ..commit_of(vec![put("a", &format!("{ack_peers} {seconds}"))])
    };
    let answer = client.commit(request(1, 20)).await.unwrap().into_inner();
    assert_eq!(answer.acked_peers, 1);
    assert!(b.has("a").await, "the peer has it");
    // One that changes nothing is confirmed, too (ST12).
    assert_eq!(client.commit(request(1, 20)).await.unwrap().into_inner().acked_peers, 1);
    for wrong in [request(2, 1), request(1, 61)] {
        assert_eq!(client.commit(wrong).await.unwrap_err().code(), Code::InvalidArgument);
    }
    // B cannot pull any more.
    b.dial(&[]);
    let late = client.commit(request(1, 1)).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late:?}");
    let response = detail::<proto::Committed>(&late).response.unwrap();
    assert_eq!((response.acked_peers, response.results.len()), (0, 1));
    assert_eq!(response.revision, client.get(get("a")).await.unwrap().into_inner().revision);
}

#[tokio::test]
async fn sr3_nodes_of_two_clusters_refuse_each_other() {
    let (a, b) = (node(engine("a", "c"), CI).await, node(engine("b", "other"), CI).await);
    b.commit("of-another-cluster", "1").await;
    a.dial(&[&b]);
    let down = a.status_when(|peer| !peer.error.is_empty()).await;
    assert!(!down.is_up && down.error.contains("another cluster"), "{down:?}");
    assert!(a.peers_seen().alarms[0].contains("another cluster"));
    assert!(a.records().await.is_empty());
}

#[tokio::test]
async fn sr50_st65_a_peer_needs_an_identity_the_right_to_replicate_and_its_region() {
    let a = node(engine("a", "c"), CI).await;
    let hello = |region: &str| proto::HelloRequest {
        protocol: 1,
        lowest_protocol: 1,
        cluster: "c".into(),
        node: "b".into(),
        boot: "1".into(),
        region: region.into(),
        ..Default::default()
    };
    let channel = a.served.channel().await;
    let client = |token| PeerClient::with_interceptor(channel.clone(), bearer(token));
    let code = async |token, region| match client(token).hello(hello(region)).await {
        Ok(_) => Code::Ok,
        Err(status) => status.code(),
    };
    assert_eq!(code(None, "").await, Code::Unauthenticated);
    assert_eq!(code(Some("wrong"), "").await, Code::Unauthenticated);
    a.served.policy.set("token:ci", Rights { operate: true, ..Rights::nothing() });
    assert_eq!(code(Some(CI), "").await, Code::PermissionDenied);
    assert_eq!(
        client(Some(CI)).pull(proto::PullRequest::default()).await.unwrap_err().code(),
        Code::PermissionDenied
    );
    a.served
        .policy
        .set("token:ci", Rights { replicate: Replicate::Region("north".into()), ..Rights::nothing() });
    assert_eq!(code(Some(CI), "south").await, Code::PermissionDenied);
    assert_eq!(code(Some(CI), "north").await, Code::Ok);
    // SG25: what a node gets follows from its region, which each call has.
    let of = |region: &str| proto::PullRequest {
        node: "unknown".into(),
        region: region.into(),
        ..Default::default()
    };
    let refused = client(Some(CI)).pull(of("south")).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    // A node that was not heard gets nothing.
    let unknown = of("north");
    let refused = client(Some(CI)).pull(unknown).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(detail::<proto::PeerRefused>(&refused).reason(), proto::peer_refused::Reason::NoHello);
    // A server without peers does not replicate.
    let alone = serve().await;
    let mut peer = PeerClient::with_interceptor(alone.channel().await, bearer(Some(LOCAL)));
    assert_eq!(peer.hello(hello("")).await.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn sr33_a_node_is_forgotten_once_it_answers_no_longer_and_is_refused_then() {
    let (a, b) = (node(engine("a", "c"), CI).await, node(engine("b", "c"), CI).await);
    b.commit("x", "1").await;
    a.dial(&[&b]);
    converged(&[&a, &b], 1).await;
    a.status_when(|peer| peer.is_up).await;
    let mut maintenance = a.served.maintenance_as(Some(LOCAL)).await;
    let mut forget =
        async || maintenance.forget(proto::ForgetRequest { node: "b".into(), force: false }).await;
    violation(&forget().await.unwrap_err(), Code::FailedPrecondition);
    a.dial(&[]);
    let gone = async {
        while !a.peers_seen().peers.is_empty() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(WAIT, gone).await.expect("the list of peers is empty");
    assert_eq!(forget().await.unwrap().into_inner().counter, 1);
    b.dial(&[&a]);
    let refused = async {
        while !b.peers_seen().alarms.iter().any(|alarm| alarm.contains("forgotten")) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(WAIT, refused).await.expect("the node hears that it is forgotten");
}

#[tokio::test]
async fn sr49_a_get_asks_peers_for_what_is_absent_here_and_their_deletions_count() {
    let (a, c) = (node(engine("a", "c"), CI).await, node(engine("c", "c"), CI).await);
    // It pulls once, and nobody nudges it.
    let once = |config: &mut StoreConfig| {
        config.peers.as_mut().unwrap().pull_interval = Duration::from_secs(3600);
    };
    let b = node_with(engine("b", "c"), CI, once).await;
    b.dial(&[&a, &c]);
    b.status_when(|peer| peer.is_up && peer.node == "a" && peer.last_contact.is_some()).await;
    b.status_when(|peer| peer.is_up && peer.node == "c" && peer.last_contact.is_some()).await;
    sleep(Duration::from_millis(200)).await;
    a.commit("new", "of a").await;
    a.commit("gone", "1").await;
    c.dial(&[&a]);
    converged(&[&a, &c], 2).await;
    c.served.commit(vec![delete("gone")]).await;
    let get = async |name: &str, peek| {
        let request = proto::GetRequest { key: Some(key(name)), peek, ..Default::default() };
        b.served.store().await.get(request).await.map(tonic::Response::into_inner)
    };
    let of_here = get("new", false).await.map(|_| ()).map_err(|status| status.code());
    let answer = get("new", true).await.unwrap();
    let record = answer.record.unwrap();
    assert_eq!((of_here, record.content.unwrap().payload), (Err(Code::NotFound), "of a".into()));
    assert!(["a", "c"].contains(&&*answer.peeked_from) && record.store_revision.is_empty());
    // A has it still, as it does not pull from C.
    assert!(a.has("gone").await);
    assert_eq!(get("gone", true).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(get("nowhere", true).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn sr51_a_node_mends_what_it_lost_and_says_so() {
    let a = node(engine("a", "c"), CI).await;
    let (lost, names) = (engine("b", "c"), ["one", "two", "three"]);
    let disk = lost.clone();
    let every = |config: &mut StoreConfig| {
        config.peers.as_mut().unwrap().compare_interval = Duration::from_millis(500);
    };
    let b = node_with(lost, CI, every).await;
    b.dial(&[&a]);
    for name in names {
        a.commit(name, name).await;
    }
    let whole = converged(&[&a, &b], 3).await;
    b.served.store.stop().await;
    let mut disk = disk;
    let view = disk.view().unwrap();
    let mut writes = Vec::new();
    view.range(b"v", b"w", &mut |stored, _| {
        writes.extend(stored.windows(3).any(|at| at == b"two").then(|| (stored.to_vec().into(), None)));
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    drop(view);
    assert_eq!(writes.len(), 1);
    disk.commit(&xds_store::engine::Batch { compares: Vec::new(), writes }).unwrap();
    let b = node_with(disk, CI, every).await;
    assert!(!b.has("two").await);
    b.dial(&[&a]);
    assert_eq!(converged(&[&a, &b], 3).await, whole);
    let mended = async {
        while b.peers_seen().mended == 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(WAIT, mended).await.expect("it is counted");
    assert_eq!((b.peers_seen().mended, a.peers_seen().mended), (1, 0));
}

#[tokio::test]
async fn sv15_a_step_waits_for_peers_and_one_that_is_down_can_be_left_out() {
    let with_plans = |config: &mut StoreConfig| config.schemas = migration::schemas().into();
    let (a, b, c) = (
        node_with(engine("a", "c"), CI, with_plans).await,
        node_with(engine("b", "c"), CI, with_plans).await,
        node(engine("c", "c"), CI).await,
    );
    a.dial(&[&b, &c]);
    b.dial(&[&a]);
    let knows = async |node: &Node, phase| {
        node.status_when(|peer| peer.is_up && peer.phases.get(&1) == Some(&phase)).await;
    };
    knows(&a, 0).await;
    knows(&b, 0).await;
    a.status_when(|peer| peer.is_up && peer.node == "c").await;
    let step = async |node: &Node, from_phase, without: &[&str]| {
        let mut client = migration::migration_as(&node.served, LOCAL).await;
        let without = without.iter().map(ToString::to_string).collect();
        let to_phase = from_phase + 1;
        let request = proto::SetPhaseRequest { plan: 1, from_phase, to_phase, without, ..Default::default() };
        client.set_phase(request).await.map(|_| ()).map_err(|status| status.message().to_owned())
    };
    // C runs without the plan, and cannot be left out while it answers.
    assert_eq!(
        step(&a, 0, &[]).await,
        Err("the peer c does not know the new form of the plan t-v2".to_owned())
    );
    assert!(step(&a, 0, &["c"]).await.unwrap_err().contains("c is no peer that is down"));
    a.dial(&[&b]);
    a.status_when(|peer| peer.is_up && peer.node == "b").await;
    let start = std::time::Instant::now();
    while let Err(message) = step(&a, 0, &[]).await {
        assert!(start.elapsed() < WAIT, "{message}");
        sleep(Duration::from_millis(20)).await;
    }
    let two_away = "the peer b would be two phases away in the plan t-v2, or joins and has none yet: move it \
                    first, or wait";
    assert_eq!(step(&a, 1, &[]).await, Err(two_away.to_owned()));
    knows(&b, 1).await;
    assert_eq!(step(&b, 0, &[]).await, Ok(()));
    knows(&a, 1).await;
    assert_eq!(step(&a, 1, &[]).await, Ok(()));
    a.served.store.stop().await;
    b.status_when(|peer| !peer.is_up).await;
    assert!(step(&b, 1, &[]).await.unwrap_err().starts_with("the peer a is down"));
    assert_eq!(step(&b, 1, &["a"]).await, Ok(()));
}

#[tokio::test]
async fn sg38_a_step_waits_for_a_peer_with_a_ceiling_which_goes_on_with_all_records() {
    let with_plans = |config: &mut StoreConfig| config.schemas = migration::schemas().into();
    let below = |config: &mut StoreConfig| {
        let schemas = migration::schemas().with_ceiling("example.com/acme.v2.T", "1.0".parse().unwrap());
        config.schemas = schemas.unwrap().into();
    };
    let (a, b) =
        (node_with(engine("a", "c"), CI, with_plans).await, node_with(engine("b", "c"), CI, below).await);
    a.dial(&[&b]);
    b.dial(&[&a]);
    a.status_when(|peer| peer.is_up && peer.phases.get(&1) == Some(&0)).await;
    b.status_when(|peer| peer.is_up && peer.schemas.len() == 2).await;
    let mut client = migration::migration_as(&a.served, LOCAL).await;
    let request = proto::SetPhaseRequest { plan: 1, from_phase: 0, to_phase: 1, ..Default::default() };
    let refused = client.set_phase(request).await.unwrap_err();
    assert_eq!(refused.message(), "the peer b does not know the new form of the plan t-v2");
    a.commit("one", "1").await;
    b.commit("two", "1").await;
    converged(&[&a, &b], 2).await;
}
