//! The events of watches, and the requests that are refused.

use std::task::{Context, Poll, Waker};

use super::fixture::{Viewed, Wakes, reported, request, status_of};
use super::*;
use crate::cache::TypeSnapshot;
use crate::client::health::fixture::url;

fn rejected(letter: &str) -> Result<(), ViewError> {
    Err(ViewError::Rejected { type_url: url(letter), status: status_of(letter) })
}

/// An upstream that serves `a` and rejects `b` and `c`.
fn partial() -> Viewed {
    let mut f = Viewed::of("a b c");
    f.open();
    for letter in ["c", "b"] {
        f.upstream.health.on_rejected(&url(letter), status_of(letter));
    }
    f.commit("a x=1");
    f.respond("a");
    f
}

#[test]
fn something_is_requested() {
    let f = Viewed::of("a");
    let error = f.try_watch("", true).unwrap_err();
    assert_eq!((&error, error.status()), (&ViewError::NoTypes, None));
    // A layer above found everything it wanted rejected.
    let previously_rejected = vec![(url("b"), status_of("b")), (url("a"), status_of("a"))];
    let request = ViewRequest { previously_rejected, ..request("", true) };
    assert_eq!(f.view.watch(request).map(drop), rejected("b"));
}

#[test]
fn the_second_list_comes_only_with_the_flag() {
    let f = Viewed::of("a");
    let previously_rejected = vec![(url("c"), status_of("c")), (url("b"), status_of("b"))];
    for is_allowed in [false, true] {
        let previously_rejected = previously_rejected.clone();
        let request = ViewRequest { previously_rejected, ..request("a", is_allowed) };
        let expected = if is_allowed { Ok(()) } else { rejected("c") };
        assert_eq!(f.view.watch(request).map(drop), expected);
    }
}

#[test]
fn the_lists_are_disjoint() {
    let f = Viewed::of("a b");
    let previously_rejected = vec![(url("c"), status_of("c")), (url("b"), status_of("b"))];
    let request = ViewRequest { previously_rejected, ..request("a b", true) };
    let error = f.view.watch(request).unwrap_err();
    assert_eq!(error, ViewError::Contradiction { type_url: url("b"), status: status_of("b") });
    assert_eq!(error.status(), Some(&status_of("b")));
}

#[test]
fn without_the_flag_the_first_original_status_comes_back_unchanged() {
    let f = partial();
    for (types, expected) in [("a", Ok(())), ("a b c", rejected("b")), ("c a b", rejected("c"))] {
        assert_eq!(f.try_watch(types, false).map(drop), expected);
    }
    assert_eq!(f.try_watch("b", false).unwrap_err().to_string(), "UNIMPLEMENTED: what is b?");
}

#[test]
fn with_the_flag_a_watch_goes_on_without_what_is_rejected() {
    let f = partial();
    let mut watch = f.try_watch("c a b", true).unwrap();
    assert_eq!(reported(&mut watch), "1: a !b !c, {+a x=1}");
}

#[test]
fn with_the_flag_something_is_left_to_watch() {
    let f = partial();
    assert_eq!(f.try_watch("c b", true).map(drop), rejected("c"));
    assert_eq!(f.try_watch("b b", true).map(drop), rejected("b"));
}

#[test]
fn what_was_rejected_before_is_told_with_our_own_rejections_so_that_layers_pass_it_on() {
    let f = partial();
    let previously_rejected = vec![(url("d"), status_of("d"))];
    let mut watch = f.view.watch(ViewRequest { previously_rejected, ..request("a b", true) }).unwrap();
    let Some(Ok(ViewEvent::Init(init))) = first(&mut watch) else { panic!("comes first") };
    assert_eq!(init.rejected, BTreeMap::from([(url("b"), status_of("b")), (url("d"), status_of("d"))]));
    // The next layer takes what is rejected from its first list to its second.
    let next = Viewed::healthy("a", "");
    let previously_rejected = init.rejected.into_iter().collect();
    let mut watch = next.view.watch(ViewRequest { previously_rejected, ..request("a", true) }).unwrap();
    assert_eq!(reported(&mut watch), "1: a !b !d");
}

fn first(watch: &mut ViewWatch) -> Option<Result<ViewEvent, ViewError>> {
    match watch.poll_event(&Context::from_waker(Waker::noop())) {
        Poll::Ready(event) => event,
        Poll::Pending => panic!("there is no event"),
    }
}

