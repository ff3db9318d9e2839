//! What a snapshot loses, in the journal of the node that takes it (SR44).

use xds_store::read::ConflictsQuery;

use super::*;

/// The journal, the oldest conflict first, without times.
fn journal(node: &Server) -> Vec<proto::Conflict> {
    let view = node.engine.view().unwrap();
    let query = ConflictsQuery { before: None, may_read: &|_| true, limit: 100, limit_bytes: 1 << 20 };
    let mut conflicts = Reads::new(&*view).unwrap().conflicts(query).unwrap().conflicts;
    conflicts.iter_mut().for_each(|conflict| conflict.at = None);
    conflicts.sort_by_key(|conflict| (conflict.kind, conflict.loser_revision.clone()));
    conflicts
}

fn shown(node: &Server) -> Vec<(proto::conflict::Kind, String, String)> {
    let show = |conflict: proto::Conflict| {
        let payload = conflict.loser.as_ref().unwrap().payload.to_vec();
        (conflict.kind(), conflict.key.unwrap().name, String::from_utf8(payload).unwrap())
    };
    journal(node).into_iter().map(show).collect()
}

#[test]
fn sr44_a_snapshot_is_journaled_like_the_entries_that_it_stands_for() {
    let (a, mut b) = cut_off_as(Server::node);
    commit(&mut b, [put("both", "of b"), put("gone", "of b"), put("new", "of b")]);
    let mut by_entries = on(copy_of(&b.engine), b.now);
    pull(&mut by_entries, &a);
    b.resync(&a, false, "b2");
    let expected = journal(&by_entries);
    assert_eq!(expected.len(), 3, "{expected:?}");
    assert_eq!(journal(&b), expected);
    check(&mut b);
    b.resync(&a, false, "b2");
    assert_eq!(journal(&b), expected, "once");
}

#[test]
fn sr44_a_record_that_was_created_again_is_no_conflict_unless_a_change_here_was_not_known() {
    for has_changed in [false, true] {
        let (mut a, mut b) = cut_off_as(Server::node);
        commit(&mut a, [put("gone", "again")]);
        if has_changed {
            commit(&mut b, [put("gone", "of b")]);
        }
        b.resync(&a, false, "b2");
        assert_eq!(payload(&b, "gone").as_deref(), Some("again"));
        let lost = (proto::conflict::Kind::Creation, "gone".to_owned(), "of b".to_owned());
        assert_eq!(shown(&b), if has_changed { vec![lost] } else { Vec::new() });
    }
}

#[test]
fn sr21_sr44_changes_that_a_snapshot_replaces_are_journaled_as_dropped() {
    let (mut a, mut b) = cut_off();
    commit(&mut b, [put("gone", "of b"), put("both", "of b")]);
    forget_all(&mut a);
    b.resync(&a, true, "b2");
    let shown = shown(&b);
    let dropped = (proto::conflict::Kind::Dropped, "gone".to_owned(), "of b".to_owned());
    assert!(shown.contains(&dropped), "{shown:?}");
    assert_eq!(shown.len(), 2, "{shown:?}");
    assert_eq!((shown[0].0, &*shown[0].1), (proto::conflict::Kind::Content, "both"));
    check(&mut b);
}
