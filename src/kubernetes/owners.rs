//! Which object has which name. A name belongs to one object: two objects, perhaps of two teams,
//! never overwrite each other.

use std::collections::{BTreeMap, BTreeSet};

use xds_core::{Cache, CommitError, Resource, ResourceName, Snapshot, Transaction, TypeUrl, VariantId};

use super::object::{Kind, ObjectName, Problem};

/// What is in the cache of each object.
#[derive(Debug, Default)]
pub(super) struct Owners {
    has: BTreeMap<ObjectName, BTreeSet<VariantId>>,
    owner_of: BTreeMap<(TypeUrl, ResourceName), ObjectName>,
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
    before: BTreeSet<VariantId>,
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
    /// refused keeps what it had.
    pub(super) fn commit(&mut self, cache: &Cache, contents: BTreeMap<ObjectName, Vec<Resource>>) -> Outcome {
        let (snapshot, mut outcome) = (cache.snapshot(), Outcome::default());
        let steps = self.take_all(&snapshot, contents, &mut outcome);
        match commit(cache, &steps) {
            Ok(has_changed) => {
                outcome.has_changed = has_changed;
                outcome.accepted.extend(steps.into_iter().map(|step| step.object));
            }
            // One of them cannot be committed. Find out which, so that it does not stop the others.
            Err(_) => {
                steps.iter().rev().for_each(|step| self.undo(step));
                for Step { object, resources, .. } in steps {
                    self.commit_one(cache, object, resources, &mut outcome);
                }
            }
        }
        outcome
    }

    fn commit_one(
        &mut self,
        cache: &Cache,
        object: ObjectName,
        resources: Vec<Resource>,
        outcome: &mut Outcome,
    ) {
        let snapshot = cache.snapshot();
        let steps = self.take_all(&snapshot, [(object, resources)].into(), outcome);
        match commit(cache, &steps) {
            Ok(has_changed) => {
                outcome.has_changed |= has_changed;
                outcome.accepted.extend(steps.into_iter().map(|step| step.object));
            }
            Err(error) => {
                for step in steps {
                    self.undo(&step);
                    let problem = Problem::Commit(Box::new(error.clone()));
                    outcome.refused.push(Refused { object: step.object, problem, waiting: None });
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
        outcome: &mut Outcome,
    ) -> Vec<Step> {
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
                outcome.refused.append(&mut refused);
                return steps;
            }
            let again = |refused: Refused| Some((refused.object, refused.waiting?));
            left = refused.into_iter().filter_map(again).collect();
        }
    }

    /// Why an object cannot have its names.
    fn obstacle(
        &self,
        snapshot: &Snapshot,
        freed: &BTreeSet<(TypeUrl, ResourceName)>,
        object: &ObjectName,
        resources: &[Resource],
    ) -> Option<Problem> {
        resources.iter().find_map(|resource| {
            let (type_url, name) = (resource.type_url().clone(), resource.name().clone());
            let key = (type_url, name);
            match self.owner_of.get(&key) {
                Some(owner) if owner == object => None,
                Some(by) => Some(Problem::Taken { by: by.clone(), type_url: key.0, name: key.1 }),
                None if freed.contains(&key) => None,
                None => snapshot.get(&key.0, &key.1).map(|_| {
                    let (type_url, name) = key;
                    Problem::TakenElsewhere { type_url, name }
                }),
            }
        })
    }

    fn take(
        &mut self,
        object: ObjectName,
        resources: Vec<Resource>,
        freed: &mut BTreeSet<(TypeUrl, ResourceName)>,
    ) -> Step {
        let ids: BTreeSet<_> = resources.iter().map(|resource| resource.id().clone()).collect();
        let before = self.set(&object, ids);
        freed.extend(before.iter().map(key).filter(|key| !self.owner_of.contains_key(key)));
        Step { object, resources, before }
    }

    fn undo(&mut self, step: &Step) {
        self.set(&step.object, step.before.clone());
    }

    /// Returns what the object had.
    fn set(&mut self, object: &ObjectName, ids: BTreeSet<VariantId>) -> BTreeSet<VariantId> {
        let before = self.has.remove(object).unwrap_or_default();
        for key in before.iter().map(key) {
            // When this is undone, another object may have got the name meanwhile.
            if self.owner_of.get(&key) == Some(object) {
                self.owner_of.remove(&key);
            }
        }
        self.owner_of.extend(ids.iter().map(|id| (key(id), object.clone())));
        if !ids.is_empty() {
            self.has.insert(object.clone(), ids);
        }
        before
    }
}

fn key(id: &VariantId) -> (TypeUrl, ResourceName) {
    (id.type_url.clone(), id.name.clone())
}

/// Commits the steps as one transaction. Returns whether the cache has other content.
fn commit(cache: &Cache, steps: &[Step]) -> Result<bool, CommitError> {
    let (mut transaction, mut has) = (Transaction::new(), BTreeSet::new());
    transaction.origin().source = SOURCE.into();
    for resource in steps.iter().flat_map(|step| &step.resources) {
        has.insert(resource.id());
        transaction.put(resource.clone());
    }
    let gone = steps.iter().flat_map(|step| &step.before).filter(|id| !has.contains(id));
    gone.for_each(|id| transaction.remove(id.clone()));
    cache.commit(transaction).map(|commit| commit.changed > 0)
}

/// The name of the source in commits.
const SOURCE: &str = "kubernetes";
