use std::time::Duration;

use super::*;
use crate::server::fixture::{Delta, Sotw, commit, is_woken, parameters, payload, try_commit, type_url};
use crate::server::{Next, StreamError};
use crate::subscription::Subscription;
use crate::{Parameters, Resource, ResourceName, VariantId};

fn put(transaction: &mut Transaction, name: &str, content: &str) {
    transaction.put(Resource::new(type_url("EDS"), name, payload("EDS", name, content)).unwrap());
}

fn content(snapshot: &Snapshot, name: &str) -> Option<Arc<Variant>> {
    snapshot.get(&type_url("EDS"), &name.into()).map(|variants| Arc::clone(variants.iter().next().unwrap()))
}

#[test]
fn g16_a_variant_changed_twice_is_refused_and_nothing_of_the_transaction_is_kept() {
    let cache = Cache::new();
    let mut transaction = Transaction::new();
    put(&mut transaction, "a", "1");
    put(&mut transaction, "b", "1");
    put(&mut transaction, "a", "2");
    let id = VariantId::unconstrained(type_url("EDS"), "a");
    assert_eq!(cache.commit(transaction), Err(CommitError::Contradiction { id }));
    assert_eq!((cache.snapshot().revision(), cache.snapshot().counts().count()), (Revision::ZERO, 0));
}

#[test]
fn the_order_in_which_changes_are_added_plays_no_part() {
    let put = |text: &str| {
        let cache = Cache::new();
        commit(&cache, "EDS c=1 d[env=p]=1; CDS c=1");
        assert_eq!(commit(&cache, text).changed, 5);
        let snapshot = cache.snapshot();
        let versions = |name: &str| {
            let mut versions: Vec<_> = ["EDS", "CDS"]
                .iter()
                .filter_map(|of| snapshot.get(&type_url(of), &name.into()))
                .flat_map(|variants| variants.iter().map(|variant| variant.version()).collect::<Vec<_>>())
                .collect();
            versions.sort_unstable();
            versions
        };
        ["a", "b", "c", "d"].map(versions)
    };
    let sorted = put("CDS c=2; EDS a[env=p]=1 a[env=q]=2 b=1 -c d[env=p]=2 d[env=q]=1");
    assert_eq!(put("EDS d[env=q]=1 b=1 a[env=q]=2 -c; CDS c=2; EDS d[env=p]=2 a[env=p]=1"), sorted);
}

#[test]
fn a_transaction_on_an_older_revision_is_refused() {
    let cache = Cache::new();
    let base = commit(&cache, "EDS a=1").revision;
    commit(&cache, "EDS a=2");
    let mut transaction = Transaction::new();
    transaction.require(base);
    put(&mut transaction, "a", "3");
    let error = cache.commit(transaction).unwrap_err();
    assert_eq!(error.to_string(), "the transaction requires revision 1, but the cache is at 2");
    assert_eq!(cache.snapshot().revision(), Revision(2));
}

#[test]
fn g13_the_first_commit_counts_though_it_brings_nothing_and_later_ones_do_not() {
    let cache = Cache::new();
    assert!(!cache.snapshot().is_synced());
    assert_eq!(commit(&cache, ""), did(1, 0));
    assert!(cache.snapshot().is_synced());
    assert_eq!(commit(&cache, "EDS -never"), did(1, 0));
    assert_eq!(commit(&cache, "EDS a=1"), did(2, 1));
    assert_eq!(commit(&cache, "EDS a=1"), did(2, 0));
}

#[test]
fn a_snapshot_never_changes_and_shares_what_a_commit_leaves_alone() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1 b=1");
    let before = cache.snapshot();
    commit(&cache, "EDS a=2");
    let after = cache.snapshot();
    let version = |snapshot: &Snapshot| content(snapshot, "a").unwrap().version();
    assert_ne!(version(&before), version(&after));
    assert!(Arc::ptr_eq(&content(&before, "b").unwrap(), &content(&after, "b").unwrap()));
}

