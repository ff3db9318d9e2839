//! What a folder says, for tools that judge or explain it rather than serve it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use prost_reflect::{DynamicMessage, SerializeOptions};
use xds_core::matching::coverage::Domains;
use xds_core::{
    Cache, CommitError, Constraints, Resource, ResourceName, Transaction, TypeUrl, VariantId, VariantSet,
};

use super::descriptors::Descriptors;
#[cfg(test)]
use super::document;
use super::document::FileFormat;
use super::error::{FolderError, Position, Problem};
use super::index::{Changes, FileContent, Index};
#[cfg(test)]
use super::scan::Stamp;
use super::{Folder, FolderErrors, Isolation, Progress, domains, lint, scan, unreadable};

/// All that a folder says, with the places where it is said.
///
/// Where [`errors`](Self::errors) has any, it is what could be read in spite of them.
#[derive(Debug)]
pub struct Contents {
    pub(super) names: BTreeMap<TypeUrl, Names>,
    pub(super) domains: Domains,
    pub(super) descriptors: Arc<Descriptors>,
    errors: Vec<FolderError>,
    /// Whether nothing is missing but what single names were refused for.
    is_complete: bool,
    files: usize,
    resources: usize,
    isolated: usize,
}

/// The names of one type. A name whose variants do not go together has none of them here.
pub(super) type Names = BTreeMap<ResourceName, Option<VariantSet<Arc<Located>>>>;

/// A variant and where it is written.
#[derive(Debug)]
pub struct Located {
    /// The variant.
    pub resource: Resource,
    /// Where it is written.
    pub location: Location,
}

/// A place of a variant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The file below the folder, with `/` between its parts.
    pub file: Arc<str>,
    /// The line where the resource begins; in a .pb file the number of the resource. Counted from 1.
    pub line: u32,
}

impl Folder {
    /// Reads the whole folder, whatever was loaded before, and judges it as a load does, but every
    /// name by itself.
    pub fn contents(&self, progress: impl FnMut(Progress)) -> Contents {
        let scan::ScanResult { mut files, mut errors, .. } = scan::scan(&self.root, &self.reloads);
        let count = files.len();
        let mut domains = Domains::new();
        files.retain(|(file, _)| {
            if domains::is_domains(file) {
                match self.domains(file) {
                    Ok(found) => domains.extend(found),
                    Err(found) => errors.extend(found),
                }
            }
            !domains::is_domains(file)
        });
        let files = files.into_iter().map(|(file, stamp)| (file, Some(stamp))).collect();
        let mut changes = self.read(files, &mut errors, progress);
        let before = Index::default();
        let mut isolated = 0;
        let is_seen = errors.iter().all(|error| !error.file.is_empty());
        if self.isolation == Isolation::File && is_seen {
            let (cache, may_be_empty) = (Cache::new(), self.allow_empty || !errors.is_empty());
            let commit = |transaction| cache.commit(transaction);
            if before.commit_usable(&mut changes, &mut errors, may_be_empty, commit).is_some() {
                isolated = errors.iter().map(|error| &error.file).collect::<BTreeSet<_>>().len();
            }
        }
        errors.extend(before.duplicates(&changes));
        if errors.is_empty() && !self.allow_empty && before.is_emptied_by(&changes) {
            errors.push(FolderError::new("", Problem::NoResources));
        }
        let contents = Contents::new(changes, domains, errors, Arc::clone(&self.descriptors), count);
        Contents { isolated, ..contents }
    }

    fn domains(&self, file: &str) -> Result<Domains, Vec<FolderError>> {
        let content = self.content(file).map_err(|error| vec![unreadable(file, &error)])?;
        domains::read(file, &content)
    }
}

/// The sets of variants by type and name, and what is wrong with those that are none.
fn judge(variants: Vec<Arc<Located>>, errors: &mut Vec<FolderError>) -> BTreeMap<TypeUrl, Names> {
    let mut by_id = BTreeMap::<TypeUrl, BTreeMap<ResourceName, BTreeMap<Constraints, Arc<Located>>>>::new();
    for variant in variants {
        let VariantId { type_url, name, constraints } = variant.resource.id().clone();
        // The second of a kind has an error already.
        by_id.entry(type_url).or_default().entry(name).or_default().entry(constraints).or_insert(variant);
    }
    let mut judge = |variants: BTreeMap<Constraints, Arc<Located>>| {
        if let Some(only) = variants.get(&Constraints::NONE).filter(|_| variants.len() == 1) {
            return Some(VariantSet::everyone(Arc::clone(only)));
        }
        let set =
            VariantSet::of(variants.iter().map(|(constraints, variant)| (constraints, Arc::clone(variant))));
        if set.is_err() {
            errors.extend(refused(&variants));
        }
        set.ok()
    };
    let mut names_of = |names: BTreeMap<ResourceName, _>| {
        names.into_iter().map(|(name, variants)| (name, judge(variants))).collect()
    };
    by_id.into_iter().map(|(type_url, names)| (type_url, names_of(names))).collect()
}

/// What a cache says to variants that do not go together.
fn refused(variants: &BTreeMap<Constraints, Arc<Located>>) -> Option<FolderError> {
    let mut transaction = Transaction::new();
    variants.values().for_each(|variant| transaction.put(variant.resource.clone()));
    let error = Cache::new().commit(transaction).err()?;
    let location = |id: &VariantId| variants.get(&id.constraints).map(|variant| &variant.location);
    let (here, other) = match &error {
        CommitError::Ambiguous { first, second, .. } | CommitError::KeySets { first, second, .. } => {
            (location(second), location(first))
        }
        CommitError::Unsatisfiable { id } | CommitError::TooComplex { id } => (location(id), None),
        _ => (variants.values().next().map(|variant| &variant.location), None),
    };
    let other = other.map(|other| ((&*other.file).into(), other.line));
    let problem = Problem::Commit { error: Box::new(error), other };
    let here = here?;
    Some(FolderError { at: here.position(), ..FolderError::new(&here.file, problem) })
}

