//! A store that gets another id while nobody has it open (SR31).

use super::*;

fn reid(node: &Server, id: &str) -> Server {
    let mut engine = copy_of(&node.engine);
    let (batch, head) = Store::rename(&*engine.view().unwrap(), id).unwrap();
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
    let mut copy = reid(&a, "copy");
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
    assert!(reid(&copy, "again").store.head().former_nodes == ["a", "copy"]);
}

#[test]
fn sr24_sr31_a_joining_store_with_another_id_still_waits_and_owes_nothing() {
    let mut engine = MemoryEngine::default();
    engine.commit(&Store::init_joining(&Identity { node: "c".into(), ..Identity::default() })).unwrap();
    let (batch, head) = Store::rename(&*engine.view().unwrap(), "d").unwrap();
    engine.commit(&batch).unwrap();
    assert!(head.is_joining && !head.owes_reissue);
    let mut a = node("a");
    commit(&mut a, [put("x", "1")]);
    let mut d = on(engine, SECOND);
    d.resync(&a, false, "other");
    commit(&mut d, [put("y", "1")]);
    converge(&mut a, &mut d);
}
