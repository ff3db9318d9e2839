//! Which object has which name. A name belongs to one object: two objects, perhaps of two teams,
//! never overwrite each other. The same holds for aliases.

use std::collections::{BTreeMap, BTreeSet};

use xds_core::{
    Cache, CommitError, Resource, ResourceName, Revision, Snapshot, Transaction, TypeUrl, VariantId,
};

use super::object::{Kind, ObjectName, Problem};
use crate::folder::concerns;

/// What is in the cache of each object.
#[derive(Debug, Default)]
pub(super) struct Owners {
    has: BTreeMap<ObjectName, Content>,
    owner_of: BTreeMap<Key, ObjectName>,
}

/// A name or an alias.
type Key = (TypeUrl, ResourceName);

/// What an object has in the cache.
#[derive(Debug, Default, Clone)]
struct Content {
    ids: BTreeSet<VariantId>,
    keys: BTreeSet<Key>,
}

/// What became of the objects of a commit.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) has_changed: bool,
    /// Those whose content is in the cache.
    pub(super) accepted: Vec<ObjectName>,
    /// Those whose content is not.
    pub(super) refused: Vec<Refused>,
}

/// An object whose content is not in the cache.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) object: ObjectName,
    pub(super) problem: Problem,
    /// The content, if it may be accepted later without a change.
    pub(super) waiting: Option<Vec<Resource>>,
}

/// An object with its new content.
#[derive(Debug)]
struct Step {
    object: ObjectName,
    resources: Vec<Resource>,
    /// What it had before.
    before: Content,
}

/// A transaction that the cache refused.
struct Failed {
    error: Box<CommitError>,
    /// The object whose content is the reason, if it is known.
    blamed: Option<ObjectName>,
}

impl Owners {
    /// The objects that have a name.
    pub(super) fn objects(&self) -> impl Iterator<Item = &ObjectName> {
        self.has.keys()
    }

    /// The number of services, and of other objects.
    pub(super) fn counts(&self) -> (usize, usize) {
        let services = self.has.keys().filter(|name| name.kind == Kind::Service).count();
        (services, self.has.len() - services)
    }

    /// Commits the new contents of these objects, each as a whole: an object whose content is
    /// refused keeps what it had, and all others are one commit.
    pub(super) fn commit(
        &mut self,
        cache: &Cache,
        mut contents: BTreeMap<ObjectName, Vec<Resource>>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        for _ in 0..BLAMED_LIMIT {
            let Err(Failed { error, blamed }) = self.try_commit(cache, &contents, &mut outcome) else {
                return outcome;
            };
            // Without it the others are tried again together: a name that moves from one to another
            // must not be gone in between.
            let Some((object, resources)) = blamed.and_then(|object| contents.remove_entry(&object)) else {
                break;
            };
            outcome.refuse(object, resources, error);
        }
        for (object, resources) in contents {
            let alone = [(object.clone(), resources.clone())].into();
            if let Err(Failed { error, .. }) = self.try_commit(cache, &alone, &mut outcome) {
                outcome.refuse(object, resources, error);
            }
        }
        outcome
    }

    /// Commits the contents as one transaction. After an error nothing has changed.
    fn try_commit(
        &mut self,
        cache: &Cache,
        contents: &BTreeMap<ObjectName, Vec<Resource>>,
        outcome: &mut Outcome,
    ) -> Result<(), Failed> {
        loop {
            let snapshot = cache.snapshot();
            let (steps, refused) = self.take_all(&snapshot, contents.clone());
            match commit(cache, snapshot.revision(), &steps) {
                Ok(has_changed) => {
                    outcome.has_changed |= has_changed;
                    outcome.accepted.extend(steps.into_iter().map(|step| step.object));
                    outcome.refused.extend(refused);
                    return Ok(());
                }
                Err(error) => {
                    let blamed = blamed(&steps, &error);
                    steps.iter().rev().for_each(|step| self.undo(step));
                    // Another source may have got one of the names since the snapshot.
                    if !matches!(error, CommitError::Superseded { .. }) {
                        return Err(Failed { error: Box::new(error), blamed });
                    }
                }
            }
        }
    }

    /// Gives objects their names. An object waits while another one has one of its names; that one
    /// may free it in the same commit.
    fn take_all(
        &mut self,
        snapshot: &Snapshot,
        contents: BTreeMap<ObjectName, Vec<Resource>>,
    ) -> (Vec<Step>, Vec<Refused>) {
        let (mut steps, mut freed) = (Vec::new(), BTreeSet::new());
        let mut left: Vec<_> = contents.into_iter().collect();
        loop {
            let (mut refused, before) = (Vec::new(), steps.len());
            for (object, resources) in left {
                match self.obstacle(snapshot, &freed, &object, &resources) {
                    Some(problem) => refused.push(Refused { object, problem, waiting: Some(resources) }),
                    None => steps.push(self.take(object, resources, &mut freed)),
                }
            }
            if refused.is_empty() || steps.len() == before {
                return (steps, refused);
            }
            let again = |refused: Refused| Some((refused.object, refused.waiting?));
            left = refused.into_iter().filter_map(again).collect();
        }
    }

