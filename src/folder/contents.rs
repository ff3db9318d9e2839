//! The contents of a folder, for tools that check or explain it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use prost_reflect::{DynamicMessage, SerializeOptions};
use xds_core::{
    Cache, CommitError, Constraints, Resource, ResourceName, Snapshot, Transaction, TypeUrl, VariantId,
    VariantSet,
};

use super::descriptors::Descriptors;
use super::document;
use super::domains::DomainsFile;
use super::error::{FolderError, Position, Problem};
use super::format::FileFormat;
use super::index::{Changes, FileContent, Index};
use super::scan::Stamp;
use super::{Folder, FolderErrors, Isolation, Progress, domains, lint, scan, unreadable};

mod in_memory;

/// All resources of a folder, with their places.
///
/// If [`errors`](Self::errors) returns errors, these are the resources that could be read in spite
/// of them.
#[derive(Debug)]
pub struct Contents {
    pub(super) names: BTreeMap<TypeUrl, Names>,
    pub(super) domains: DomainsFile,
    pub(super) descriptors: Arc<Descriptors>,
    errors: Vec<FolderError>,
    /// Whether all files could be read, so that at most some names were refused.
    is_complete: bool,
    files: usize,
    resources: usize,
    isolated: usize,
}

/// The names of one type. `None` for a name whose variants conflict.
pub(super) type Names = BTreeMap<ResourceName, Option<VariantSet<Arc<Located>>>>;

/// A variant and its place.
#[derive(Debug)]
pub struct Located {
    /// The variant.
    pub resource: Resource,
    /// The place of the variant.
    pub location: Location,
}

/// The place of a variant in a folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The path of the file below the folder, with `/` as separator; empty for a resource that is in
    /// no file.
    pub file: Arc<str>,
    /// The line where the resource begins; in a .pb file, and without a file, the number of the
    /// resource. Counted from 1.
    pub line: u32,
}