#[test]
fn a_commit_wakes_the_streams_it_concerns_and_no_other() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1 b=1; CDS c=1");
    let (a, everything, clusters) = (cache.watch(), cache.watch(), cache.watch());
    let selection = |names: &[&str]| {
        let mut subscription = Subscription::default();
        subscription
            .replace(names.iter().map(|name| ResourceName::new(*name)).collect::<Vec<_>>().into(), true);
        TypeSelection::of(&subscription, false, None).unwrap()
    };
    let _a = a.join(&type_url("EDS"), selection(&["a"]));
    let _everything = everything.join(&type_url("EDS"), selection(&["*"]));
    let _clusters = clusters.join(&type_url("CDS"), selection(&["*"]));
    let woken = |text: &str| {
        commit(&cache, text);
        [is_woken(&a), is_woken(&everything), is_woken(&clusters)]
    };
    assert_eq!(woken("EDS a=2"), [true, true, false]);
    assert_eq!(woken("EDS b=2"), [false, true, false]);
    assert_eq!(woken("EDS b=2"), [false, false, false]);
    assert_eq!(woken("CDS c=2; EDS -a"), [true, true, true]);
    assert_eq!(woken("LDS l=1"), [false, false, false]);
}

#[test]
fn a_commit_that_concerns_several_classes_tells_of_their_streams_in_the_order_of_their_start() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1 b=1; CDS c=1");
    let selection = |name: &str| {
        let mut subscription = Subscription::default();
        subscription.replace(vec![ResourceName::new(name)].into(), true);
        TypeSelection::of(&subscription, false, None).unwrap()
    };
    let watches: Vec<_> = (0..6).map(|_| cache.watch()).collect();
    let asked = [("EDS", "b"), ("CDS", "c"), ("EDS", "a"), ("EDS", "*"), ("EDS", "b"), ("CDS", "c")];
    let mut members: Vec<_> = watches
        .iter()
        .zip(asked)
        .map(|(watch, (of, name))| watch.join(&type_url(of), selection(name)))
        .collect();
    members.push(watches[0].join(&type_url("CDS"), selection("*")));
    let done = commit(&cache, "EDS a=2 b=2; CDS c=2");
    let place = |ledger: &Arc<Ledger>| {
        watches.iter().position(|watch| Arc::ptr_eq(&watch.ledger(ledger.type_url()), ledger)).unwrap()
    };
    let places: Vec<_> = done.affected.iter().map(place).collect();
    assert_eq!(places, [0, 0, 1, 2, 3, 4, 5]);
    assert_eq!(done.affected[0].type_url(), &type_url("CDS"));
    assert!(watches.iter().all(|watch| is_woken(watch) && !is_woken(watch)));
}

#[test]
fn the_index_is_empty_when_all_streams_are_gone() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1 b=1; CDS c=1");
    let mut clients: Vec<_> = (0..3).map(|_| Delta::new(&cache)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.ask("CDS", "");
        client.ask("EDS", &format!("a own{number}"));
        client.ask("EDS", "b -a");
        client.sent();
    }
    assert_eq!(lock(&cache.interest).types.len(), 2);
    drop(clients);
    assert!(lock(&cache.interest).types.is_empty());
}

#[test]
fn names_added_one_by_one_alter_the_class_of_a_stream_that_is_alone_in_it() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1 b=1 c=1");
    let mut client = Delta::new(&cache);
    for name in ["a", "b", "c"] {
        client.ask("EDS", name);
        assert_eq!(client.sent().split(' ').nth(2), Some(format!("{name}=1").as_str()));
    }
    let formed = lock(&cache.interest).types[&type_url("EDS")].last_class;
    assert_eq!(formed, 1);
    client.ack("EDS", "3");
    commit(&cache, "EDS a=2 c=2");
    assert_eq!(client.sent(), "n4 EDS a=2 c=2");
}

#[test]
fn removals_are_forgotten_once_every_stream_has_heard_of_them() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1; LDS l=1");
    // This stream is idle: its resource never changed, so its old cursor keeps no removals.
    let mut idle = Sotw::new(&cache);
    idle.ask("LDS", "l", "");
    idle.sent();
    for number in 0..3 * REMOVALS_BEFORE_FIRST_LOOK {
        commit(&cache, &format!("LDS x{number}=1"));
        commit(&cache, &format!("LDS -x{number}"));
    }
    let snapshot = cache.snapshot();
    let remembered = snapshot.of_type(&type_url("LDS")).unwrap().removals().weight();
    assert!(remembered <= REMOVALS_BEFORE_FIRST_LOOK + 1, "{remembered}");
    idle.pass(Duration::from_secs(2));
    commit(&cache, "LDS l=2");
    assert_eq!(idle.sent(), "n2 LDS l=2");
}

