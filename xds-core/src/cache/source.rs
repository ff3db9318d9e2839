//! Writers that share a cache, and each know all of their own resources.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Cache, Commit, CommitError, Transaction};
use crate::resource::{Resource, VariantId};

/// One of the writers of a cache. Made by [`Cache::source`].
///
/// It remembers which resources it brought, about 50 bytes each. Dropping it removes nothing.
#[derive(Debug)]
pub struct Source {
    cache: Arc<Cache>,
    name: Box<str>,
    /// What the last commit brought.
    has: BTreeSet<VariantId>,
}

impl Cache {
    /// A writer beside others. Its name is [`CommitOrigin::source`](super::CommitOrigin) of its
    /// commits.
    ///
    /// Two sources must not bring one variant: the last one that does wins, and it goes when one of
    /// them removes it.
    ///
    /// The first commit to a cache says that all other resources are absent (G13). With several
    /// sources, call [`set_outdated(true)`](Self::set_outdated) before it, and `set_outdated(false)`
    /// once each has brought its resources.
    ///
    /// ```
    /// use xds_core::{Cache, Resource};
    ///
    /// let thing = |name: &str| Resource::new("example.com/acme.Thing", name, "payload");
    /// let cache = Cache::new();
    /// let (mut teams, mut defaults) = (cache.source("teams"), cache.source("defaults"));
    /// cache.set_outdated(true);
    /// teams.set([thing("a")?, thing("b")?])?;
    /// defaults.set([thing("c")?])?;
    /// cache.set_outdated(false);
    ///
    /// let commit = teams.set([thing("b")?])?;
    /// let changed: Vec<_> = commit.names().map(|(_, name)| name.as_str()).collect();
    /// assert_eq!(changed, ["a"], "it was removed; b did not change, and c is of the other source");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn source(self: &Arc<Self>, name: &str) -> Source {
        Source { cache: Arc::clone(self), name: name.into(), has: BTreeSet::new() }
    }
}

