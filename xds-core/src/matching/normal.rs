//! The normal form of one formula: its meaning, in a form for the index and the checks.

use std::sync::Arc;

use super::cube::{Cube, Simple, concrete, named};
use super::diagram::{FALSE, NodeId, Store, TRUE};
use super::value_set::{KeyOutcome, ValueSet};
use crate::constraint::Formula;
use crate::parameters::Parameters;

/// The work limit for one formula, in diagram nodes. It should keep the work below 50 ms and 16 MB.
pub const NODE_BUDGET: usize = 65_536;

/// A formula that needs more work than its budget allows. It is refused, because without its normal
/// form an overlap with other variants could not be excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too complex: {nodes} diagram nodes over {keys} keys exceed the budget of {budget}")]
pub struct TooComplex {
    /// Nodes made when the budget was exceeded. A node with many values counts as several.
    pub nodes: usize,
    /// How many nodes were allowed.
    pub budget: usize,
    /// How many keys the formula names.
    pub keys: usize,
}

/// A digest of the meaning of a formula: equal for formulas that match the same parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MeaningDigest(pub [u8; 16]);

/// A key and the outcomes that are allowed for it.
pub type Test = (Arc<str>, ValueSet<Arc<str>>);

/// The meaning of a formula, however it was written.
#[derive(Debug, Clone)]
pub struct Normal(Meaning);

#[derive(Debug, Clone)]
enum Meaning {
    Never,
    /// Conditions on single keys, all of which must hold. Without conditions it always holds.
    Cube(Cube),
    Tangled(Arc<Tangled>),
}

/// A meaning that no single cube expresses.
#[derive(Debug)]
pub(super) struct Tangled {
    digest: MeaningDigest,
    /// Cubes that contain all matching parameters, for the index.
    pub(super) cubes: Vec<Cube>,
    /// Decides which parameters in the cubes match; `None` when all of them do.
    pub(super) residual: Option<Diagram>,
}

/// The diagram of one formula, in a store of its own.
#[derive(Debug)]
pub(super) struct Diagram {
    pub(super) store: Store,
    pub(super) root: NodeId,
}

impl Normal {
    /// The normal form of a formula.
    ///
    /// # Errors
    /// When it takes more than [`NODE_BUDGET`] nodes.
    pub fn of(formula: &Formula) -> Result<Self, TooComplex> {
        Self::within(formula, NODE_BUDGET)
    }

    /// The normal form of a formula, with a budget of diagram nodes.
    ///
    /// # Errors
    /// When it takes more than the budget.
    pub fn within(formula: &Formula, budget: usize) -> Result<Self, TooComplex> {
        match Simple::of(formula, false) {
            Some(Simple::Never) => return Ok(Self(Meaning::Never)),
            Some(Simple::Cube(cube)) => return Ok(Self(Meaning::Cube(cube))),
            None => {}
        }
        let mut store = Store::new(named([formula]), budget);
        let root = store.formula(formula)?;
        if root == FALSE {
            return Ok(Self(Meaning::Never));
        }
        let paths = store.paths(root, PATH_LIMIT);
        if let Some([path]) = paths.as_deref() {
            return Ok(Self(Meaning::Cube(path.clone())));
        }
        let digest = store.digest(root);
        let mut terms = Vec::new();
        let is_written_out = collect_terms(formula, false, &mut terms).is_some();
        let fewest = paths.as_ref().map_or(usize::MAX, Vec::len);
        let (cubes, residual) = match paths {
            _ if is_written_out && terms.len() < fewest => (terms, None),
            Some(paths) => (paths, None),
            None => (vec![store.hull(root)], Some(store.only(root))),
        };
        Ok(Self(Meaning::Tangled(Arc::new(Tangled { digest, cubes, residual }))))
    }

    /// Whether no parameters match it (T17).
    #[must_use]
    pub fn is_unsatisfiable(&self) -> bool {
        matches!(self.0, Meaning::Never)
    }