impl Contents {
    fn new(
        files: Changes,
        domains: Domains,
        mut errors: Vec<FolderError>,
        descriptors: Arc<Descriptors>,
        file_count: usize,
    ) -> Self {
        let is_complete = errors.is_empty();
        let mut variants = Vec::new();
        for (file, found) in files {
            let FileContent::Resources(_, parsed) = found else { continue };
            let file: Arc<str> = file.into();
            variants.extend(parsed.into_iter().map(|parsed| {
                let location = Location { file: Arc::clone(&file), line: parsed.line };
                Arc::new(Located { resource: parsed.resource, location })
            }));
        }
        let resources = variants.len();
        let names = judge(variants, &mut errors);
        Self { names, domains, descriptors, errors, is_complete, files: file_count, resources, isolated: 0 }
    }

    /// Of texts with their file names.
    #[cfg(test)]
    pub(super) fn of_texts(texts: &[(&str, &str)]) -> Self {
        let descriptors = Arc::new(Descriptors::envoy());
        let mut domains = Domains::new();
        let mut files = Changes::new();
        for (file, text) in texts {
            if domains::is_domains(file) {
                domains = domains::read(file, text.as_bytes()).unwrap();
            } else {
                let parsed = document::read(
                    file,
                    FileFormat::Yaml,
                    text.as_bytes(),
                    &descriptors,
                    xds_core::PAYLOAD_LIMIT_BYTES,
                );
                let parsed = parsed.unwrap();
                files.push(((*file).into(), FileContent::Resources(Stamp::default(), parsed)));
            }
        }
        Self::new(files, domains, Vec::new(), descriptors, texts.len())
    }

    /// Everything for which a load would refuse the folder, and for each name that is wrong rather
    /// than for the first; `None` when it would not.
    #[must_use]
    pub fn errors(&self) -> Option<FolderErrors> {
        (!self.errors.is_empty()).then(|| FolderErrors::sorted(self.errors.clone()))
    }

    /// Everything that is allowed and yet unlikely to be meant, in the order of files and lines.
    ///
    /// Nothing is said before all files can be read, since one of them may have what the others
    /// lack. Costs a look into each message, some 10 µs to 100 µs.
    #[must_use]
    pub fn warnings(&self) -> Vec<lint::Warning> {
        if self.is_complete { lint::lint(self) } else { Vec::new() }
    }

    /// How many files there are.
    #[must_use]
    pub fn files(&self) -> usize {
        self.files
    }

    /// How many files have errors and are left out while the others are in it, under
    /// [`Isolation::File`].
    #[must_use]
    pub fn isolated(&self) -> usize {
        self.isolated
    }

    /// How many resources are in them.
    #[must_use]
    pub fn resources(&self) -> usize {
        self.resources
    }

    /// The types of the resources, in order.
    pub fn types(&self) -> impl Iterator<Item = &TypeUrl> {
        self.names.keys()
    }

    /// The names of a type with their variants, in order; those left out whose variants do not go
    /// together.
    pub fn names(&self, type_url: &str) -> impl Iterator<Item = (&ResourceName, &VariantSet<Arc<Located>>)> {
        let names = self.names.get(type_url).into_iter().flatten();
        names.filter_map(|(name, set)| Some((name, set.as_ref()?)))
    }

    /// The variants of a name.
    #[must_use]
    pub fn get(&self, type_url: &str, name: &ResourceName) -> Option<&VariantSet<Arc<Located>>> {
        self.names.get(type_url)?.get(name)?.as_ref()
    }

    /// A name of the type that differs little from this one, for those who mistyped it.
    #[must_use]
    pub fn nearest_name(&self, type_url: &str, name: &str) -> Option<String> {
        let names = self.names.get(type_url)?.keys().map(|name| name.as_str().to_owned());
        super::convert::nearest(name, names)
    }

    /// The payload as proto3 JSON with the fields' own names and what is in each `Any`; `None`
    /// where a type is unknown.
    #[must_use]
    pub fn payload_json(&self, resource: &Resource) -> Option<serde_json::Value> {
        let descriptor = self.descriptors.message(resource.payload_type())?;
        let message = DynamicMessage::decode(descriptor, resource.payload().clone()).ok()?;
        let options = SerializeOptions::new().use_proto_field_name(true);
        message.serialize_with_options(serde_json::value::Serializer, &options).ok()
    }

    /// How many variants a type has, and how many names.
    #[must_use]
    pub fn count(&self, type_url: &TypeUrl) -> (usize, usize) {
        let names = self.names.get(type_url);
        let variants = self.names(type_url.as_str()).map(|(_, set)| set.len()).sum();
        (variants, names.map_or(0, BTreeMap::len))
    }

    /// Keys about which `domains.yaml` says nothing.
    pub(super) fn undeclared<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a Arc<str>>,
    ) -> BTreeSet<&'a Arc<str>> {
        keys.into_iter().filter(|key| !self.domains.contains_key(*key)).collect()
    }
}

impl Location {
    /// Where that is in a text file.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        let is_text = FileFormat::of(&self.file) != Some(FileFormat::Protobuf);
        is_text.then_some(Position { line: self.line, column: 1 })
    }
}

/// As `file:line`.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position() {
            Some(at) => write!(f, "{}:{}", self.file, at.line),
            None => write!(f, "{} (resource {})", self.file, self.line),
        }
    }
}
