use xds_proto::xds::store::v1 as proto;
use xds_store::commit::RefusalCode;

use crate::driven::*;

fn delete_when(name: &str, when: &str) -> proto::Change {
    change(name, when, proto::change::Act::Delete(proto::Delete::default()))
}

#[test]
fn st10_two_variants_that_one_client_matches_are_refused_with_parameters_of_such_a_client() {
    let mut server = Server::new();
    server.commit(of([put_when("a", "env!=prod", "1")])).unwrap();
    let refused = server.commit(of([put_when("a", "env=staging", "2")])).unwrap_err();
    assert_eq!(refused.code, RefusalCode::FailedPrecondition);
    let Some(proto::violation::Why::Ambiguous(why)) = &refused.violations[0].why else {
        panic!("{refused:?}")
    };
    assert_eq!((&*why.kind, &why.witness["env"]), ("overlap", &"staging".to_owned()));
    assert_eq!(why.other, Some(key("a", "env!=prod")));
    let other_keys = server.commit(of([put_when("a", "env=prod, version=1", "2")])).unwrap_err();
    let Some(proto::violation::Why::Ambiguous(why)) = &other_keys.violations[0].why else { panic!() };
    assert_eq!(why.kind, "key_sets");
    assert_eq!(server.store.revision(), 1);
}

#[test]
fn st10_the_state_after_the_commit_counts_so_variants_can_be_exchanged_in_any_order() {
    let mut server = Server::new();
    server.commit(of([put_when("a", "env=prod", "1"), put_when("a", "env!=prod", "2")])).unwrap();
    let exchange = [
        put_when("a", "env in (prod, staging)", "3"),
        delete_when("a", "env=prod"),
        put_when("a", "env notin (prod, staging)", "4"),
        delete_when("a", "env!=prod"),
    ];
    server.commit(of(exchange)).unwrap();
    // The places of deleted variants are free.
    server.commit(of([delete_when("a", "env in (prod, staging)")])).unwrap();
    server.commit(of([put_when("a", "env=staging", "5")])).unwrap();
}

#[test]
fn st10_a_name_or_an_alias_belongs_to_one_resource() {
    let mut server = Server::new();
    server.commit(of([aliased("a", "x")])).unwrap();
    for taken in [aliased("b", "x"), put("x", "1"), aliased("b", "a")] {
        let refused = server.commit(of([taken])).unwrap_err();
        let Some(proto::violation::Why::Ambiguous(why)) = &refused.violations[0].why else { panic!() };
        assert_eq!(why.kind, "alias_taken");
    }
    // Two resources exchange an alias in one commit.
    server.commit(of([aliased("b", "y")])).unwrap();
    server.commit(of([aliased("a", "y"), aliased("b", "x")])).unwrap();
    server.commit(of([delete("b")])).unwrap();
    server.commit(of([put("x", "1")])).unwrap();
}

#[test]
fn st10_an_alias_is_free_when_the_last_variant_that_has_it_is_gone() {
    let mut server = Server::new();
    let variant = |when: &str| {
        let mut change = aliased("a", "x");
        change.key = Some(key("a", when));
        change
    };
    server.commit(of([variant("env=prod"), variant("env=test")])).unwrap();
    server.commit(of([delete_when("a", "env=prod")])).unwrap();
    let mut again = Server::on(server.engine.clone(), 2, server.now);
    assert_eq!(again.code(of([put("x", "1")])), RefusalCode::FailedPrecondition);
    assert_eq!(server.code(of([put("x", "1")])), RefusalCode::FailedPrecondition);
    server.commit(of([delete_when("a", "env=test"), put("x", "1")])).unwrap();
}

#[test]
fn st10_a_store_that_is_loaded_again_refuses_the_same() {
    let mut server = Server::new();
    server.commit(of([put_when("a", "env=prod", "1"), aliased("b", "x")])).unwrap();
    let mut again = Server::on(server.engine.clone(), 2, server.now);
    for changes in [put_when("a", "env in (prod, staging)", "2"), put("x", "1")] {
        assert_eq!(again.code(of([changes])), RefusalCode::FailedPrecondition);
    }
}
