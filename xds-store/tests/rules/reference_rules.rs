use xds_core::{Access, FieldPath};
use xds_proto::type_url;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{RefusalCode, Refused, WriteAccess};
use xds_store::engine::Engine;
use xds_store::rules::FieldSource;
use xds_store::store::{Config, Event, LoadError, Store};

use crate::driven::envoy::*;
use crate::driven::*;

const ALLOW: proto::OnDelete = proto::OnDelete::Allow;
const BLOCK: proto::OnDelete = proto::OnDelete::Block;

/// The field of a refused rule that is wrong.
fn invalid(refused: &Refused) -> (RefusalCode, String) {
    match &refused.violations[0].why {
        Some(proto::violation::Why::Invalid(invalid)) => (refused.code, invalid.field.clone()),
        why => panic!("{why:?}"),
    }
}

/// A server that knows the field `owner.group` of things, and `groups` of them.
fn with_things(server: &Server) -> Server {
    Server::with(server.engine.clone(), server.now, knows_things)
}

fn knows_things(config: &mut Config) {
    config.server = 7;
    config.fields = FieldSource::new(|type_url, field| match (type_url, field) {
        (TYPE, "owner.group") => Some(FieldPath::new([4, 1])),
        (TYPE, "groups") => Some(FieldPath::new([5])),
        _ => None,
    });
}

const GROUP: &str = "example.com/acme.Group";

fn of_things(field: &str, on_delete: proto::OnDelete) -> Rule<'_> {
    Rule { type_url: TYPE, field, target: GROUP, on_delete, external: &[], collect: false }
}

/// A thing whose owner is of this group.
fn thing(name: &str, group: &str) -> proto::Change {
    put_at(key(name, ""), path(&[4, 1], group))
}

fn group(name: &str) -> proto::Change {
    put_at(key_of(GROUP, name), b"\x0a\x01x".to_vec())
}

#[test]
fn sg11_a_rule_replaces_the_built_in_one_of_its_field_until_it_is_deleted() {
    let mut server = Server::new();
    server.commit(of([cluster("a"), routes("web", &["a"])])).unwrap();
    server.commit(of([Rule::of_routes(ALLOW).put("r")])).unwrap();
    let dry_run = |request| proto::CommitRequest { dry_run: true, ..request };
    let delete = || of([delete_at(cluster_key("a"))]);
    server.commit(dry_run(delete())).unwrap();
    server.commit(dry_run(of([routes("web", &["b"])]))).unwrap();
    // Another field of the same types has the built-in rule.
    let mirrored = [path(&[1], "mirror"), path(&[13, 1], "a")].concat();
    let mirrored = put_at(routes_key("mirror"), mirrored);
    server.commit(of([mirrored])).unwrap();
    assert_eq!(server.code(delete()), RefusalCode::FailedPrecondition);
    server.commit(of([delete_at(routes_key("mirror")), delete_at(rule_key("r"))])).unwrap();
    assert_eq!(server.code(delete()), RefusalCode::FailedPrecondition);
}

#[test]
fn sg11_rules_hold_at_other_servers_and_after_a_restart() {
    let mut server = Server::new();
    let mut other = Server::on(server.engine.clone(), 2, server.now);
    server.commit(of([cluster("a"), routes("web", &["a"])])).unwrap();
    server.commit(of([Rule::of_routes(ALLOW).put("r")])).unwrap();
    let dry_run = || proto::CommitRequest { dry_run: true, ..of([delete_at(cluster_key("a"))]) };
    other.step(Event::Changed);
    other.commit(dry_run()).unwrap();
    Server::on(server.engine.clone(), 3, server.now).commit(dry_run()).unwrap();
    server.commit(of([Rule::of_routes(BLOCK).put("r")])).unwrap();
    other.step(Event::Changed);
    assert_eq!(other.code(dry_run()), RefusalCode::FailedPrecondition);
    let mut later = Server::on(server.engine.clone(), 3, server.now);
    assert_eq!(later.code(dry_run()), RefusalCode::FailedPrecondition);
}