#[test]
fn a_watch_made_before_the_first_init_is_provisional_and_checked_at_init() {
    let mut f = Viewed::of("a b");
    let (mut strict, mut lenient) = (f.watch("a b"), f.try_watch("a b", true).unwrap());
    let (mut only_a, mut only_b) = (f.watch("a"), f.try_watch("b", true).unwrap());
    f.open();
    f.commit("a x=1; b x=1");
    f.upstream.health.on_rejected(&url("b"), status_of("b"));
    for watch in [&mut strict, &mut lenient, &mut only_a, &mut only_b] {
        assert_eq!(reported(watch), "");
    }
    f.respond("a");
    assert_eq!(reported(&mut strict), "failed: UNIMPLEMENTED: what is b?, end");
    assert_eq!(reported(&mut lenient), "1: a !b, {+a x=1}");
    assert_eq!(reported(&mut only_a), "1: a, {+a x=1}");
    assert_eq!(reported(&mut only_b), "failed: UNIMPLEMENTED: what is b?, end");
}

#[test]
fn a_watch_made_while_the_next_generation_is_built_is_provisional_too() {
    let mut f = Viewed::healthy("a b", "a x=1");
    f.lose();
    let mut before = f.watch("a b");
    assert_eq!(reported(&mut before), "1: a b, {+a x=1}", "until there is a stream nothing is built");
    f.open();
    let mut during = f.watch("a b");
    assert_eq!(reported(&mut during), "", "nothing of a generation that is about to end");
    f.reject("b");
    f.respond("a");
    assert_eq!(reported(&mut during), "failed: UNIMPLEMENTED: in the words of the server, end");
    assert_eq!(reported(&mut before), "failed: UNIMPLEMENTED: in the words of the server, end");
}

#[test]
fn a_watch_made_while_a_type_is_rejected_is_provisional_if_the_next_generation_may_serve_it() {
    let mut f = partial();
    f.lose();
    f.open();
    let mut watch = f.watch("b");
    f.respond("a b c");
    assert_eq!(reported(&mut watch), "2: b");
}

#[test]
fn init_comes_first_then_changes_of_the_watched_types_in_order() {
    let f = Viewed::healthy("a b c", "c z=1; b y[env=q]=2 y[env=p]=1 x=3; a x=1");
    let mut watch = f.watch("c b");
    assert_eq!(reported(&mut watch), "1: b c, {+b x=3 +b y[env=p]=1 +b y[env=q]=2 +c z=1}");
    f.commit("b x=4 -y[env=p]; a x=2");
    assert_eq!(reported(&mut watch), "{+b x=4 -b y[env=p]}");
    f.commit("a x=3");
    assert_eq!(reported(&mut watch), "");
}

#[test]
fn a_slow_watch_is_told_the_newest_state_and_not_what_was_in_between() {
    let f = Viewed::healthy("a", "a x=1 y=1 z=1");
    let mut watch = f.watch("a");
    reported(&mut watch);
    for content in 2..=9 {
        f.commit(&format!("a x={content} w=1 -y"));
    }
    f.commit("a -w z=2");
    f.commit("a z=1");
    assert_eq!(reported(&mut watch), "{+a x=9 -a y}");
}

#[test]
fn a_new_generation_is_told_by_its_init_then_by_what_differs() {
    let mut f = Viewed::healthy("a b", "a x=1 y=1; b x=1");
    let mut watch = f.watch("a b");
    reported(&mut watch);
    f.lose();
    f.open();
    // Seeded by equal versions: what came again as it was is no change.
    f.commit("a -x; b -x");
    f.commit("a x=1 -y z=1; b x=2");
    f.respond("a");
    assert_eq!(reported(&mut watch), "", "it is not ready yet");
    f.respond("b");
    assert_eq!(reported(&mut watch), "2: a b, {-a y +a z=1 +b x=2}");
}

#[test]
fn a_watch_that_slept_through_a_generation_is_told_of_the_newest() {
    let mut f = Viewed::healthy("a", "a x=1");
    let mut watch = f.watch("a");
    reported(&mut watch);
    for content in 2..4 {
        f.lose();
        f.open();
        f.commit(&format!("a x={content}"));
        f.respond("a");
    }
    assert_eq!(reported(&mut watch), "3: a, {+a x=3}");
}

