//! Keeps the folder from taking variants of another source of the same cache. If both had one, a
//! removal in either would remove it although the other still has it.

use std::collections::HashSet;

use xds_core::{Cache, Commit, CommitError, Revision, Snapshot, Transaction, VariantId};

use super::error::{FolderError, Position, Problem};
use super::format::FileFormat;
use super::index::{Changes, Index, provided};

/// Variants that are new in the folder and that no other source had at a revision of the cache.
#[derive(Debug)]
pub(super) struct Claims {
    ids: Vec<VariantId>,
    at: Revision,
}

impl Index {
    /// The new variants of these changes, and an error for each that another source has.
    pub(super) fn claims(&self, changes: &Changes, cache: &Cache) -> (Claims, Vec<FolderError>) {
        let snapshot = cache.snapshot();
        let mut claims = Claims { ids: Vec::new(), at: snapshot.revision() };
        if snapshot.counts().all(|(_, count)| count == 0) {
            return (claims, Vec::new());
        }
        let had: HashSet<&VariantId> = self.provided_before(changes).collect();
        let new = provided(changes).filter(|(id, _)| !had.contains(id));
        let (mut taken, free): (Vec<_>, Vec<_>) = new.partition(|(id, _)| is_in(&snapshot, id));
        claims.ids = free.into_iter().map(|(id, _)| id.clone()).collect();
        if !taken.is_empty() {
            // What another file of the folder has is a duplicate, or moves between files.
            let own = self.ids().collect::<HashSet<_>>();
            taken.retain(|(id, _)| !own.contains(id));
        }
        let error = |(id, (file, line)): (&VariantId, (&str, u32))| {
            let is_text = FileFormat::of(file) != Some(FileFormat::Protobuf);
            let at = is_text.then_some(Position { line, column: 1 });
            FolderError { at, ..FolderError::new(file, Problem::TakenElsewhere { id: id.clone() }) }
        };
        (claims, taken.into_iter().map(error).collect())
    }
}

impl Claims {
    /// Commits unless another source brings one of the variants first. The error is then
    /// [`CommitError::Superseded`], and the next load knows the variant.
    pub(super) fn commit(
        &mut self,
        cache: &Cache,
        mut transaction: Transaction,
    ) -> Result<Commit, CommitError> {
        if self.ids.is_empty() {
            return cache.commit(transaction);
        }
        loop {
            transaction.require(self.at);
            match cache.commit(transaction.clone()) {
                Err(error @ CommitError::Superseded { .. }) => {
                    let snapshot = cache.snapshot();
                    if self.ids.iter().any(|id| is_in(&snapshot, id)) {
                        return Err(error);
                    }
                    self.at = snapshot.revision();
                }
                done => return done,
            }
        }
    }
}

fn is_in(snapshot: &Snapshot, id: &VariantId) -> bool {
    snapshot.get(&id.type_url, &id.name).is_some_and(|variants| variants.get(&id.constraints).is_some())
}

#[cfg(test)]
mod tests {
    use xds_core::Resource;

    use super::super::document::ParsedResource;
    use super::super::index::{FileContent, Plan};
    use super::super::scan::Stamp;
    use super::*;

    fn thing(name: &str) -> Resource {
        Resource::new("example.com/acme.Thing", name, "x").unwrap()
    }

    fn file(names: &[&str]) -> Changes {
        let parsed = names.iter().map(|name| ParsedResource { resource: thing(name), line: 1 });
        vec![("a.yaml".into(), FileContent::Resources(Stamp::default(), parsed.collect()))]
    }

    #[test]
    fn another_source_that_commits_meanwhile_is_noticed_if_it_brings_the_same_variant() {
        let (index, cache) = (Index::default(), Cache::new());
        let mut other = cache.source("other");
        other.set([thing("first")]).unwrap();
        let changes = file(&["a", "b"]);
        let (mut claims, errors) = index.claims(&changes, &cache);
        assert!(errors.is_empty());
        let Plan { transaction, .. } = index.plan(changes.clone());
        other.set([thing("b")]).unwrap();
        let refused = claims.commit(&cache, transaction.clone());
        assert!(matches!(refused, Err(CommitError::Superseded { .. })), "{refused:?}");
        let (_, errors) = index.claims(&changes, &cache);
        let taken = r#"a.yaml:1:1: acme.Thing "b" is already in another source of this server"#;
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), [taken]);

        other.set([thing("c")]).unwrap();
        let (mut claims, _) = index.claims(&changes, &cache);
        other.set([thing("c"), thing("d")]).unwrap();
        assert_eq!(claims.commit(&cache, transaction).unwrap().changed, 2, "another variant is no conflict");
    }
}