    /// The digest of the meaning: the same for equivalent formulas, on every machine.
    #[must_use]
    pub fn digest(&self) -> MeaningDigest {
        match &self.0 {
            Meaning::Never => leaf_digest(FALSE),
            Meaning::Cube(cube) => cube_digest(cube),
            Meaning::Tangled(tangled) => tangled.digest,
        }
    }

    /// Parameters that match both formulas, with only keys that one of the two names (T13).
    ///
    /// # Errors
    /// When the check needs more than [`NODE_BUDGET`] nodes.
    pub fn meet(&self, other: &Self) -> Result<Option<Parameters>, TooComplex> {
        for cube in self.cubes() {
            for theirs in other.cubes() {
                let found = match (self.residual(), other.residual()) {
                    (None, None) => cube.meet(theirs),
                    (Some(mine), None) => mine.meet(theirs),
                    (None, Some(diagram)) => diagram.meet(cube),
                    (Some(mine), Some(diagram)) => mine.meet_diagram(diagram)?,
                };
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    /// Parameters that match; `None` when it is unsatisfiable.
    #[must_use]
    pub fn sample(&self) -> Option<Parameters> {
        let cube = self.cubes().first()?;
        self.residual().map_or_else(|| Some(cube.sample()), |diagram| diagram.meet(&Cube::default()))
    }

    /// The formula as alternatives, each with the allowed outcomes of some keys; it holds if one of
    /// them holds, so an empty list never holds. `None` when there would be too many alternatives.
    #[must_use]
    pub fn alternatives(&self) -> Option<Vec<&[Test]>> {
        self.residual().is_none().then(|| self.cubes().iter().map(Cube::tests).collect())
    }

    /// Cubes that contain all matching parameters. If there is no [residual](Self::residual), they
    /// contain only these.
    pub(super) fn cubes(&self) -> &[Cube] {
        match &self.0 {
            Meaning::Never => &[],
            Meaning::Cube(cube) => std::slice::from_ref(cube),
            Meaning::Tangled(tangled) => &tangled.cubes,
        }
    }

    pub(super) fn residual(&self) -> Option<&Diagram> {
        self.tangled().and_then(|tangled| tangled.residual.as_ref())
    }

    /// The normal form of a tangled formula, which is worth storing. A cube is quickly made again.
    pub(super) fn tangled(&self) -> Option<&Arc<Tangled>> {
        match &self.0 {
            Meaning::Tangled(tangled) => Some(tangled),
            Meaning::Never | Meaning::Cube(_) => None,
        }
    }

    pub(super) fn of_tangled(tangled: &Arc<Tangled>) -> Self {
        Self(Meaning::Tangled(Arc::clone(tangled)))
    }
}

/// Equal meaning: cubes are compared themselves, tangled formulas by their digests.
impl PartialEq for Normal {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Meaning::Never, Meaning::Never) => true,
            (Meaning::Cube(mine), Meaning::Cube(theirs)) => mine == theirs,
            (Meaning::Tangled(mine), Meaning::Tangled(theirs)) => mine.digest == theirs.digest,
            _ => false,
        }
    }
}

impl Eq for Normal {}

