//! A folder of files as a source of resources, with live reload.
//!
//! A folder holds `*.yaml`, `*.yml`, `*.json` (proto3 JSON, field names in `snake_case` or
//! `camelCase`) and `*.pb` files, at any depth. Names that begin with a dot are skipped. A document
//! is one of
//!
//! - Envoy's own file form, a `DiscoveryResponse`: `resources: [..]`,
//! - one resource with `@type`,
//! - one `envoy.service.discovery.v3.Resource` wrapper with `@type`, `name` and `resource`;
//!
//! a YAML file may hold several, separated by `---`, and a `.pb` file is a binary
//! `DiscoveryResponse`.
//!
//! `when: env=prod,!version` beside `@type` says which clients a resource is for
//! ([`xds_core::when`]), so that one name may have several variants. In a wrapper, also in a `.pb`
//! file, `resource_name.dynamic_parameter_constraints` has the same meaning.
//!
//! `domains.yaml` (or `.yml`, `.json`) at the top contains no resource: it lists the values that
//! clients have ([`Contents::warnings`]).
//!
//! The folder is one transaction: if a file has an error, the last good state stays in use. All
//! errors of all files are reported at once ([`FolderErrors`]). With [`Isolation::File`] each file
//! is a transaction of its own, unless files conflict.
//!
//! | module | what it does |
//! | --- | --- |
//! | `scan` | finds the files |
//! | `format`, `document`, `tree`, `convert`, `encode` | read a file: its values with their lines, the messages that they mean, the bytes of the messages |
//! | `descriptors` | the descriptors of all message types |
//! | `decode` | shows messages as JSON for people |
//! | `index` | knows which file provides which resources; turns changed files into a transaction; no I/O |
//! | `isolate` | decides which files keep their last good content while the others are served; no I/O |
//! | `claims` | keeps the folder from taking variants of another source of the cache |
//! | `gate` | takes each new content before the cache does |
//! | `watch` | decides when to read the folder again |
//! | `unfinished` | decides which changed files wait, because a program may still be writing them |
//! | `domains` | reads the values that clients have, which only a check needs |
//! | [`schema`] | the form of the files, as JSON Schemas for editors |
//! | `contents`, [`lint`] | the folder as data, and warnings about likely mistakes in it |
//! | `linter`, `standing` | the warnings about the content in use, while the folder is watched |

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::SystemTime;
use std::{io, thread};

use xds_core::{Cache, Commit, PAYLOAD_LIMIT_BYTES, Transaction};
use xds_file::{Refused, Reloads};

use document::ParsedResource;
use format::FileFormat;
use gate::Gate;
use index::{Changes, FileContent, Index, Plan};
use lint::KnownReferences;
use scan::{PathKind, Stamp};
use unfinished::Unfinished;

pub use contents::{Contents, Located, Location};
pub use decode::Readable;
pub use descriptors::{Descriptors, DescriptorsError};
pub use domains::domains;
pub use error::{FolderError, FolderErrors, Position, Problem};
#[cfg(feature = "kubernetes")]
pub(crate) use isolate::concerns;
pub use label::{LABEL_LIMIT_BYTES, Label};
pub use standing::{Reaction, StandingWarning, StandingWarnings, WARNINGS_LISTED, WarningPolicy};
pub use xds_file::{FileKind, Refused as FileRefused};

mod claims;
mod command_operators;
mod constraint_form;
mod contents;
mod convert;
mod decode;
mod descriptors;
mod document;
mod domains;
pub(crate) mod encode;
mod error;
mod format;
mod gate;
mod index;
mod isolate;
mod known_rejections;
mod label;
pub mod lint;
mod linter;
mod re2;
mod rules;
mod scan;
pub mod schema;
mod standing;
mod tree;
mod unfinished;
mod validate;
mod violations;
mod watch;
mod wrapper;