#[test]
fn a_stream_that_missed_more_removals_than_are_remembered_is_ended() {
    let cache = Cache::new();
    commit(&cache, "LDS a=1");
    let mut stuck = Delta::new(&cache);
    stuck.ask("LDS", "");
    stuck.sent();
    let names = REMOVALS_LIMIT + 2;
    for batch in 0..4 {
        let (mut add, mut remove) = (Transaction::new(), Transaction::new());
        for number in 0..names / 4 + 1 {
            let name = ResourceName::new(format!("x{batch}-{number}"));
            let payload = payload("LDS", name.as_str(), "1");
            add.put(Resource::new(type_url("LDS"), name.clone(), payload).unwrap());
            remove.remove(VariantId::unconstrained(type_url("LDS"), name));
        }
        cache.commit(add).unwrap();
        cache.commit(remove).unwrap();
    }
    commit(&cache, "LDS b=1 -a");
    stuck.pass(Duration::from_secs(2));
    let next = stuck.stream.next(stuck.now, &cache.snapshot());
    let Next::Close(error) = next else { panic!("{next:?}") };
    assert_eq!(error, StreamError::FellBehind { type_url: type_url("LDS") });
}

/// The error of a commit to these variants.
fn refused(before: &str, text: &str) -> String {
    let cache = Cache::new();
    commit(&cache, before);
    let (revision, counts) = (cache.snapshot().revision(), cache.snapshot().counts().count());
    let error = try_commit(&cache, text).unwrap_err();
    assert_eq!((cache.snapshot().revision(), cache.snapshot().counts().count()), (revision, counts));
    error.to_string()
}

#[test]
fn t15_overlapping_variants_are_refused_with_parameters_that_prove_it_v24() {
    let message = refused("EDS a[env=prod]=1", "LDS new=1; EDS a[env!=test]=2");
    assert_eq!(
        message,
        r#"envoy.config.endpoint.v3.ClusterLoadAssignment "a": [env=prod] and [env!=test] both match env="prod""#
    );
    assert!(refused("EDS a=1", "EDS a[env]=1").contains("both match env="));
}

