//! References between two regions, over the service Peer.

use bytes::Bytes;
use proto::violation::Why;
use tokio::time::{sleep, timeout};
use xds_proto::type_url;
use xds_proto::xds::store::v1::peer_client::PeerClient;
use xds_store::engine::Batch;
use xds_store::key::POLICY_TYPE;
use xds_store_server::Replicate;

use super::peers::{Node, WAIT, engine_in, node};
use super::references::{at, cluster, routes};
use super::*;

/// The store of a node of a region, with the policies.
fn engine(region: &str, node: &str) -> MemoryEngine {
    let mut engine = engine_in(region, node, "c");
    let writes = vec![policy("eu/", "eu", "us"), policy("us/", "us", "eu")];
    engine.commit(&Batch { compares: Vec::new(), writes }).unwrap();
    engine
}

/// The record of a policy as an engine has it. No commit of this version makes one.
fn policy(prefix: &str, owner: &str, copies: &str) -> (Bytes, Option<Bytes>) {
    let policy = proto::RegionPolicy {
        owner_region: owner.into(),
        regions: vec![copies.into()],
        ..Default::default()
    };
    let content = proto::Content { payload: policy.encode_to_vec().into(), ..Default::default() };
    let state = proto::RecordState {
        key: Some(at(POLICY_TYPE, prefix)),
        lifecycle: proto::State::Live.into(),
        content: Some(content),
        ..Default::default()
    };
    let key = [b"v", POLICY_TYPE.as_bytes(), b"\0", prefix.as_bytes(), &[0; 10]].concat();
    let checksum = crc32(&[&key[..], &state.encode_to_vec()].concat());
    let value = [&checksum.to_be_bytes()[..], &state.encode_to_vec()].concat();
    (key.into(), Some(value.into()))
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32| sum >> 1 ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 };
    !bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), |sum, _| step(sum)))
}

/// A node of `eu`, which owns `eu/` and has the cluster `eu/c`, and one of `us`.
async fn regions() -> [Node; 2] {
    let [eu, us] = [node(engine("eu", "e"), CI).await, node(engine("us", "u"), CI).await];
    eu.dial(&[&us]);
    us.dial(&[&eu]);
    eu.status_when(|peer| peer.is_up).await;
    us.status_when(|peer| peer.is_up).await;
    eu.served.commit(vec![cluster("eu/c")]).await;
    until(&us, at(type_url::CLUSTER, "eu/c"), Some(proto::State::Live)).await;
    [eu, us]
}