impl Folder {
    /// Reads the whole folder, whatever was loaded before, and checks it as a load does, but each
    /// name by itself.
    pub fn contents(&self, progress: impl FnMut(Progress)) -> Contents {
        let scan::ScanResult { mut files, mut errors, .. } = scan::scan(&self.root, &self.reloads);
        let count = files.len();
        let mut domains = DomainsFile::default();
        files.retain(|(file, _)| {
            if domains::is_domains(file) {
                match self.domains(file) {
                    Ok(found) => domains = found,
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

    /// The content that would be in use after these changes, from memory: of all files, only
    /// `domains.yaml` is read.
    pub(super) fn contents_after(&self, snapshot: &Snapshot, changes: &Changes) -> Contents {
        let in_use = |id: &VariantId| {
            let variant = snapshot.get(&id.type_url, &id.name)?.get(&id.constraints)?;
            Some(variant.resource(&id.type_url))
        };
        let mut files = self.index.contents_after(changes, in_use);
        let count = files.len();
        files.retain(|(file, _)| !domains::is_domains(file));
        // The file was valid when it was loaded. If it cannot be read now, any values are possible.
        let domains = domains::FILES.into_iter().filter(|file| self.provides_file(file, changes));
        let domains = domains.filter_map(|file| self.domains(file).ok()).next().unwrap_or_default();
        Contents::new(files, domains, Vec::new(), Arc::clone(&self.descriptors), count)
    }

    /// Whether the folder has a file after these changes.
    fn provides_file(&self, file: &str, changes: &Changes) -> bool {
        let changed = changes.iter().find(|(path, _)| **path == *file);
        changed.map_or_else(
            || self.index.contains(file),
            |(_, content)| !matches!(content, FileContent::Missing),
        )
    }

    fn domains(&self, file: &str) -> Result<DomainsFile, Vec<FolderError>> {
        let content = self.content(file).map_err(|error| vec![unreadable(file, &error)])?;
        domains::read(file, &content)
    }
}

/// Builds the variant sets by type and name. Adds an error for each name whose variants conflict.
fn judge(variants: Vec<Arc<Located>>, errors: &mut Vec<FolderError>) -> BTreeMap<TypeUrl, Names> {
    let mut by_id = BTreeMap::<TypeUrl, BTreeMap<ResourceName, BTreeMap<Constraints, Arc<Located>>>>::new();
    for variant in variants {
        let VariantId { type_url, name, constraints } = variant.resource.id().clone();
        // A duplicate has an error already.
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

/// The error that a cache returns for variants that conflict.
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
        domains: DomainsFile,
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

    /// The contents of these files, given with their names, as a folder reads them. A name with an
    /// unknown ending is that of a YAML file. A name that is given twice counts once.
    #[must_use]
    pub fn of_files(
        files: BTreeMap<Box<str>, Vec<u8>>,
        descriptors: Arc<Descriptors>,
        resource_limit: usize,
    ) -> Self {
        let (count, mut errors, mut changes) = (files.len(), Vec::new(), Changes::new());
        for (file, content) in files {
            let format = FileFormat::of(&file).unwrap_or(FileFormat::Yaml);
            match document::read(&file, format, &content, &descriptors, resource_limit) {
                Ok(parsed) => changes.push((file, FileContent::Resources(Stamp::default(), parsed))),
                Err(found) => errors.extend(found),
            }
        }
        errors.extend(Index::default().duplicates(&changes));
        Self::new(changes, DomainsFile::default(), errors, descriptors, count)
    }

    /// The contents of these texts, given with file names.
    #[cfg(test)]
    pub(crate) fn of_texts(texts: &[(&str, &str)]) -> Self {
        let descriptors = Arc::new(Descriptors::envoy());
        let mut domains = DomainsFile::default();
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

    /// All errors for which a load would refuse the folder, with an error for each invalid name
    /// rather than only for the first one; `None` without errors.
    #[must_use]
    pub fn errors(&self) -> Option<FolderErrors> {
        (!self.errors.is_empty()).then(|| FolderErrors::sorted(self.errors.clone()))
    }

    /// Likely mistakes in a valid folder, in the order of files and lines.
    ///
    /// Empty unless all files can be read, because a file that cannot be read may have what others
    /// refer to. Decodes each message, which takes about 10 µs to 100 µs each.
    #[must_use]
    pub fn warnings(&self) -> Vec<lint::Warning> {
        self.warnings_with(&mut lint::KnownReferences::default())
    }

    /// The same. Decodes only messages whose references are not known yet.
    pub(super) fn warnings_with(&self, known: &mut lint::KnownReferences) -> Vec<lint::Warning> {
        if self.is_complete { lint::lint(self, known) } else { Vec::new() }
    }

    /// The number of files.
    #[must_use]
    pub fn files(&self) -> usize {
        self.files
    }

    /// The number of files with errors whose resources are left out, under [`Isolation::File`].
    #[must_use]
    pub fn isolated(&self) -> usize {
        self.isolated
    }

    /// The number of resources.
    #[must_use]
    pub fn resources(&self) -> usize {
        self.resources
    }

    /// The types of the resources, in order.
    pub fn types(&self) -> impl Iterator<Item = &TypeUrl> {
        self.names.keys()
    }

    /// The names of a type with their variants, in order. Names whose variants conflict are left
    /// out.
    pub fn names(&self, type_url: &str) -> impl Iterator<Item = (&ResourceName, &VariantSet<Arc<Located>>)> {
        let names = self.names.get(type_url).into_iter().flatten();
        names.filter_map(|(name, set)| Some((name, set.as_ref()?)))
    }

    /// The variants of a name.
    #[must_use]
    pub fn get(&self, type_url: &str, name: &ResourceName) -> Option<&VariantSet<Arc<Located>>> {
        self.names.get(type_url)?.get(name)?.as_ref()
    }

    /// A similar name of the type, as a suggestion for a misspelt one.
    #[must_use]
    pub fn nearest_name(&self, type_url: &str, name: &str) -> Option<String> {
        let names = self.names.get(type_url)?.keys().map(|name| name.as_str().to_owned());
        super::convert::nearest(name, names)
    }

    /// The payload as proto3 JSON, with the fields' own names and the content of each `Any`; `None`
    /// if a type is unknown.
    #[must_use]
    pub fn payload_json(&self, resource: &Resource) -> Option<serde_json::Value> {
        let descriptor = self.descriptors.message(resource.payload_type())?;
        let message = DynamicMessage::decode(descriptor, resource.payload().clone()).ok()?;
        let options = SerializeOptions::new().use_proto_field_name(true);
        message.serialize_with_options(serde_json::value::Serializer, &options).ok()
    }

    /// The number of variants of a type, and the number of its names.
    #[must_use]
    pub fn count(&self, type_url: &TypeUrl) -> (usize, usize) {
        let names = self.names.get(type_url);
        let variants = self.names(type_url.as_str()).map(|(_, set)| set.len()).sum();
        (variants, names.map_or(0, BTreeMap::len))
    }

    /// The keys that `domains.yaml` does not have.
    pub(super) fn undeclared<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a Arc<str>>,
    ) -> BTreeSet<&'a Arc<str>> {
        keys.into_iter().filter(|key| !self.domains.domains.contains_key(*key)).collect()
    }
}

impl Location {
    /// The position in a text file; `None` for a `.pb` file, and without a file.
    #[must_use]
    pub fn position(&self) -> Option<Position> {
        let is_text = !self.file.is_empty() && FileFormat::of(&self.file) != Some(FileFormat::Protobuf);
        is_text.then_some(Position { line: self.line, column: 1 })
    }
}

/// As `file:line`.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position() {
            Some(at) => write!(f, "{}:{}", self.file, at.line),
            None if self.file.is_empty() => write!(f, "resource {}", self.line),
            None => write!(f, "{} (resource {})", self.file, self.line),
        }
    }
}