/// A folder and the last good state of its files.
///
/// Needs about 200 bytes per file, in addition to the cache.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    descriptors: Arc<Descriptors>,
    allow_empty: bool,
    isolation: Isolation,
    file_limit: usize,
    resource_limit: usize,
    index: Index,
    /// Whether the folder was loaded once, so that there is a last good state.
    is_loaded: bool,
    /// Files with errors under [`Isolation::File`], with their stamps at the last load.
    isolated: BTreeMap<Box<str>, Option<Stamp>>,
    /// Files that a failed load could not bring in. The next load reads them again, whatever their
    /// stamps: an error ends only when the file was read and is right.
    pending: BTreeSet<Box<str>>,
    /// Whether the last scan found a symbolic link.
    symlinks: bool,
    /// Whether the last scan of the whole folder saw all of it.
    is_scanned: bool,
    reloads: Arc<Reloads>,
    label_source: Option<Label>,
    /// The label at the last load.
    label: Box<str>,
    /// Whether the log has a warning that the label cannot be read.
    is_label_unreadable: bool,
    warning_policy: WarningPolicy,
    standing_warnings: Arc<StandingWarnings>,
    /// For [`Reaction::Refuse`], which checks each change before its commit.
    known_references: KnownReferences,
    gate: Option<Gate>,
    unfinished: Unfinished,
}