/// Until a node has a record in this state.
async fn until(node: &Node, key: proto::Key, state: Option<proto::State>) {
    let found = async {
        loop {
            let request = proto::GetRequest { key: Some(key.clone()), ..Default::default() };
            let answer = node.served.store().await.get(request).await;
            let found = answer.ok().map(|answer| answer.into_inner().record.unwrap().state());
            if found == state {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(WAIT, found).await.expect("the record comes to this state");
}

async fn delete(node: &Node, drain: bool) -> Result<proto::Outcome, Status> {
    let act = Some(proto::change::Act::Delete(proto::Delete { drain }));
    let change = proto::Change { key: Some(at(type_url::CLUSTER, "eu/c")), condition: None, act };
    let committed = node.served.store().await.commit(commit_of(vec![change])).await?.into_inner();
    Ok(committed.results[0].outcome())
}

fn referred(status: &Status, code: Code) -> proto::Referred {
    match violation(status, code).why {
        Some(Why::Referred(referred)) => referred,
        why => panic!("{why:?}"),
    }
}

#[tokio::test]
async fn sg30_sg34_what_another_region_refers_to_is_not_deleted_and_its_referrers_are_named() {
    let [eu, us] = regions().await;
    us.served.commit(vec![routes("us/r", "eu/c")]).await;
    // The copy of the routes comes by replication; what counts is the block.
    let confirmed = async {
        loop {
            let refused = delete(&eu, false).await.unwrap_err();
            let referred = referred(&refused, Code::FailedPrecondition);
            if !referred.by.iter().any(|by| by.is_tentative) {
                return referred;
            }
            // It is confirmed soon after the commit is answered.
            sleep(Duration::from_millis(20)).await;
        }
    };
    let referred = timeout(WAIT, confirmed).await.expect("the block is confirmed");
    assert_eq!(referred.by.iter().filter(|by| by.source_region == "us").count(), 1, "{referred:?}");
    assert!(referred.silent_regions.is_empty());
    // SG10: each reference is shown once, with its region.
    let request = proto::ReferencesRequest { key: Some(at(type_url::CLUSTER, "eu/c")), depth: 0 };
    let found = eu.served.store().await.references(request).await.unwrap().into_inner();
    let regions = |references: &[proto::Reference]| -> Vec<String> {
        references.iter().map(|reference| reference.source_region.clone()).collect()
    };
    assert_eq!((found.referrer_count, regions(&found.referrers), regions(&found.blocked_by)), {
        (1, vec!["us".to_owned()], vec!["us".to_owned()])
    });
    // SG35: a drain ends once the reference is gone.
    assert_eq!(delete(&eu, true).await.unwrap(), proto::Outcome::Deleting);
    until(&us, at(type_url::CLUSTER, "eu/c"), Some(proto::State::Deleting)).await;
    let act = Some(proto::change::Act::Delete(proto::Delete::default()));
    let key = Some(at(type_url::ROUTE_CONFIGURATION, "us/r"));
    us.served.commit(vec![proto::Change { key, condition: None, act }]).await;
    for node in [&eu, &us] {
        until(node, at(type_url::CLUSTER, "eu/c"), None).await;
    }
}

#[tokio::test]
async fn sg30_sg34_a_region_that_cannot_be_reached_refuses_and_is_named() {
    let [eu, us] = regions().await;
    us.served.commit(vec![routes("us/r", "eu/c")]).await;
    until(&eu, at(type_url::ROUTE_CONFIGURATION, "us/r"), Some(proto::State::Live)).await;
    us.served.commit(vec![routes("us/r", "eu/c"), cluster("us/c")]).await;
    // Both links are cut.
    eu.dial(&[]);
    us.dial(&[]);
    sleep(Duration::from_millis(300)).await;
    let refused = us.served.store().await.commit(commit_of(vec![routes("us/s", "eu/c")])).await.unwrap_err();
    assert_eq!(referred(&refused, Code::Unavailable).silent_regions, ["eu"]);
    assert!(refused.message().contains("region eu does not answer"), "{refused:?}");
    let refused = delete(&eu, false).await.unwrap_err();
    assert_eq!(violation_regions(&refused), ["us"]);
    // What refers to nothing of another region goes on, and heals with the link.
    us.served.commit(vec![routes("us/t", "us/c")]).await;
    eu.dial(&[&us]);
    us.dial(&[&eu]);
    let again = async {
        loop {
            let request = commit_of(vec![routes("us/s", "eu/c")]);
            match us.served.store().await.commit(request).await {
                Ok(_) => return,
                Err(status) => assert_eq!(status.code(), Code::Unavailable),
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(WAIT, again).await.unwrap();
}

/// The silent regions of a refusal, of whatever code: the copy of a referrer may be here.
fn violation_regions(status: &Status) -> Vec<String> {
    referred(status, status.code()).silent_regions
}

#[tokio::test]
async fn sr50_sg30_a_node_speaks_for_its_own_region_only() {
    let [eu, _us] = regions().await;
    let channel = eu.served.channel().await;
    let mut client = PeerClient::with_interceptor(channel, bearer(Some(CI)));
    let request = |source_region: &str| {
        let (source, target) = (Some(at("t/T", "us/x")), Some(at(type_url::CLUSTER, "eu/c")));
        let reference =
            proto::Reference { source, target, source_region: source_region.into(), ..Default::default() };
        proto::BlockReferencesRequest {
            id: vec![7; 16].into(),
            references: vec![reference],
            node: "u".into(),
        }
    };
    eu.served
        .policy
        .set("token:ci", Rights { replicate: Replicate::Region("us".into()), ..Rights::nothing() });
    let refused = client.block_references(request("ap")).await.unwrap_err();
    assert!(matches!(violation(&refused, Code::PermissionDenied).why, Some(Why::Right(_))));
    let answer = client.block_references(request("us")).await.unwrap().into_inner();
    assert_eq!(answer.holds_for.unwrap().seconds, 300);
    let by = referred(&delete(&eu, false).await.unwrap_err(), Code::FailedPrecondition).by;
    assert!(by[0].is_tentative && by[0].source_region == "us");
    eu.served.policy.set("token:ci", Rights::nothing());
    let refused = client.block_references(request("us")).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
}
