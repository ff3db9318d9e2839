//! The call References (SG10), and refusals because of references.

use prost::encoding::{WireType, encode_key, encode_varint};
use proto::violation::Why;
use xds_proto::type_url;

use super::*;

fn field(number: u32, value: impl AsRef<[u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_key(number, WireType::LengthDelimited, &mut bytes);
    encode_varint(value.as_ref().len() as u64, &mut bytes);
    bytes.extend_from_slice(value.as_ref());
    bytes
}

fn path(numbers: &[u32], value: impl AsRef<[u8]>) -> Vec<u8> {
    numbers.iter().rev().fold(value.as_ref().to_vec(), |value, number| field(*number, value))
}

pub(super) fn at(type_url: &str, name: &str) -> proto::Key {
    proto::Key { type_url: type_url.into(), name: name.into(), when: String::new() }
}

pub(super) fn put_at(key: proto::Key, payload: Vec<u8>) -> proto::Change {
    let content =
        proto::Content { payload: [field(1, &key.name), payload].concat().into(), ..Default::default() };
    let put = proto::change::Act::Put(proto::Put { content: Some(content), ..Default::default() });
    proto::Change { key: Some(key), condition: None, act: Some(put) }
}

pub(super) fn cluster(name: &str) -> proto::Change {
    put_at(at(type_url::CLUSTER, name), Vec::new())
}

pub(super) fn routes(name: &str, cluster: &str) -> proto::Change {
    put_at(at(type_url::ROUTE_CONFIGURATION, name), path(&[2, 3, 2, 1], cluster))
}

fn listener(name: &str, routes: &str) -> proto::Change {
    let manager = "t/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let manager = [field(1, manager), field(2, path(&[3, 2], routes))].concat();
    put_at(at(type_url::LISTENER, name), path(&[3, 3, 4], manager))
}

fn of(type_url: &str, name: &str) -> proto::ReferencesRequest {
    proto::ReferencesRequest { key: Some(at(type_url, name)), ..Default::default() }
}

/// `source field target`, with `?` if the target is missing.
fn shown(references: &[proto::Reference]) -> Vec<String> {
    let name = |key: &Option<proto::Key>| key.as_ref().unwrap().name.clone();
    let shown = references.iter().map(|reference| {
        let field = reference.field.rsplit('.').next().unwrap();
        let missing = if reference.is_missing { "?" } else { "" };
        format!("{} {field} {}{missing}", name(&reference.source), name(&reference.target))
    });
    shown.collect()
}

async fn store_with_references() -> Served {
    let served = serve().await;
    let request = proto::CommitRequest {
        allow_missing: true,
        ..commit_of(vec![cluster("a"), routes("web", "a"), routes("old", "gone"), listener("l", "web")])
    };
    let committed = served.store().await.commit(request).await.unwrap().into_inner();
    assert_eq!(committed.warnings.len(), 1, "{committed:?}");
    served
}

#[tokio::test]
async fn sg10_references_say_what_a_record_names_what_names_it_and_what_blocks_its_deletion() {
    let served = store_with_references().await;
    let mut store = served.store().await;
    let a = store.references(of(type_url::CLUSTER, "a")).await.unwrap().into_inner();
    assert_eq!((shown(&a.targets), shown(&a.referrers)), (vec![], vec!["web cluster a".to_owned()]));
    assert_eq!((a.referrer_count, a.is_cycle), (1, false));
    assert_eq!(shown(&a.blocked_by), ["web cluster a", "l route_config_name web"]);
    assert_eq!(a.blocked_by[0].on_delete(), proto::OnDelete::Block);
    assert_eq!(a.blocked_by[0].field, "virtual_hosts.routes.route.cluster");
    let one_step = proto::ReferencesRequest { depth: 1, ..of(type_url::CLUSTER, "a") };
    assert_eq!(store.references(one_step).await.unwrap().into_inner().blocked_by.len(), 1);
    let old = store.references(of(type_url::ROUTE_CONFIGURATION, "old")).await.unwrap().into_inner();
    assert_eq!((shown(&old.targets), old.referrers.len()), (vec!["old cluster gone?".to_owned()], 0));
    // What does not exist has referrers.
    let gone = store.references(of(type_url::CLUSTER, "gone")).await.unwrap().into_inner();
    assert_eq!(shown(&gone.referrers), ["old cluster gone?"]);
    let none = store.references(of(type_url::CLUSTER, "none")).await.unwrap_err();
    assert_eq!(none.code(), Code::NotFound);
}

#[tokio::test]
async fn sg10_a_record_that_is_being_deleted_says_what_it_waits_for() {
    let served = store_with_references().await;
    let drain = proto::change::Act::Delete(proto::Delete { drain: true });
    let drain = proto::Change { key: Some(at(type_url::CLUSTER, "a")), condition: None, act: Some(drain) };
    let result = served.commit(vec![drain]).await.results.remove(0);
    assert_eq!(result.outcome(), proto::Outcome::Deleting);
    assert_eq!(shown(&result.blocked_by), ["web cluster a"]);
    let get = proto::GetRequest { key: Some(at(type_url::CLUSTER, "a")), ..Default::default() };
    let record = served.store().await.get(get).await.unwrap().into_inner().record.unwrap();
    assert_eq!(
        (record.state(), shown(&record.blocked_by)),
        (proto::State::Deleting, vec!["web cluster a".to_owned()])
    );
    let list = served.store().await.list(proto::ListRequest::default()).await.unwrap().into_inner();
    assert!(list.records.iter().any(|record| record.state() == proto::State::Deleting));
}

#[tokio::test]
async fn sg10_st54_references_name_only_what_the_client_may_read() {
    let served = store_with_references().await;
    served.policy.set("token:ci", Rights { read: only(&["a", "w*"]), ..Rights::nothing() });
    let mut store = served.store_as(Some(CI)).await;
    let a = store.references(of(type_url::CLUSTER, "a")).await.unwrap().into_inner();
    assert_eq!(shown(&a.blocked_by), ["web cluster a"]);
    served.policy.set("token:ci", Rights { read: only(&["a"]), ..Rights::nothing() });
    let a = store.references(of(type_url::CLUSTER, "a")).await.unwrap().into_inner();
    assert_eq!((a.referrers.len(), a.referrer_count, a.blocked_by.len()), (0, 1, 0));
    let denied = store.references(of(type_url::LISTENER, "l")).await.unwrap_err();
    assert!(matches!(violation(&denied, Code::PermissionDenied).why, Some(Why::Right(_))));
}

#[tokio::test]
async fn sg4_st54_a_refusal_names_only_referrers_that_the_client_may_read() {
    let served = store_with_references().await;
    let delete = proto::change::Act::Delete(proto::Delete::default());
    let delete = proto::Change { key: Some(at(type_url::CLUSTER, "a")), condition: None, act: Some(delete) };
    let refused = served.store().await.commit(commit_of(vec![delete.clone()])).await.unwrap_err();
    let Some(Why::Referred(referred)) = violation(&refused, Code::FailedPrecondition).why else {
        panic!("{refused:?}")
    };
    assert_eq!((shown(&referred.by), referred.count), (vec!["web cluster a".to_owned()], 1));
    served.policy.set("token:ci", Rights { read: only(&["a"]), ..Rights::everything() });
    let refused = served.store_as(Some(CI)).await.commit(commit_of(vec![delete])).await.unwrap_err();
    let hidden = violation(&refused, Code::FailedPrecondition);
    assert!(hidden.message.contains("is used by 1 record") && !format!("{hidden:?}").contains("web"));
}

#[tokio::test]
async fn sg10_sg11_references_have_the_field_and_the_effect_of_a_rule() {
    let served = store_with_references().await;
    let rule = proto::ReferenceRule {
        type_url: type_url::ROUTE_CONFIGURATION.into(),
        field: "virtual_hosts.routes.route.cluster".into(),
        target_type_url: type_url::CLUSTER.into(),
        on_delete: proto::OnDelete::Cascade.into(),
        ..Default::default()
    };
    let content = proto::Content { payload: Message::encode_to_vec(&rule).into(), ..Default::default() };
    let put = proto::change::Act::Put(proto::Put { content: Some(content), ..Default::default() });
    let key = at(xds_store::rules::RULE_TYPE, "routes");
    served.commit(vec![proto::Change { key: Some(key), condition: None, act: Some(put) }]).await;
    let mut store = served.store().await;
    let a = store.references(of(type_url::CLUSTER, "a")).await.unwrap().into_inner();
    assert_eq!((shown(&a.referrers), a.blocked_by.len()), (vec!["web cluster a".to_owned()], 0));
    assert_eq!(a.referrers[0].on_delete(), proto::OnDelete::Cascade);
    let web = store.references(of(type_url::ROUTE_CONFIGURATION, "web")).await.unwrap().into_inner();
    assert_eq!(web.targets[0].on_delete(), proto::OnDelete::Cascade);
    // What goes with it is blocked, and so it waits.
    let drain = proto::change::Act::Delete(proto::Delete { drain: true });
    let drain = proto::Change { key: Some(at(type_url::CLUSTER, "a")), condition: None, act: Some(drain) };
    served.commit(vec![drain]).await;
    let a = store.references(of(type_url::CLUSTER, "a")).await.unwrap().into_inner();
    assert_eq!(shown(&a.blocked_by), ["web cluster a", "l route_config_name web"]);
}