#[test]
fn what_was_told_of_a_type_is_void_when_it_is_rejected_and_told_anew_when_it_comes_back() {
    let mut f = Viewed::healthy("a b", "a x=1; b x=1");
    let mut watch = f.try_watch("a b", true).unwrap();
    assert_eq!(reported(&mut watch), "1: a b, {+a x=1 +b x=1}");
    f.reject("b");
    assert_eq!(reported(&mut watch), "!b");
    f.commit("b y=1");
    assert_eq!(reported(&mut watch), "", "nothing of it is readable");
    f.respond("b");
    assert_eq!(reported(&mut watch), "b, {+b x=1 +b y=1}");
    f.lose();
    f.open();
    f.reject("b");
    f.respond("a");
    assert_eq!(reported(&mut watch), "2: a !b");
    f.respond("b");
    assert_eq!(reported(&mut watch), "b, {+b x=1 +b y=1}");
}

#[test]
fn a_pending_type_is_reclassified_by_an_event() {
    let mut f = Viewed::of("a b c");
    let mut watch = f.try_watch("a b c", true).unwrap();
    f.open();
    f.commit("a x=1");
    f.respond("a");
    f.pass();
    assert_eq!(reported(&mut watch), "1: a ?b ?c, {+a x=1}");
    f.commit("b x=1");
    f.respond("b");
    f.reject("c");
    assert_eq!(reported(&mut watch), "b, !c, {+b x=1}");
}

#[test]
fn a_pending_type_that_is_rejected_ends_a_watch_that_did_not_opt_in() {
    let mut f = Viewed::of("a b");
    let (mut strict, mut other) = (f.watch("a b"), f.watch("a"));
    f.open();
    f.respond("a");
    f.pass();
    assert_eq!([reported(&mut strict), reported(&mut other)], ["1: a ?b", "1: a"]);
    f.reject("b");
    assert_eq!(reported(&mut strict), "failed: UNIMPLEMENTED: in the words of the server, end");
    assert_eq!(reported(&mut other), "");
}

#[test]
fn of_a_silent_type_what_was_told_stays() {
    let mut f = Viewed::healthy("a b", "a x=1; b x=1");
    let mut watch = f.watch("a b");
    reported(&mut watch);
    f.lose();
    f.open();
    f.commit("a x=2");
    f.respond("a");
    f.pass();
    assert_eq!(reported(&mut watch), "2: a ?b, {+a x=2}");
    f.respond("b");
    assert_eq!(reported(&mut watch), "b");
}

#[test]
fn a_type_that_nobody_asked_for_is_pending() {
    let mut f = Viewed::healthy("a", "b x=1");
    let mut watch = f.watch("a b");
    assert_eq!(reported(&mut watch), "1: a ?b");
    f.upstream.request("b");
    f.respond("b");
    assert_eq!(reported(&mut watch), "b, {+b x=1}");
}

#[test]
fn a_watch_is_woken_by_what_it_can_see_and_by_nothing_else() {
    let mut f = Viewed::healthy("a", "a x=1");
    let mut watch = f.watch("a");
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut sleep = || while watch.poll_event(&Context::from_waker(&waker)).is_ready() {};
    sleep();
    f.commit("a x=2");
    f.commit("a x=3");
    assert_eq!(wakes.taken(), 1, "it has not looked since");
    sleep();
    f.view.follow(&f.upstream.health);
    f.lose();
    f.open();
    f.commit("a x=4");
    assert_eq!(wakes.taken(), 0, "the generation is not ready");
    f.respond("a");
    assert_eq!(wakes.taken(), 1);
}

#[test]
fn a_watch_ends_with_its_view_after_the_last_event() {
    let f = Viewed::healthy("a", "a x=1");
    let mut watch = f.watch("a");
    let wakes = Arc::new(Wakes::default());
    assert_eq!(reported(&mut watch), "1: a, {+a x=1}");
    f.commit("a x=2");
    let waker = Waker::from(Arc::clone(&wakes));
    while watch.poll_event(&Context::from_waker(&waker)).is_ready() {}
    f.commit("a x=3");
    wakes.taken();
    drop(f);
    assert_eq!(reported(&mut watch), "{+a x=3}, end");
}

