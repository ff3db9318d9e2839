//! A store that gets another id while nobody has it open (SR31).

use super::*;

fn reid(node: &Server, id: &str, gives_up_deletions: bool) -> Server {
    let mut engine = copy_of(&node.engine);
    let (batch, head) = Store::rename(&*engine.view().unwrap(), id, gives_up_deletions).unwrap();
    engine.commit(&batch).unwrap();
    assert_eq!((&*head.node, head.counter, head.owes_reissue), (id, 0, true));
    on(engine, node.now)
}

#[test]
fn sr31_a_copied_store_with_another_id_loses_nothing_and_changes_nothing() {
    let (mut a, mut b) = (node("a"), node("b"));
    commit(&mut a, [put("x", "1"), put("y", "1")]);
    pull(&mut b, &a);
    commit(&mut a, [put("unpulled", "1")]);
    let mut copy = reid(&a, "copy", false);
    assert_eq!(copy.store.head().former_nodes, ["a"]);
    assert_eq!(states(&copy), states(&a));
    check(&mut copy);
    // SR29: it goes on at once.
    commit(&mut copy, [put("of-copy", "1"), put("y", "of copy")]);
    copy.resync(&b, false, "other");
    assert!(!copy.store.owes_reissue());
    pull(&mut b, &copy);
    pull(&mut a, &b);
    pull(&mut copy, &b);
    for name in ["unpulled", "of-copy"] {
        assert_eq!(payload(&b, name).as_deref(), Some("1"), "{name}");
    }
    assert_eq!(states(&a), states(&b));
    assert_eq!(states(&copy), states(&b));
    assert!(reid(&copy, "again", false).store.head().former_nodes == ["a", "copy"]);
}

#[test]
fn sr24_sr31_a_joining_store_with_another_id_still_waits_and_owes_nothing() {
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init_joining(&Identity { node: "c".into(), ..Identity::default() })).unwrap();
    let (batch, head) = Store::rename(&*engine.view().unwrap(), "d", false).unwrap();
    engine.commit(&batch).unwrap();
    assert!(head.is_joining && !head.owes_reissue);
    let mut a = node("a");
    commit(&mut a, [put("x", "1")]);
    let mut d = on(engine, SECOND);
    d.resync(&a, false, "other");
    commit(&mut d, [put("y", "1")]);
    converge(&mut a, &mut d);
}

fn refuses_snapshot(to: &mut Server, from: &Server) {
    assert!(to.store.may_revive(&counters(from)));
    let before = states(to);
    for must_replace in [false, true] {
        to.step(Event::BeginResync { must_replace, new_id: "another".into() });
        to.step(Event::Stage(Ticket(0), from.snapshot(1 << 20).remove(0)));
        let refused = to.staged.pop().unwrap().unwrap_err();
        assert!(refused.message.contains("lacks deletions"), "{refused:?}");
    }
    assert_eq!(states(to), before);
}

#[test]
fn sr22_nodes_that_each_forgot_deletions_of_the_other_meet_once_one_gives_them_up() {
    let (mut a, mut b) = (node("a"), node("b"));
    commit(&mut a, [put("deleted-at-a", "1"), put("deleted-at-b", "1"), put("kept", "1")]);
    converge(&mut a, &mut b);
    for (node, name) in [(&mut a, "deleted-at-a"), (&mut b, "deleted-at-b")] {
        commit(node, [delete(name)]);
        commit(node, [put("of both", name)]);
        forget_all(node);
        // SR60: what the log has forgotten, and nobody pulled, is not to be known from what others deleted.
        commit(node, [put(&format!("created beside {name}"), "1")]);
    }
    // SR22: whatever one of them takes may be what the other one has deleted.
    refuses_snapshot(&mut a, &b);
    refuses_snapshot(&mut b, &a);
    let mut c = reid(&b, "c", true);
    assert!(a.store.may_revive(&counters(&c)), "A keeps its own");
    let resynced = c.resync(&a, true, "d");
    assert!(resynced.has_replaced);
    assert!(!a.store.may_revive(&counters(&c)));
    converge(&mut a, &mut c);
    for (name, found) in [
        ("deleted-at-a", None),
        ("deleted-at-b", Some("1")),
        ("kept", Some("1")),
        ("created beside deleted-at-a", Some("1")),
        ("created beside deleted-at-b", Some("1")),
    ] {
        assert_eq!(payload(&a, name).as_deref(), found, "{name}");
    }
    check(&mut c);
}
