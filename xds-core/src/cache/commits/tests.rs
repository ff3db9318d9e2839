use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::server::fixture::{Sotw, commit, try_commit, type_url};
use crate::{ClientName, Outcome, Resource, Transaction};

/// The next event, if there is one now; `None` after the last one.
fn next(commits: &mut Commits) -> Poll<Option<CommitEvent>> {
    let next = pin!(commits.next());
    next.poll(&mut Context::from_waker(Waker::noop()))
}

fn read(commits: &mut Commits) -> CommitEvent {
    let Poll::Ready(Some(event)) = next(commits) else { panic!("there is an event") };
    event
}

#[test]
fn a_reader_hears_what_was_committed_by_type_and_who_has_not_answered() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1");
    let mut client = Sotw::new(&cache);
    client.watch.name_client(ClientName { id: "n".into(), cluster: "c".into() });
    client.ask("EDS", "a", "");
    client.sent();
    let mut commits = cache.commits(10);
    assert_eq!(next(&mut commits), Poll::Pending);
    let done = commit(&cache, "EDS a=2 b[env=p]=1 b[env=q]=1; CDS c=1");
    commit(&cache, "EDS a=2");
    let CommitEvent { lost, outcome: CommitOutcome::Committed { commit, changed, variants, .. } } =
        read(&mut commits)
    else {
        panic!("it is no mistake")
    };
    assert_eq!((lost, &commit), (0, &done));
    assert_eq!(*changed, [(type_url("CDS"), 1), (type_url("EDS"), 2)]);
    assert_eq!(commit.applied(|_| true).results()[0].outcome, Outcome::Pending);
    let existed = |changed: &ChangedVariant| {
        assert_ne!(changed.before, changed.after);
        (changed.id.name.as_str().to_owned(), changed.before.is_some(), changed.after.is_some())
    };
    let listed: Vec<_> = variants.iter().map(existed).collect();
    let added = |name: &str| (name.to_owned(), false, true);
    assert_eq!(listed, [added("c"), ("a".into(), true, true), added("b"), added("b")]);
    assert_eq!(next(&mut commits), Poll::Pending);
}

#[test]
fn a_reader_hears_where_a_commit_comes_from_and_of_a_bounded_number_of_variants() {
    let cache = Cache::new();
    let mut commits = cache.commits(10);
    let mut transaction = Transaction::new();
    for number in 0..VARIANTS_LISTED + 1 {
        let name = number.to_string();
        transaction.put(Resource::new("example.com/acme.Thing", &*name, name.clone()).unwrap());
    }
    let origin = CommitOrigin { label: "v1".into(), ..CommitOrigin::default() };
    *transaction.origin() = origin.clone();
    cache.commit(transaction).unwrap();
    let CommitOutcome::Committed { changed, variants, origin: read, .. } = read(&mut commits).outcome else {
        panic!("it is no mistake")
    };
    assert_eq!((*read == origin, changed[0].1, variants.len()), (true, VARIANTS_LISTED + 1, VARIANTS_LISTED));
}

#[test]
fn a_reader_hears_why_a_transaction_was_refused() {
    let cache = Cache::new();
    commit(&cache, "EDS a[env=p]=1");
    let mut commits = cache.commits(10);
    let refused = try_commit(&cache, "EDS a[env!=q]=2").unwrap_err();
    let outcome =
        CommitOutcome::Refused { origin: Arc::default(), revision: Revision(1), error: Arc::new(refused) };
    assert_eq!(read(&mut commits), CommitEvent { lost: 0, outcome });
}

#[test]
fn who_reads_late_is_told_how_much_is_lost_and_gets_the_newest() {
    let cache = Cache::new();
    let mut commits = cache.commits(2);
    for content in 1..=5 {
        commit(&cache, &format!("EDS a={content}"));
    }
    let revision = |event: CommitEvent| match event.outcome {
        CommitOutcome::Committed { commit, .. } => (event.lost, commit.revision),
        CommitOutcome::Refused { .. } => panic!("none is refused"),
    };
    assert_eq!(revision(read(&mut commits)), (3, Revision(4)));
    assert_eq!(revision(read(&mut commits)), (0, Revision(5)));
    drop(cache);
    assert_eq!(next(&mut commits), Poll::Ready(None));
}

#[test]
fn commits_and_refusals_are_counted_by_reason() {
    let cache = Cache::new();
    commit(&cache, "EDS a[env=p]=1");
    commit(&cache, "EDS a[env=p]=1");
    try_commit(&cache, "EDS a[env!=q]=2").unwrap_err();
    try_commit(&cache, "EDS a[env=q,other=p]=2").unwrap_err();
    let mut late = Transaction::new();
    late.require(Revision::ZERO);
    cache.commit(late).unwrap_err();
    let counts = cache.commit_counts();
    assert_eq!((counts.committed, counts.unchanged), (1, 1));
    assert_eq!(counts.refused.len(), CommitError::REASONS.len());
    let refused: Vec<_> = counts.refused.into_iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(refused, [("ambiguous", 1), ("key_sets", 1), ("superseded", 1)]);
}

#[test]
fn what_streams_ask_for_is_counted_by_type() {
    let cache = Cache::new();
    commit(&cache, "EDS a=1");
    let mut clients = [Sotw::new(&cache), Sotw::new(&cache)];
    for client in &mut clients {
        client.ask("EDS", "a b", "");
    }
    clients[0].ask("CDS", "", "");
    let watched = cache.subscription_counts_by_type();
    let of = |short: &str| {
        let of_type = watched[&type_url(short)];
        (of_type.streams, of_type.classes, of_type.names)
    };
    assert_eq!((of("EDS"), of("CDS")), ((2, 1, 2), (1, 1, 0)));
    drop(clients);
    assert_eq!(cache.subscription_counts_by_type().len(), 0);
}

#[test]
fn variants_are_counted_as_they_come_and_go() {
    let cache = Cache::new();
    let counted = |text: &str| {
        commit(&cache, text);
        let snapshot = cache.snapshot();
        let of_type = snapshot.of_type(&type_url("EDS")).unwrap();
        (of_type.len(), of_type.variants())
    };
    assert_eq!(counted("EDS a[env=p]=1 a[env=q]=1 b=1"), (2, 3));
    assert_eq!(counted("EDS a[env=p]=2 -a[env=q]"), (2, 2));
    assert_eq!(counted("EDS -a[env=p]"), (1, 1));
}