#[test]
fn t12_variants_that_name_different_keys_are_refused() {
    let message = refused("EDS a[env=prod]=1", "EDS a[env=test,version]=2");
    assert!(
        message.ends_with(r#"must name the same keys; only the first has [], only the second ["version"]"#),
        "{message}"
    );
}

#[test]
fn t16_only_what_results_is_judged_so_one_transaction_may_replace_variants() {
    let cache = Cache::new();
    commit(&cache, "EDS a[env=prod]=1");
    let split = "EDS a[env=prod,version=v1]=1 a[env=prod,version=v2]=2";
    assert!(try_commit(&cache, split).is_err());
    commit(&cache, &format!("{split} -a[env=prod]"));
    let content = |text: &str| {
        let snapshot = cache.snapshot();
        let variant =
            snapshot.get(&type_url("EDS"), &"a".into()).unwrap().resolve(&parameters(text)).cloned();
        variant.map(|variant| variant.payload().clone())
    };
    assert_eq!(content("env=prod version=v2"), Some(payload("EDS", "a", "2")));
    assert_eq!(content("env=prod"), None);
}

#[test]
fn t17_a_variant_that_nothing_matches_is_refused() {
    assert!(refused("EDS a[env=prod]=1", "EDS b[env=prod,!env]=2").contains("no parameters can match"));
}

#[test]
fn t22_the_same_operands_in_another_order_are_the_same_variant() {
    let cache = Cache::new();
    commit(&cache, "EDS a[env=prod,version=v1]=1");
    assert_eq!(commit(&cache, "EDS a[version=v1,env=prod]=1").changed, 0);
    assert_eq!(commit(&cache, "EDS -a[version=v1,env=prod]").changed, 1);
}

#[test]
fn t15_the_rule_of_equal_keys_can_be_relaxed_and_that_against_overlaps_cannot() {
    let different = "X r[env=prod]=A r[env=test,version=v1]=B";
    assert!(matches!(try_commit(&Cache::new(), different), Err(CommitError::KeySets { .. })));
    let cache = Cache::with_key_sets(KeySetRule::Free);
    commit(&cache, different);
    let overlap = try_commit(&cache, "X r[env=prod,version=v1]=C");
    assert!(matches!(overlap, Err(CommitError::Ambiguous { .. })));
    // T35: unmatched parameters are reported with the keys of all variants.
    let mut client = Delta::new(&cache);
    client.ask("X", "r?env=prod r?env=test");
    assert_eq!(client.sent(), "n1 X r[env=prod]=A -r[env=test,!version]");
}

#[test]
fn t38_the_sum_of_a_class_follows_from_its_log_and_is_that_of_a_class_formed_anew() {
    let cache = Cache::new();
    commit(&cache, "EDS a=0 b=0 c=0");
    let selection = || {
        let mut subscription = Subscription::default();
        subscription.replace(vec![ResourceName::new("a"), ResourceName::new("b")].into(), true);
        TypeSelection::of(&subscription, false, None).unwrap()
    };
    let watch = cache.watch();
    let member = watch.join(&type_url("EDS"), selection());
    for round in 1..20 {
        let changed = ["a", "b", "c", "a=1 b", "-a -b"][round % 5];
        commit(&cache, &format!("EDS {changed}={round}").replace("-b=", "-b c="));
        // A stream that subscribes late, and is slow now and then.
        if round > 3 && round % 7 != 0 {
            let snapshot = cache.snapshot();
            let resources = snapshot.of_type(&type_url("EDS")).unwrap();
            assert_eq!(member.sum(&snapshot), selection().sum(resources));
        }
    }
}

fn did(revision: u64, changed: usize) -> Commit {
    Commit { revision: Revision(revision), changed, variants: Arc::default(), affected: Arc::default() }
}

#[test]
fn a_type_that_was_only_asked_for_is_forgotten_with_what_was_said_of_it() {
    let cache = Cache::on_demand();
    let locator = Locator { name: "a".into(), parameters: Parameters::new() };
    let types_after = |of_type: &str, answer: Option<LocatorStatus>, names: &[&str]| {
        let mut transaction = Transaction::new();
        names.iter().for_each(|name| put(&mut transaction, name, "1"));
        transaction.set_status(type_url(of_type), locator.clone(), answer);
        cache.commit(transaction).unwrap();
        cache.snapshot().counts().count()
    };
    assert_eq!(types_after("CDS", Some(LocatorStatus::Complete), &[]), 1);
    assert_eq!(types_after("CDS", None, &[]), 0);
    // The removal of a resource that a stream may have been sent is remembered.
    assert_eq!(types_after("EDS", Some(LocatorStatus::Complete), &["a"]), 1);
    let mut transaction = Transaction::new();
    transaction.remove(VariantId::unconstrained(type_url("EDS"), "a"));
    cache.commit(transaction).unwrap();
    assert_eq!(types_after("EDS", None, &[]), 1);
}

/// A mirror of a cache has its variants, and its reasons why variants were removed.
#[test]
fn the_difference_of_two_states_leads_from_one_to_the_other() {
    let states = ["", "EDS a=1 b=1; CDS c=1", "EDS a[env=p]=1 a[env=q]=2 b=2", "LDS l=1; EDS -b"];
    let quarantined = |cache: &Cache, name: &str| {
        let mut transaction = Transaction::new();
        transaction.remove_because(VariantId::unconstrained(type_url("EDS"), name), "quarantined");
        cache.commit(transaction).unwrap();
    };
    for (from, to) in states.iter().flat_map(|from| states.iter().map(move |to| (from, to))) {
        let (source, mirror) = (Cache::new(), Cache::new());
        try_commit(&mirror, from).unwrap();
        try_commit(&source, to).unwrap();
        // One was there, the other never was.
        quarantined(&source, "b");
        quarantined(&source, "never");
        mirror.commit(Transaction::between(&mirror.snapshot(), &source.snapshot())).unwrap();
        let (source, mirror) = (source.snapshot(), mirror.snapshot());
        assert!(Transaction::between(&mirror, &source).is_empty(), "{from} to {to}");
        assert!(Transaction::between(&source, &mirror).is_empty(), "{from} to {to}");
        let reason = mirror.of_type(&type_url("EDS")).unwrap().reason(&"b".into(), &Parameters::new());
        assert_eq!(reason.map(AsRef::as_ref), Some("quarantined"));
    }
}
