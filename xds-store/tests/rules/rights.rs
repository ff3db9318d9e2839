use xds_core::{Access, NamePatterns};
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{RefusalCode, Refused, WriteAccess};
use xds_store::record::PROBE_TYPE;

use crate::driven::*;

/// A client that may write records with these names.
fn only(names: &[&str]) -> WriteAccess {
    let records = Access::nothing().with_every_type(&names.iter().copied().collect::<NamePatterns>());
    WriteAccess { records, configuration: false, read: Access::everything() }
}

fn prune(changes: impl Into<Vec<proto::Change>>) -> proto::CommitRequest {
    proto::CommitRequest { owner: "team".into(), prune: true, ..of(changes) }
}

fn rights(refused: &Refused) -> Vec<(u32, &str)> {
    assert_eq!(refused.code, RefusalCode::PermissionDenied, "{refused:?}");
    let right = |violation: &proto::Violation| match &violation.why {
        Some(proto::violation::Why::Right(_)) => violation.change,
        why => panic!("{why:?}"),
    };
    refused.violations.iter().map(|violation| (right(violation), &*violation.message)).collect()
}

#[test]
fn st8_sg16_a_prune_needs_the_right_to_write_what_it_releases() {
    let mut server = Server::new();
    let all = [put("mine", "1"), put("secret-1", "1"), put("secret-2", "1")];
    server.commit(proto::CommitRequest { owner: "team".into(), ..of(all) }).unwrap();
    let before = server.engine_revision();
    // The right is judged before conditions, and a dry run needs it, too.
    let absent = only_if(proto::condition::Is::Absent(true), put("mine", "2"));
    let dry_run = proto::CommitRequest { dry_run: true, ..prune([]) };
    for request in [prune([]), prune([absent]), dry_run] {
        let refused = server.commit_with(&only(&["mine"]), request).unwrap_err();
        let message = "prune would end the ownership of 2 records that this client may not write: it lacks the \
                       right `write`";
        assert_eq!(rights(&refused), [(0, message)]);
        assert!(refused.violations[0].key.is_none(), "{refused:?}");
    }
    assert_eq!(server.engine_revision(), before);
    // Records of others do not matter.
    let others = only(&["mine", "secret-1", "secret-2"]);
    server.commit(of([put("other", "1")])).unwrap();
    assert_eq!(server.commit_with(&others, prune([])).unwrap().effects.len(), 3);
}

#[test]
fn st55_a_prune_of_configuration_needs_the_right_to_operate() {
    let mut server = Server::new();
    let mut probe = put("probe", "1");
    probe.key.as_mut().unwrap().type_url = PROBE_TYPE.into();
    server.commit(proto::CommitRequest { owner: "team".into(), ..of([probe]) }).unwrap();
    let refused = server.commit_with(&only(&["*"]), prune([])).unwrap_err();
    let message = "prune would end the ownership of 1 record that this client may not write: it lacks the right \
                   `operate`";
    assert_eq!(rights(&refused), [(0, message)]);
    let operator = WriteAccess { configuration: true, ..only(&[]) };
    assert_eq!(server.commit_with(&operator, prune([])).unwrap().effects.len(), 1);
}

#[test]
fn st8_a_put_needs_the_right_to_write_its_aliases() {
    let mut server = Server::new();
    let refused = server.commit_with(&only(&["a"]), of([put("a", "1"), aliased("b", "c")])).unwrap_err();
    let numbers: Vec<_> = rights(&refused).into_iter().map(|(number, _)| number).collect();
    assert_eq!(numbers, [1, 1], "the name and the alias");
    // Clients that request `b` would get what this client wrote.
    let refused = server.commit_with(&only(&["a"]), of([aliased("a", "b")])).unwrap_err();
    assert!(refused.message.contains("may not write b, which is an alias of"), "{refused:?}");
    server.commit_with(&only(&["a", "b"]), of([aliased("a", "b")])).unwrap();
}