#[test]
fn a_dropped_watch_is_forgotten() {
    let f = Viewed::healthy("a", "a x=1");
    for _ in 0..100 {
        drop(f.watch("a"));
    }
    let kept = f.watch("a");
    assert_eq!(lock(&f.view.0.listeners).watches.len(), 1);
    drop(kept);
    f.commit("a x=2");
    assert_eq!(lock(&f.view.0.listeners).watches.len(), 0);
}

#[test]
fn a_failed_watch_holds_nothing() {
    let mut f = Viewed::healthy("a b", "a x=1");
    let mut watch = f.watch("a b");
    assert_eq!(reported(&mut watch), "1: a b, {+a x=1}");
    let variant = {
        let snapshot = f.cache.snapshot();
        Arc::downgrade(snapshot.get(&url("a"), &"x".into()).unwrap().iter().next().unwrap())
    };
    f.reject("b");
    f.commit("a x=2");
    assert!(variant.upgrade().is_some());
    reported(&mut watch);
    assert!(variant.upgrade().is_none());
}

/// One step of the upstream, of the cache or of the watch.
fn step(f: &mut Viewed, (step, of): (u8, u8)) {
    let letter = ["a", "b", "c"][usize::from(of % 3)];
    match step % 12 {
        0 => f.upstream.request(letter),
        1 | 2 => f.open(),
        3..=5 => f.respond(letter),
        6 => f.reject(letter),
        7 => f.lose(),
        8 => f.pass(),
        9 | 10 => f.commit(&format!("{letter} x{}={}", of % 4, step % 10)),
        _ => f.commit(&format!("{letter} -x{}", of % 4)),
    }
    f.view.follow(&f.upstream.health);
}

/// The state that a program builds from the events: the Init first, nothing of a rejected type, the
/// newest state of all others.
#[test]
fn whatever_happens_what_a_watch_was_told_is_what_is_read() {
    fn prop(steps: Vec<(u8, u8)>) {
        let mut f = Viewed::of("a b");
        let mut watch = f.try_watch("a b c", true).unwrap();
        let (mut generation, mut rejected, mut known) = (Generation::ZERO, Vec::new(), BTreeMap::new());
        for one in steps {
            let before = f.view.0.present.load_full();
            step(&mut f, one);
            let present = f.view.0.present.load_full();
            if !f.upstream.health.is_init() {
                assert!(Arc::ptr_eq(&before.snapshot, &present.snapshot), "readers stay while it is built");
            }
            assert!(before.generation() <= present.generation());
            // A slow one.
            if one.0 % 2 == 0 {
                continue;
            }
            while let Poll::Ready(event) = watch.poll_event(&Context::from_waker(Waker::noop())) {
                let Some(Ok(event)) = event else { return };
                match event {
                    ViewEvent::Init(init) => {
                        assert!(init.generation > generation);
                        generation = init.generation;
                        rejected = init.rejected.into_keys().collect();
                    }
                    ViewEvent::Reclassified { type_url, state } => {
                        rejected.retain(|of| *of != type_url);
                        rejected.extend(Some(type_url).filter(|_| matches!(state, SyncState::Rejected(..))));
                    }
                    ViewEvent::Changes(changes) => {
                        assert!(generation > Generation::ZERO && !changes.is_empty());
                        for change in changes {
                            match change {
                                ViewChange::Put { type_url, variant } => {
                                    assert!(!rejected.contains(&type_url));
                                    known.insert((type_url, variant.name().clone()), variant.version());
                                }
                                ViewChange::Removed(id) => {
                                    assert!(known.remove(&(id.type_url, id.name)).is_some());
                                }
                            }
                        }
                    }
                }
                known.retain(|(type_url, _), _| !rejected.contains(type_url));
            }
            assert_eq!(generation, present.generation());
            for (type_url, _) in present.states.iter().filter(|(_, state)| state.is_readable()) {
                let resources = present.snapshot.of_type(type_url);
                let resources = resources.into_iter().flat_map(TypeSnapshot::iter);
                let read = resources.map(|(name, variants)| {
                    (name.clone(), variants.iter().next().expect("there is one").version())
                });
                let reported = known.iter().filter(|((of, _), _)| of == type_url);
                let reported = reported.map(|((_, name), version)| (name.clone(), *version));
                assert_eq!(read.collect::<BTreeMap<_, _>>(), reported.collect());
            }
        }
    }
    quickcheck::QuickCheck::new().tests(500).quickcheck(prop as fn(Vec<(u8, u8)>));
}