impl Diagram {
    fn meet(&self, cube: &Cube) -> Option<Parameters> {
        let store = &self.store;
        let path = store.path(self.root, |key| {
            let set = cube.set(&store.keys()[key as usize])?;
            let known = |value: &Arc<str>| store.values(key).binary_search(value).ok().map(|at| at as u32);
            let values: Vec<_> = set.values().iter().filter_map(known).collect();
            // For a value that the diagram does not name, the path goes through `other`.
            let beyond = set.has_other() || values.len() < set.values().len();
            Some(if set.has_other() || !beyond {
                ValueSet::of(values, set.has_other(), set.has_absent())
            } else {
                let named = 0..store.values(key).len() as u32;
                let out = named.filter(|value| values.binary_search(value).is_err()).collect();
                ValueSet::of(out, true, set.has_absent())
            })
        })?;
        let mut chosen: Vec<(Arc<str>, Option<Arc<str>>)> = Vec::new();
        for (key, outcome) in path {
            let (name, named) = (&store.keys()[key as usize], store.values(key));
            let value = match (outcome, cube.set(name)) {
                (KeyOutcome::Other, Some(set)) if !set.has_other() => {
                    set.values().iter().find(|value| named.binary_search(value).is_err()).cloned()
                }
                (outcome, set) => {
                    let theirs = set.map_or(&[][..], ValueSet::values);
                    concrete(spell(outcome, named), &[named, theirs])
                }
            };
            chosen.push((Arc::clone(name), value));
        }
        for (key, set) in cube.tests() {
            if !chosen.iter().any(|(name, _)| name == key) {
                let outcome = set.any().expect("no set of a cube is empty");
                chosen.push((Arc::clone(key), concrete(outcome, &[set.values()])));
            }
        }
        Some(chosen.into_iter().filter_map(|(key, value)| Some((key, value?))).collect())
    }

    fn meet_diagram(&self, other: &Self) -> Result<Option<Parameters>, TooComplex> {
        let mut all = std::collections::BTreeMap::new();
        for diagram in [self, other] {
            for (key, name) in diagram.store.keys().iter().enumerate() {
                let values: &mut Vec<_> = all.entry(Arc::clone(name)).or_default();
                values.extend_from_slice(diagram.store.values(key as u32));
                values.sort_unstable();
                values.dedup();
            }
        }
        let mut store = Store::new(all, NODE_BUDGET);
        let mine = store.import(&self.store, self.root)?;
        let theirs = store.import(&other.store, other.root)?;
        let root = store.both(mine, theirs)?;
        Ok(Self { store, root }.meet(&Cube::default()))
    }
}

/// The outcome, with a string in place of the number of its value.
fn spell(outcome: KeyOutcome<u32>, named: &[Arc<str>]) -> KeyOutcome<Arc<str>> {
    match outcome {
        KeyOutcome::Absent => KeyOutcome::Absent,
        KeyOutcome::Value(value) => KeyOutcome::Value(Arc::clone(&named[value as usize])),
        KeyOutcome::Other => KeyOutcome::Other,
    }
}

/// The alternatives of a formula that is written as an OR of cubes; `None` when it is not.
fn collect_terms(formula: &Formula, negated: bool, terms: &mut Vec<Cube>) -> Option<()> {
    match (Simple::of(formula, negated), formula) {
        (Some(Simple::Never), _) => Some(()),
        (Some(Simple::Cube(cube)), _) => {
            if !terms.contains(&cube) {
                terms.push(cube);
            }
            Some(())
        }
        (None, Formula::Not(part)) => collect_terms(part, !negated, terms),
        (None, Formula::Any(parts)) if !negated => {
            parts.iter().try_for_each(|part| collect_terms(part, negated, terms))
        }
        (None, Formula::All(parts)) if negated => {
            parts.iter().try_for_each(|part| collect_terms(part, negated, terms))
        }
        (None, _) => None,
    }
}

impl Store {
    /// The paths to `TRUE` as cubes, no two of which meet; `None` when there are more than `limit`.
    fn paths(&self, root: NodeId, limit: usize) -> Option<Vec<Cube>> {
        let mut paths = Vec::new();
        self.add_paths(root, &mut Vec::new(), &mut paths, limit).then_some(paths)
    }

    fn add_paths(
        &self,
        node: NodeId,
        prefix: &mut Vec<(Arc<str>, ValueSet<Arc<str>>)>,
        paths: &mut Vec<Cube>,
        limit: usize,
    ) -> bool {
        if node == TRUE {
            paths.push(Cube::new(prefix.clone()).expect("a branch of a diagram has outcomes"));
            return paths.len() <= limit;
        }
        let key = self.key(node);
        self.branches(node).into_iter().all(|(set, child)| {
            prefix.push((Arc::clone(&self.keys()[key as usize]), self.spelled(key, &set)));
            let fits = self.add_paths(child, prefix, paths, limit);
            prefix.pop();
            fits
        })
    }