#[test]
fn sg11_a_rule_that_no_descriptor_and_no_table_knows_is_invalid() {
    let mut server = Server::new();
    let field = |field: &str| (RefusalCode::InvalidArgument, format!("put.content.payload{field}"));
    let mut refused = |rule: Rule<'_>| invalid(&server.commit(of([rule.put("r")])).unwrap_err());
    let good = Rule::of_routes(BLOCK);
    assert_eq!(refused(Rule { field: "virtual_hosts.cluster", ..good }), field(".field"));
    assert_eq!(refused(Rule { type_url: TYPE, ..good }), field(".field"));
    assert_eq!(refused(Rule { type_url: "", ..good }), field(".type_url"));
    assert_eq!(refused(Rule { target: xds_store::rules::RULE_TYPE, ..good }), field(".target_type_url"));
    assert_eq!(refused(Rule { target: type_url::SECRET, ..good }), field(".target_type_url"));
    assert_eq!(refused(Rule { on_delete: proto::OnDelete::Unspecified, ..good }), field(".on_delete"));
    assert_eq!(refused(Rule { external: &["a*b"], ..good }), field(".external"));
    let eds = Rule {
        type_url: type_url::CLUSTER,
        field: "eds_cluster_config.service_name",
        target: type_url::CLUSTER_LOAD_ASSIGNMENT,
        on_delete: proto::OnDelete::Unset,
        ..good
    };
    assert_eq!(refused(eds), field(".on_delete"));
    assert_eq!(
        invalid(&server.commit(of([put_at(rule_key("r"), b"\xff".to_vec())])).unwrap_err()),
        field("")
    );
    // A rule holds for all clients, and until it is deleted.
    let constrained =
        proto::Change { key: Some(proto::Key { when: "env=prod".into(), ..rule_key("r") }), ..good.put("r") };
    assert_eq!(server.code(of([constrained])), RefusalCode::InvalidArgument);
    let mut leased = good.put("r");
    if let Some(proto::change::Act::Put(put)) = &mut leased.act {
        put.lease = Some(prost_types::Duration { seconds: 10, nanos: 0 });
    }
    assert_eq!(server.code(of([leased])), RefusalCode::InvalidArgument);
    server.commit(of([good.put("r")])).unwrap();
    // A field has one rule.
    let twin = server.commit(of([good.put("s")])).unwrap_err();
    assert_eq!(invalid(&twin).0, RefusalCode::FailedPrecondition);
    server.commit(of([good.put("s"), delete_at(rule_key("r"))])).unwrap();
}

#[test]
fn st55_a_rule_needs_the_right_to_operate() {
    let mut server = Server::new();
    let access = |configuration| WriteAccess {
        records: Access::everything(),
        configuration,
        read: Access::everything(),
    };
    let put = || of([Rule::of_routes(ALLOW).put("r")]);
    let refused = server.commit_with(&access(false), put()).unwrap_err();
    assert_eq!(refused.code, RefusalCode::PermissionDenied);
    server.commit_with(&access(true), put()).unwrap();
}

#[test]
fn sg1_sg11_a_field_of_another_type_is_read_by_descriptors() {
    let mut server = with_things(&Server::new());
    server.commit(of([thing("t", "g"), group("g"), of_things("owner.group", BLOCK).put("r")])).unwrap();
    let refused = server.commit(of([delete_at(key_of(GROUP, "g"))])).unwrap_err();
    assert!(refused.message.contains("t (owner.group): remove that first"), "{refused:?}");
    assert_eq!(server.code(of([thing("u", "h")])), RefusalCode::FailedPrecondition);
    server.commit(of([thing("u", "h"), group("h")])).unwrap();
    // Without descriptors the references would be unknown, so no server goes on without them.
    let config = Config::new(server.engine.limits(), 9);
    let loaded = Store::load(&*server.engine.view().unwrap(), config, server.now, |_| {});
    assert!(matches!(loaded, Err(LoadError::LacksField { name, .. }) if name == "r"));
}

#[test]
fn sg11_a_server_without_the_descriptors_of_a_new_rule_accepts_no_commits() {
    let first = Server::new();
    let mut server = with_things(&first);
    let mut other = Server::on(server.engine.clone(), 2, server.now);
    server.commit(of([of_things("owner.group", BLOCK).put("r")])).unwrap();
    other.step(Event::Changed);
    assert_eq!(other.code(of([put("x", "1")])), RefusalCode::Unavailable);
    assert!(other.store.read_only().unwrap().contains("the reference rule r"));
}