impl Source {
    /// Commits all resources of the source: what it brought before and brings no longer is removed.
    /// Resources that did not change wake no stream. Costs O(resources of the source).
    ///
    /// # Errors
    /// See [`CommitError`]; the cache is then unchanged, and the next call removes what this one
    /// would have removed.
    pub fn set(&mut self, all: impl IntoIterator<Item = Resource>) -> Result<Commit, CommitError> {
        let (mut transaction, mut has) = (Transaction::new(), BTreeSet::new());
        transaction.origin().source = self.name.clone();
        for resource in all {
            has.insert(resource.id().clone());
            transaction.put(resource);
        }
        self.has.difference(&has).for_each(|gone| transaction.remove(gone.clone()));
        let commit = self.cache.commit(transaction)?;
        self.has = has;
        Ok(commit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::CommitOutcome;
    use crate::server::fixture::{payload, type_url};

    fn resource(name: &str, content: &str) -> Resource {
        Resource::new(type_url("EDS"), name, payload("EDS", name, content)).unwrap()
    }

    fn names(commit: &Commit) -> Vec<&str> {
        commit.names().map(|(_, name)| name.as_str()).collect()
    }

    fn present(cache: &Cache) -> Vec<String> {
        let snapshot = cache.snapshot();
        let names = snapshot.of_type(&type_url("EDS")).into_iter().flat_map(|of_type| of_type.iter());
        let mut names: Vec<_> = names.map(|(name, _)| name.as_str().to_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_source_no_longer_brings_goes_and_resources_of_others_stay() {
        let cache = Cache::new();
        let (mut one, mut other) = (cache.source("one"), cache.source("other"));
        one.set([resource("a", "1"), resource("b", "1")]).unwrap();
        other.set([resource("c", "1")]).unwrap();
        let commit = one.set([resource("b", "2"), resource("d", "1")]).unwrap();
        assert_eq!((names(&commit), commit.changed), (vec!["a", "b", "d"], 3));
        assert_eq!(present(&cache), ["b", "c", "d"]);
        assert_eq!(one.set([resource("d", "1"), resource("b", "2")]).unwrap().changed, 0);
        assert_eq!(names(&one.set([]).unwrap()), ["b", "d"]);
        assert_eq!(present(&cache), ["c"]);
    }

    #[test]
    fn after_a_refused_commit_a_source_still_removes_what_it_had() {
        let cache = Cache::new();
        let mut source = cache.source("one");
        source.set([resource("a", "1")]).unwrap();
        let twice = source.set([resource("b", "1"), resource("b", "2")]);
        assert!(matches!(twice, Err(CommitError::Contradiction { .. })));
        assert_eq!(present(&cache), ["a"]);
        source.set([resource("b", "1")]).unwrap();
        assert_eq!(present(&cache), ["b"]);
    }

    #[test]
    fn a_constrained_variant_that_goes_leaves_the_others_of_its_name() {
        let cache = Cache::new();
        let variant = |when: &str| resource("a", when).with_constraints(when.parse().unwrap());
        let mut source = cache.source("one");
        source.set([variant("env=prod"), variant("env=test")]).unwrap();
        assert_eq!(names(&source.set([variant("env=test")]).unwrap()), ["a"]);
        let snapshot = cache.snapshot();
        let left: Vec<_> = snapshot.get(&type_url("EDS"), &"a".into()).unwrap().iter().collect();
        assert_eq!(left.len(), 1);
    }

    #[test]
    fn an_event_names_the_source_and_has_no_long_list() {
        let cache = Cache::new();
        let mut commits = cache.commits(1);
        cache.source("teams").set([resource("a", "1")]).unwrap();
        let waker = std::task::Waker::noop();
        let next = std::pin::pin!(commits.next());
        let std::task::Poll::Ready(Some(event)) = next.poll(&mut std::task::Context::from_waker(waker))
        else {
            panic!("there was a commit")
        };
        let CommitOutcome::Committed { commit, variants, origin, .. } = event.outcome else {
            panic!("it is valid")
        };
        assert_eq!((&*origin.source, variants.len(), commit.names().count()), ("teams", 1, 0));
    }

    #[test]
    fn a_transaction_replaces_a_type_as_it_is_at_the_commit() {
        let cache = Cache::new();
        let mut transaction = Transaction::new();
        transaction.replace(type_url("EDS"), [resource("b", "1"), resource("c", "2")]);
        cache.source("one").set([resource("a", "1"), resource("b", "1"), resource("c", "1")]).unwrap();
        let route = Resource::new(type_url("RDS"), "r", payload("RDS", "r", "1")).unwrap();
        cache.source("two").set([route]).unwrap();
        assert!(!transaction.is_empty());
        assert_eq!(names(&cache.commit(transaction).unwrap()), ["a", "c"]);
        assert_eq!(present(&cache), ["b", "c"]);

        let mut transaction = Transaction::new();
        transaction.replace(type_url("EDS"), []);
        assert_eq!(names(&cache.commit(transaction).unwrap()), ["b", "c"]);
        assert!(cache.snapshot().get(&type_url("RDS"), &"r".into()).is_some(), "another type");
        let mut transaction = Transaction::new();
        transaction.replace("example.com/acme.Thing", []);
        assert_eq!(cache.commit(transaction).unwrap().changed, 0);
    }

    #[test]
    fn a_candidate_replaces_a_type_as_it_is_when_it_begins() {
        let cache = Cache::new();
        cache.source("one").set([resource("a", "1"), resource("b", "1")]).unwrap();
        let mut transaction = Transaction::new();
        transaction.replace(type_url("EDS"), [resource("b", "2")]);
        let candidate = cache.begin(transaction, &crate::Audience::Clients(1)).unwrap();
        assert_eq!(present(&cache), ["a", "b"]);
        cache.source("two").set([resource("c", "1")]).unwrap();
        assert_eq!(names(&candidate.promote().unwrap()), ["a", "b"]);
        assert_eq!(present(&cache), ["b", "c"]);
    }
}