impl Folder {
    /// A folder with the types of Envoy, not read yet. It must contain a resource.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            descriptors: Arc::new(Descriptors::envoy()),
            allow_empty: false,
            isolation: Isolation::Folder,
            file_limit: FILE_LIMIT_BYTES,
            resource_limit: PAYLOAD_LIMIT_BYTES,
            index: Index::default(),
            is_loaded: false,
            isolated: BTreeMap::new(),
            pending: BTreeSet::new(),
            symlinks: false,
            is_scanned: false,
            reloads: Arc::default(),
            label_source: None,
            label: Box::default(),
            is_label_unreadable: false,
            warning_policy: WarningPolicy::default(),
            standing_warnings: Arc::default(),
            known_references: KnownReferences::default(),
            gate: None,
            unfinished: Unfinished::default(),
        }
    }

    /// Reads files with these descriptors.
    #[must_use]
    pub fn with_descriptors(mut self, descriptors: impl Into<Arc<Descriptors>>) -> Self {
        self.descriptors = descriptors.into();
        self
    }

    /// The descriptors of the folder.
    #[must_use]
    pub fn descriptors(&self) -> &Arc<Descriptors> {
        &self.descriptors
    }

    /// Whether the newest content of the folder is in use; also valid while [`watch`](Self::watch)
    /// runs.
    #[must_use]
    pub fn reloads(&self) -> &Arc<Reloads> {
        &self.reloads
    }

    /// Allows the folder to contain no resource, at the start or after a change.
    #[must_use]
    pub fn allow_empty(mut self) -> Self {
        self.allow_empty = true;
        self
    }

    /// What keeps its last good state when a file has an error. Default: the whole folder.
    #[must_use]
    pub fn with_isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Labels its content, for people. Default: no label.
    #[must_use]
    pub fn with_label(mut self, label: Label) -> Self {
        self.label_source = Some(label);
        self
    }

    /// What to do about [warnings](Contents::warnings). Default: nothing.
    ///
    /// With [`Reaction::Report`], [`watch`](Self::watch) looks for them at its start and after
    /// changes, without reading files again, and updates [`standing_warnings`](Self::standing_warnings).
    /// It waits until there was no change for a second, for at most 10 s, and uses at most a tenth
    /// of one core.
    ///
    /// With [`Reaction::Refuse`], each load with a warning is refused. Each commit waits for the
    /// check. Use it with [`Isolation::Folder`]: with [`Isolation::File`] only the first load is
    /// refused, because several files may be the cause of a warning.
    #[must_use]
    pub fn with_warnings(mut self, policy: WarningPolicy) -> Self {
        self.warning_policy = policy;
        self
    }

    /// Gives each new content, with its label, to `take` before the cache gets it. If `take` refuses
    /// it, its errors are errors of the folder, and the next load tries again. For
    /// [`Isolation::Folder`].
    #[must_use]
    pub fn with_gate(
        mut self,
        take: impl FnMut(&Contents, &str) -> Result<(), Vec<FolderError>> + Send + 'static,
    ) -> Self {
        self.gate = Some(Gate::new(take));
        self
    }

    /// The warnings about the content in use; also valid while [`watch`](Self::watch) runs.
    #[must_use]
    pub fn standing_warnings(&self) -> &Arc<StandingWarnings> {
        &self.standing_warnings
    }

    /// Accepts files of up to this many bytes. Default [`FILE_LIMIT_BYTES`].
    #[must_use]
    pub fn with_file_limit(mut self, bytes: usize) -> Self {
        self.file_limit = bytes;
        self
    }

    /// Accepts resources whose encoded message has up to this many bytes (G10). Default
    /// [`PAYLOAD_LIMIT_BYTES`], because gRPC clients usually refuse larger messages; see
    /// [`Resource::new_within`](xds_core::Resource::new_within).
    #[must_use]
    pub fn with_resource_limit(mut self, bytes: usize) -> Self {
        self.resource_limit = bytes;
        self
    }

    /// Brings the cache up to date with the whole folder. Only files that changed since the last
    /// load are read, and files that a failed load could not bring in.
    ///
    /// Reads in parallel; `progress` is called on this thread for each file.
    ///
    /// # Errors
    /// All errors of the folder. The cache is unchanged. The next load reads the changed files
    /// again.
    pub fn load(&mut self, cache: &Cache, progress: impl FnMut(Progress)) -> Result<Loaded, FolderErrors> {
        let mut found = scan::scan(&self.root, &self.reloads);
        // If a link to a directory leads nowhere, do not remove the files below it: probably a
        // volume is not mounted.
        found.unseen.retain(|error| self.index.has_files_below(&error.file));
        found.errors.append(&mut found.unseen);
        self.symlinks = found.symlinks;
        self.is_scanned = found.errors.is_empty();
        let mut changed = self.index.differing(found.files, &self.pending);
        // Files that the scan could not see are not removed.
        let is_unseen = |file: &str| {
            found.errors.iter().any(|error| {
                file.strip_prefix(&*error.file).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            })
        };
        changed.retain(|(file, stamp)| stamp.is_some() || !is_unseen(file));
        self.commit(cache, changed, found.errors, progress)
    }

    /// Brings the cache up to date with some files, given by their path below the folder, and with
    /// the pending files of a failed load. Falls back to [`load`](Self::load) if a path is not a
    /// plain file.
    fn load_files(&mut self, cache: &Cache, files: BTreeSet<Box<str>>) -> Result<Loaded, FolderErrors> {
        if !self.is_scanned {
            return self.load(cache, |_| {});
        }
        // Only plain files with unchanged surroundings take this short way. In all other cases scan the
        // folder, which knows about links, directories and files that the watcher did not report.
        let mut changed = Vec::with_capacity(files.len());
        let mut errors = Vec::new();
        let reloads = Arc::clone(&self.reloads);
        let reading = reloads.reading("");
        for file in &files | &self.pending {
            reading.next(&file);
            // Only one domains file may exist. To check that takes a scan of the folder.
            if domains::is_domains(&file) {
                return self.load(cache, |_| {});
            }
            let path = self.root.join(&*file);
            let hidden = file.split('/').any(|part| part.starts_with('.'));
            if hidden {
                // A link in this folder may lead to a file below a hidden name.
                if self.symlinks {
                    return self.load(cache, |_| {});
                }
                continue;
            }
            self.symlinks |= path.is_symlink();
            match scan::look(&path) {
                Ok(PathKind::File(stamp)) if FileFormat::of(&file).is_some() => {
                    changed.push((file, Some(stamp)));
                }
                Ok(PathKind::Directory) => return self.load(cache, |_| {}),
                Ok(PathKind::Missing) if self.index.has_files_below(&file) => {
                    return self.load(cache, |_| {});
                }
                Ok(PathKind::Missing) if self.index.contains(&file) => changed.push((file, None)),
                Ok(PathKind::NotRegular(kind)) if FileFormat::of(&file).is_some() => {
                    errors.push(FolderError::new(&file, Problem::Refused(Refused::NotRegular { kind })));
                    self.pending.insert(file);
                }
                Ok(PathKind::File(_) | PathKind::Missing | PathKind::NotRegular(_)) => {}
                Err(error) if FileFormat::of(&file).is_some() => {
                    errors.push(unreadable(&file, &error));
                    self.pending.insert(file);
                }
                Err(_) if self.index.has_files_below(&file) => return self.load(cache, |_| {}),
                Err(_) => {}
            }
        }
        drop(reading);
        self.commit(cache, changed, errors, |_| {})
    }

    /// Reads the changed files, given in order, and commits the result. A file without a stamp was
    /// removed.
    fn commit(
        &mut self,
        cache: &Cache,
        mut changed: Vec<(Box<str>, Option<Stamp>)>,
        errors: Vec<FolderError>,
        progress: impl FnMut(Progress),
    ) -> Result<Loaded, FolderErrors> {
        self.read_label();
        let written = self.leave_out_written(&mut changed);
        let loaded = self.try_commit(cache, changed, errors, progress);
        self.pending.extend(written);
        if loaded.is_ok() {
            self.reloads.set_label(&self.label);
        }
        match &loaded {
            // The next look shows whether the errors have ended.
            Ok(_) if self.unfinished.may_hide_errors() && self.reloads.refusal().is_some() => {}
            Ok(Loaded { isolated: Some(errors), commit, .. }) => {
                self.reloads.on_isolated(self.isolated.len(), errors.to_string(), commit.changed > 0);
            }
            Ok(loaded) if loaded.commit.changed > 0 => self.reloads.on_new(),
            Ok(_) => self.reloads.on_same(),
            Err(errors) => _ = self.reloads.on_refused(errors.to_string()),
        }
        loaded
    }

    /// Reads the label, or keeps none if that is not possible.
    fn read_label(&mut self) {
        let Some(source) = &self.label_source else { return };
        match source.read(&self.reloads) {
            Ok(label) => (self.label, self.is_label_unreadable) = (label, false),
            Err(error) => {
                self.label = Box::default();
                if !std::mem::replace(&mut self.is_label_unreadable, true) {
                    tracing::warn!(%error, "the label of the folder cannot be read; its commits have none until then");
                }
            }
        }
    }

    fn try_commit(
        &mut self,
        cache: &Cache,
        changed: Vec<(Box<str>, Option<Stamp>)>,
        mut errors: Vec<FolderError>,
        progress: impl FnMut(Progress),
    ) -> Result<Loaded, FolderErrors> {
        let read = Read::of(&changed);
        if self.isolation == Isolation::File && self.is_loaded {
            return self.try_commit_usable(cache, changed, errors, progress);
        }
        let mut changes = self.read(changed, &mut errors, progress);
        let mut held = BTreeSet::new();
        if errors.is_empty() {
            held = self.hold_unfinished(&mut changes);
        } else {
            self.unfinished.forget();
        }
        errors.extend(self.index.duplicates(&changes));
        if errors.is_empty() && !self.allow_empty && self.index.is_emptied_by(&changes) {
            errors.push(FolderError::new("", Problem::NoResources));
        }
        let (mut claims, taken) = self.index.claims(&changes, cache);
        errors.extend(taken);
        if errors.is_empty() && self.warning_policy.reaction == Reaction::Refuse {
            errors = self.refused_warnings(cache, &changes);
        }
        if errors.is_empty() && !(changes.is_empty() && self.is_loaded) {
            errors = self.refused_by_gate(cache, &changes);
        }
        if !errors.is_empty() && self.isolation == Isolation::File {
            errors.push(FolderError::new("", Problem::UnknownAtStart));
        }
        if !errors.is_empty() {
            self.pending.extend(changes.into_iter().map(|(file, _)| file).chain(held));
            return Err(FolderErrors::sorted(errors));
        }
        let all: Vec<_> = changes.iter().map(|(file, _)| file.clone()).collect();
        let Plan { mut transaction, files } = self.index.plan(changes);
        transaction.origin().label.clone_from(&self.label);
        let commit = match claims.commit(cache, transaction) {
            Ok(commit) => commit,
            Err(error) => {
                // Scan the whole folder the next time.
                self.is_scanned = false;
                self.pending.extend(all.into_iter().chain(held));
                return Err(FolderErrors::sorted(vec![self.index.refused(&files, error, None)]));
            }
        };
        self.index.accept(files);
        self.pending = held;
        self.is_loaded = true;
        if self.warning_policy.reaction == Reaction::Refuse {
            self.standing_warnings.replace(SystemTime::now(), Vec::new());
        }
        Ok(self.loaded(read, commit, None))
    }

    /// The warnings of the content after these changes, as errors.
    fn refused_warnings(&mut self, cache: &Cache, changes: &Changes) -> Vec<FolderError> {
        let contents = self.contents_after(&cache.snapshot(), changes);
        // Otherwise variants conflict, and the cache refuses them.
        if contents.errors().is_some() {
            return Vec::new();
        }
        let mut warnings = contents.warnings_with(&mut self.known_references);
        self.warning_policy.retain(&mut warnings);
        warnings.into_iter().map(FolderError::of_warning).collect()
    }

    /// The errors of the gate, if there is one.
    fn refused_by_gate(&self, cache: &Cache, changes: &Changes) -> Vec<FolderError> {
        let Some(gate) = &self.gate else { return Vec::new() };
        let contents = self.contents_after(&cache.snapshot(), changes);
        // Otherwise variants conflict, and the cache refuses them.
        if contents.errors().is_some() {
            return Vec::new();
        }
        gate.take(&contents, &self.label).err().unwrap_or_default()
    }

    /// The same with each file as a transaction: a file with errors keeps its last good state.
    fn try_commit_usable(
        &mut self,
        cache: &Cache,
        changed: Vec<(Box<str>, Option<Stamp>)>,
        mut errors: Vec<FolderError>,
        progress: impl FnMut(Progress),
    ) -> Result<Loaded, FolderErrors> {
        let read = Read::of(&changed);
        let stamps: BTreeMap<Box<str>, Option<Stamp>> = changed.iter().cloned().collect();
        let mut changes = self.read(changed, &mut errors, progress);
        self.follow_renames(&stamps, &mut changes);
        let all: Vec<_> = changes.iter().map(|(file, _)| file.clone()).collect();
        let broken: BTreeSet<_> = errors.iter().map(|error| &error.file).collect();
        changes.retain(|(file, _)| !broken.contains(file));
        let held = self.hold_unfinished(&mut changes);
        let refused = |folder: &mut Self, errors| {
            folder.pending.extend(all);
            Err(FolderErrors::sorted(errors))
        };
        // An error without a file: the folder as a whole cannot be read.
        if errors.iter().any(|error| error.file.is_empty()) {
            return refused(self, errors);
        }
        let (mut claims, mut taken) = self.index.claims(&changes, cache);
        errors.append(&mut taken);
        let commit = |mut transaction: Transaction| {
            transaction.origin().label.clone_from(&self.label);
            claims.commit(cache, transaction)
        };
        let done = self.index.commit_usable(&mut changes, &mut errors, self.allow_empty, commit);
        let Some((commit, files)) = done else {
            self.is_scanned = false;
            return refused(self, errors);
        };
        self.index.accept(files);
        self.isolated = errors
            .iter()
            .map(|error| (error.file.clone(), stamps.get(&error.file).copied().flatten()))
            .collect();
        self.pending = self.isolated.keys().cloned().chain(held).collect();
        let isolated = (!errors.is_empty()).then(|| FolderErrors::sorted(errors));
        Ok(self.loaded(read, commit, isolated))
    }

    /// When an isolated file was renamed, its last good state continues under the new path.
    fn follow_renames(&mut self, stamps: &BTreeMap<Box<str>, Option<Stamp>>, changes: &mut Changes) {
        for (from, stamp) in std::mem::take(&mut self.isolated) {
            let is_gone =
                changes.iter().any(|(file, found)| *file == from && matches!(found, FileContent::Missing));
            if stamp.is_none() || !is_gone || !self.index.contains(&from) {
                continue;
            }
            let mut others = stamps.iter().filter(|(to, other)| **other == stamp && !self.index.contains(to));
            if let Some((to, _)) = others.next() {
                self.index.rename(&from, to.clone());
                changes.retain(|(file, _)| *file != from);
            }
        }
    }

    fn loaded(&self, read: Read, commit: Commit, isolated: Option<FolderErrors>) -> Loaded {
        Loaded {
            files: self.index.files(),
            resources: self.index.resources(),
            files_read: read.count,
            paths: read.paths,
            label: self.label.clone(),
            commit,
            isolated,
        }
    }

    /// Reads files on all cores. A file with errors gives [`FileContent::Missing`], and its errors
    /// go to `errors`.
    fn read(
        &self,
        files: Vec<(Box<str>, Option<Stamp>)>,
        errors: &mut Vec<FolderError>,
        mut progress: impl FnMut(Progress),
    ) -> Vec<(Box<str>, FileContent)> {
        let next = AtomicUsize::new(0);
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let threads = cores.min(files.len().div_ceil(FILES_PER_THREAD));
        let mut found: Vec<FileContent> = Vec::new();
        found.resize_with(files.len(), || FileContent::Missing);
        thread::scope(|scope| {
            let (sender, results) = mpsc::sync_channel(RESULTS_IN_FLIGHT);
            for _ in 0..threads {
                let sender = sender.clone();
                let (files, next) = (&files, &next);
                scope.spawn(move || {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some((file, stamp)) = files.get(number) else { return };
                        let result =
                            stamp.map_or(Ok(FileContent::Missing), |stamp| self.read_file(file, stamp));
                        if sender.send((number, result)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            for (files_read, (number, result)) in (1..).zip(results) {
                match result {
                    Ok(result) => found[number] = result,
                    Err(found) => errors.extend(found),
                }
                progress(Progress { files_read, files: files.len() });
            }
        });
        files.into_iter().map(|(file, _)| file).zip(found).collect()
    }

    fn read_file(&self, file: &str, stamp: Stamp) -> Result<FileContent, Vec<FolderError>> {
        let content = match self.content(file) {
            Ok(content) => content,
            // The file was deleted after the scan.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(FileContent::Missing),
            Err(error) => return Err(vec![unreadable(file, &error)]),
        };
        if domains::is_domains(file) {
            // This file has no resources, but an error in it is an error of the folder.
            return domains::read(file, &content).map(|_| FileContent::Resources(stamp, Vec::new()));
        }
        let Some(format) = FileFormat::of(file) else { return Ok(FileContent::Missing) };
        let mut parsed: Vec<ParsedResource> =
            document::read(file, format, &content, &self.descriptors, self.resource_limit)?;
        parsed.shrink_to_fit();
        Ok(FileContent::Resources(stamp, parsed))
    }

    fn content(&self, file: &str) -> io::Result<Vec<u8>> {
        let _reading = self.reloads.reading(file);
        xds_file::read(&self.root.join(file), self.file_limit)
    }

    fn root(&self) -> &Path {
        &self.root
    }
}

/// What keeps its last good state when a file has an error.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// The whole folder: it is one transaction.
    #[default]
    Folder,
    /// Only that file; the others are served. If new content conflicts with served content, the new
    /// content is in error; of two new files, the one with the later path is. The first load
    /// accepts all files or none (G13), because the resources of an invalid file are unknown.
    File,
}

/// The progress of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Files read so far.
    pub files_read: usize,
    /// Files to read.
    pub files: usize,
}

/// The result of a load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Files of the folder.
    pub files: usize,
    /// Resources in them.
    pub resources: usize,
    /// Files that changed or were removed since the last load.
    pub files_read: usize,
    /// The paths of the first 5 of them, below the folder.
    pub paths: Box<[Box<str>]>,
    /// The [label](Folder::with_label) of the content; empty without one.
    pub label: Box<str>,
    /// The commit to the cache.
    pub commit: Commit,
    /// The errors of files that keep their last good state while the others are served, under
    /// [`Isolation::File`].
    pub isolated: Option<FolderErrors>,
}

/// The files that a load reads.
#[derive(Debug)]
struct Read {
    count: usize,
    /// See [`Loaded::paths`].
    paths: Box<[Box<str>]>,
}

impl Read {
    fn of(changed: &[(Box<str>, Option<Stamp>)]) -> Self {
        let paths = changed.iter().take(PATHS_LISTED).map(|(file, _)| file.clone());
        Self { count: changed.len(), paths: paths.collect() }
    }
}

fn unreadable(file: &str, error: &io::Error) -> FolderError {
    let unreadable = || Problem::Unreadable { kind: error.kind() };
    FolderError::new(file, xds_file::refused(error).map_or_else(unreadable, Problem::Refused))
}

/// How many paths of changed files are listed.
const PATHS_LISTED: usize = 5;

/// The default of [`Folder::with_file_limit`]. While a file is read, its content takes several
/// times as much memory.
pub const FILE_LIMIT_BYTES: usize = 64 << 20;

/// Fewer files than this are not worth another thread.
const FILES_PER_THREAD: usize = 16;

/// How many read files may wait for the collecting thread.
const RESULTS_IN_FLIGHT: usize = 64;