    /// Why an object cannot have its names.
    fn obstacle(
        &self,
        snapshot: &Snapshot,
        freed: &BTreeSet<Key>,
        object: &ObjectName,
        resources: &[Resource],
    ) -> Option<Problem> {
        resources.iter().flat_map(keys).find_map(|key| match self.owner_of.get(&key) {
            Some(owner) if owner == object => None,
            Some(by) => Some(Problem::Taken { by: by.clone(), type_url: key.0, name: key.1 }),
            None if freed.contains(&key) => None,
            None => snapshot.get(&key.0, &key.1).map(|_| {
                let (type_url, name) = key;
                Problem::TakenElsewhere { type_url, name }
            }),
        })
    }

    fn take(&mut self, object: ObjectName, resources: Vec<Resource>, freed: &mut BTreeSet<Key>) -> Step {
        let ids = resources.iter().map(|resource| resource.id().clone()).collect();
        let before = self.set(&object, Content { ids, keys: resources.iter().flat_map(keys).collect() });
        freed.extend(before.keys.iter().filter(|key| !self.owner_of.contains_key(key)).cloned());
        Step { object, resources, before }
    }

    fn undo(&mut self, step: &Step) {
        self.set(&step.object, step.before.clone());
    }

    /// Returns what the object had.
    fn set(&mut self, object: &ObjectName, content: Content) -> Content {
        let before = self.has.remove(object).unwrap_or_default();
        for key in &before.keys {
            // When this is undone, another object may have got the name meanwhile.
            if self.owner_of.get(key) == Some(object) {
                self.owner_of.remove(key);
            }
        }
        self.owner_of.extend(content.keys.iter().map(|key| (key.clone(), object.clone())));
        if !content.ids.is_empty() {
            self.has.insert(object.clone(), content);
        }
        before
    }
}

impl Outcome {
    fn refuse(&mut self, object: ObjectName, resources: Vec<Resource>, error: Box<CommitError>) {
        let waiting = involves_others(&error, &resources).then_some(resources);
        self.refused.push(Refused { object, problem: Problem::Commit(error), waiting });
    }
}

/// The name and the aliases of a resource.
fn keys(resource: &Resource) -> impl Iterator<Item = Key> {
    let names = [resource.name()].into_iter().chain(resource.aliases());
    names.map(|name| (resource.type_url().clone(), name.clone()))
}

/// The object whose content is the reason for an error: one in which it is new.
fn blamed(steps: &[Step], error: &CommitError) -> Option<ObjectName> {
    let meant = |step: &&Step| step.resources.iter().any(|resource| concerns(error, resource.id()));
    let is_new = |step: &&Step| {
        let mut ids = step.resources.iter().map(Resource::id).filter(|id| concerns(error, id));
        ids.any(|id| !step.before.ids.contains(id))
    };
    steps.iter().filter(meant).max_by_key(is_new).map(|step| step.object.clone())
}

/// Whether an error may end without a change of the object: if something that is not of it goes.
fn involves_others(error: &CommitError, resources: &[Resource]) -> bool {
    match error {
        CommitError::Ambiguous { first, second, .. } | CommitError::KeySets { first, second, .. } => {
            [first, second].into_iter().any(|id| resources.iter().all(|own| own.id() != id))
        }
        CommitError::AliasTaken { first, second, .. } => {
            [first, second].into_iter().any(|name| resources.iter().all(|own| own.name() != name))
        }
        _ => false,
    }
}

/// Commits the steps as one transaction. Returns whether the cache has other content.
/// It fails unless the cache is at this revision.
fn commit(cache: &Cache, at: Revision, steps: &[Step]) -> Result<bool, CommitError> {
    let (mut transaction, mut has) = (Transaction::new(), BTreeSet::new());
    transaction.require(at);
    transaction.origin().source = SOURCE.into();
    for resource in steps.iter().flat_map(|step| &step.resources) {
        has.insert(resource.id());
        transaction.put(resource.clone());
    }
    let gone = steps.iter().flat_map(|step| &step.before.ids).filter(|id| !has.contains(id));
    gone.for_each(|id| transaction.remove(id.clone()));
    cache.commit(transaction).map(|commit| commit.changed > 0)
}

/// The name of the source in commits.
const SOURCE: &str = "kubernetes";

/// So many objects are left out of a commit one after another. Many more would cost a try each, so
/// then each object is a commit.
const BLAMED_LIMIT: usize = 16;