    fn spelled(&self, key: u32, set: &ValueSet<u32>) -> ValueSet<Arc<str>> {
        let values = set.values().iter().map(|value| Arc::clone(&self.values(key)[*value as usize]));
        ValueSet::of(values.collect(), set.has_other(), set.has_absent())
    }

    /// The smallest cube that contains all matching parameters.
    fn hull(&self, root: NodeId) -> Cube {
        let levels = self.keys().len();
        let depth = |node: NodeId| (self.key(node) as usize).min(levels);
        let mut sets = vec![ValueSet::none(); levels];
        let mut skipped = vec![false; levels];
        skipped[..depth(root)].fill(true);
        for node in self.reachable(root) {
            let key = depth(node);
            for (set, child) in self.branches(node) {
                skipped[key + 1..depth(child).max(key + 1)].fill(true);
                sets[key] = std::mem::replace(&mut sets[key], ValueSet::none()).or(set);
            }
        }
        let tests = sets.into_iter().zip(skipped).enumerate().filter(|(_, (_, skipped))| !skipped);
        let tests =
            tests.map(|(key, (set, _))| (Arc::clone(&self.keys()[key]), self.spelled(key as u32, &set)));
        Cube::new(tests.collect()).expect("a diagram that is not false leads to true on each of its keys")
    }

    /// The same diagram in a store of its own.
    fn only(&self, root: NodeId) -> Diagram {
        let named = self
            .keys()
            .iter()
            .enumerate()
            .map(|(at, key)| (Arc::clone(key), self.values(at as u32).to_vec()));
        let mut store = Self::new(named.collect(), usize::MAX);
        let root = store.import(self, root).expect("the budget is unlimited");
        store.forget_joins();
        Diagram { store, root }
    }

    fn digest(&self, root: NodeId) -> MeaningDigest {
        let mut digests = vec![leaf_digest(FALSE); (root as usize + 1).max(2)];
        digests[TRUE as usize] = leaf_digest(TRUE);
        for node in self.reachable(root) {
            let key = self.key(node);
            let edges = self.edges(node).iter();
            digests[node as usize] = node_digest(
                &self.keys()[key as usize],
                digests[self.absent(node) as usize],
                digests[self.other(node) as usize],
                edges.map(|(value, child)| (&*self.values(key)[*value as usize], digests[*child as usize])),
            );
        }
        digests[root as usize]
    }
}

fn leaf_digest(leaf: NodeId) -> MeaningDigest {
    MeaningDigest([leaf as u8; 16])
}

/// The digest of the chain of nodes that is the diagram of a cube.
fn cube_digest(cube: &Cube) -> MeaningDigest {
    let never = leaf_digest(FALSE);
    cube.tests().iter().rev().fold(leaf_digest(TRUE), |next, (key, set)| {
        let child = |inside: bool| if inside { next } else { never };
        let edges = set.values().iter().map(|value| (&**value, child(!set.has_other())));
        node_digest(key, child(set.has_absent()), child(set.has_other()), edges)
    })
}

fn node_digest<'a>(
    key: &str,
    absent: MeaningDigest,
    other: MeaningDigest,
    edges: impl Iterator<Item = (&'a str, MeaningDigest)>,
) -> MeaningDigest {
    let mut hasher = blake3::Hasher::new();
    let mut text = |text: &str, digest: MeaningDigest| {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes()).update(&digest.0);
    };
    text(key, absent);
    text("", other);
    edges.for_each(|(value, child)| text(value, child));
    let mut short = [0; 16];
    short.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    MeaningDigest(short)
}

/// A formula with more paths than this is indexed by its hull. Tests have few keys, so their limit
/// is small.
const PATH_LIMIT: usize = if cfg!(test) { 6 } else { 64 };