#[test]
fn sg12_a_new_rule_invalidates_nothing_that_exists() {
    let mut server = with_things(&Server::new());
    server.commit(of([thing("t", "missing"), thing("u", "g"), group("g")])).unwrap();
    let committed = server.commit(of([of_things("owner.group", BLOCK).put("r")])).unwrap();
    let t = format!("by this rule, {TYPE} t names what does not exist");
    assert_eq!(committed.warnings, [t]);
    // From then on it holds, for new references and for targets.
    server.commit(of([put_at(key("t", ""), [path(&[4, 1], "missing"), path(&[9], "x")].concat())])).unwrap();
    assert_eq!(server.code(of([thing("new", "missing")])), RefusalCode::FailedPrecondition);
    assert_eq!(server.code(of([delete_at(key_of(GROUP, "g"))])), RefusalCode::FailedPrecondition);
}

#[test]
fn sg12_a_record_that_is_put_with_the_rule_keeps_what_it_named_before() {
    let mut server = with_things(&Server::new());
    server.commit(of([thing("t", "missing")])).unwrap();
    let again = put_at(key("t", ""), [path(&[4, 1], "missing"), path(&[9], "x")].concat());
    server.commit(of([again, of_things("owner.group", BLOCK).put("r")])).unwrap();
    server.commit(of([delete_at(rule_key("r"))])).unwrap();
    let refused = of([thing("t", "other"), of_things("owner.group", BLOCK).put("r")]);
    assert_eq!(server.code(refused), RefusalCode::FailedPrecondition);
}

#[test]
fn sg3_external_names_are_not_judged_and_a_refusal_names_the_way_out() {
    let mut server = Server::new();
    let refused = server.commit(of([routes("web", &["static"])])).unwrap_err();
    let way_out = "list it as `external` in a reference rule, or allow missing targets";
    assert!(refused.message.ends_with(way_out), "{refused:?}");
    let rule = Rule { external: &["static", "local-*"], ..Rule::of_routes(BLOCK) };
    server.commit(of([rule.put("r")])).unwrap();
    let committed = server.commit(of([routes("web", &["static", "local-1"])])).unwrap();
    assert_eq!(committed.warnings, [""; 0]);
    assert_eq!(server.code(of([routes("web", &["statics"])])), RefusalCode::FailedPrecondition);
    // Such a name in the store is not held.
    server.commit(of([cluster("static")])).unwrap();
    server.commit(of([delete_at(cluster_key("static"))])).unwrap();
}

#[test]
fn sg5_sg11_a_rule_collects_targets() {
    let mut server = with_things(&Server::new());
    let rule = Rule { collect: true, ..of_things("groups", ALLOW) };
    let both = put_at(key("t", ""), [path(&[5], "g"), path(&[5], "h")].concat());
    server.commit(of([both, thing("u", "h"), group("g"), group("h"), rule.put("r")])).unwrap();
    server.commit(of([of_things("owner.group", BLOCK).put("s")])).unwrap();
    // Another field still keeps one of them.
    let committed = server.commit(of([delete_at(key("t", ""))])).unwrap();
    let effects: Vec<_> = committed.effects.iter().map(|effect| effect.key.name().to_string()).collect();
    assert_eq!(effects, ["g"]);
}

#[test]
fn sg11_st17_commits_around_a_rule_in_a_batch_are_judged_by_the_rules_before_them() {
    let mut server = Server::new();
    server.commit(of([cluster("a"), routes("web", &["a"])])).unwrap();
    let delete = || of([delete_at(cluster_key("a"))]);
    let answers = server.together([
        of([cluster("x")]),
        delete(),
        of([routes("late", &["a"])]),
        of([Rule::of_routes(ALLOW).put("r")]),
        delete(),
        of([delete_at(rule_key("r"))]),
        of([cluster("a")]),
        delete(),
    ]);
    let codes: Vec<_> =
        answers.iter().map(|answer| answer.as_ref().err().map(|refused| refused.code)).collect();
    let refused = Some(RefusalCode::FailedPrecondition);
    assert_eq!(codes, [None, refused, None, None, None, None, None, refused]);
}

#[test]
fn st42_names_in_the_fields_of_rules_count_as_references_of_a_record() {
    let mut server = with_things(&Server::new());
    server.commit(of([of_things("groups", ALLOW).put("r")])).unwrap();
    let many = |count: usize| {
        let groups: Vec<_> = (0..count).map(|number| path(&[5], format!("g{number}"))).collect();
        of([put_at(key("t", ""), groups.concat())])
    };
    server.commit(many(10_000)).unwrap();
    let refused = server.commit(many(10_001)).unwrap_err();
    assert_eq!(refused.code, RefusalCode::ResourceExhausted);
    assert!(refused.message.contains("references of a record: 10001"), "{refused:?}");
}
