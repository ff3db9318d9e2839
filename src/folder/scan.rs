//! Scans a directory for files and their stamps.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use xds_file::{FileKind, Reading, Refused, Reloads};

use super::domains;
use super::error::{FolderError, Problem};
use super::format::FileFormat;

/// Shows whether a file changed, without reading it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    modified_ns: u64,
    len: u64,
    inode: u64,
    rights: Rights,
}

/// The files of a folder that may contain resources.
#[derive(Debug, Default)]
pub(super) struct ScanResult {
    /// The files by path below the folder, in order.
    pub(super) files: Vec<(Box<str>, Stamp)>,
    /// Whether a path is a symbolic link, so that a file may change under another path.
    pub(super) symlinks: bool,
    pub(super) errors: Vec<FolderError>,
    /// Paths that could not be examined and do not have the name of a resource file. They may be
    /// directories.
    pub(super) unseen: Vec<FolderError>,
}

/// Scans a folder and everything below it, except hidden names.
///
/// Follows links, because each file in a Kubernetes volume is a link. Does not follow a link to a
/// directory above it.
pub(super) fn scan(root: &Path, reloads: &Reloads) -> ScanResult {
    let mut scan = Scan { found: ScanResult::default(), reading: reloads.reading("") };
    scan.directory(root, "", &mut Vec::new());
    let mut scan = scan.found;
    scan.files.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    let mut domains = scan.files.iter().map(|(file, _)| file).filter(|file| domains::is_domains(file));
    if let (Some(first), Some(second)) = (domains.next(), domains.next()) {
        scan.errors.push(FolderError::new(second, Problem::DomainsTwice { file: first.clone() }));
    }
    scan
}

/// The kind of a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PathKind {
    File(Stamp),
    Directory,
    /// Not a regular file: reading it may never end.
    NotRegular(FileKind),
    Missing,
}

/// Examines one path, following links.
///
/// # Errors
/// The path cannot be examined. A link that leads nowhere is an error rather than
/// [`PathKind::Missing`]: probably a volume is not mounted, and nobody wanted to remove the
/// resources.
pub(super) fn look(path: &Path) -> io::Result<PathKind> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(PathKind::Directory),
        Ok(metadata) if metadata.is_file() => Ok(PathKind::File(Stamp::of(&metadata))),
        Ok(metadata) => Ok(PathKind::NotRegular(FileKind::of(metadata.file_type()))),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            if path.is_symlink() {
                Err(error)
            } else {
                Ok(PathKind::Missing)
            }
        }
        Err(error) => Err(error),
    }
}

/// A scan in progress.
struct Scan<'a> {
    found: ScanResult,
    /// Reports the current path, because a file system may hang at any of them.
    reading: Reading<'a>,
}

impl Scan<'_> {
    fn directory(&mut self, path: &Path, name: &str, above: &mut Vec<PathBuf>) {
        self.reading.next(name);
        let entries = match fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>) {
            Ok(entries) => entries,
            Err(error) => return self.unreadable(name, &error),
        };
        for entry in entries {
            let file_name = entry.file_name();
            if file_name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let Some(file_name) = file_name.to_str() else {
                let shown = join(name, &file_name.to_string_lossy());
                self.found.errors.push(FolderError::new(&shown, Problem::FileName));
                continue;
            };
            let name = join(name, file_name);
            let path = entry.path();
            let is_link = entry.file_type().is_ok_and(|file_type| file_type.is_symlink());
            self.found.symlinks |= is_link;
            self.reading.next(&name);
            match look(&path) {
                Ok(PathKind::File(stamp)) if FileFormat::of(&name).is_some() => {
                    self.found.files.push((name.into(), stamp));
                }
                Ok(PathKind::Directory) if is_link => self.linked_directory(&path, &name, above),
                Ok(PathKind::Directory) => self.directory(&path, &name, above),
                Ok(PathKind::NotRegular(kind)) if FileFormat::of(&name).is_some() => {
                    let problem = Problem::Refused(Refused::NotRegular { kind });
                    self.found.errors.push(FolderError::new(&name, problem));
                }
                Ok(PathKind::File(_) | PathKind::Missing | PathKind::NotRegular(_)) => {}
                Err(error) if FileFormat::of(&name).is_some() => self.unreadable(&name, &error),
                Err(error) => {
                    let problem = Problem::Unreadable { kind: error.kind() };
                    self.found.unseen.push(FolderError::new(&name, problem));
                }
            }
        }
    }

    /// Scans the directory behind a link, unless the scan is inside that directory already.
    fn linked_directory(&mut self, path: &Path, name: &str, above: &mut Vec<PathBuf>) {
        match (path.canonicalize(), path.parent().map(Path::canonicalize).transpose()) {
            (Ok(target), Ok(parent)) => {
                let leads_up = parent.is_some_and(|parent| parent.starts_with(&target));
                if !leads_up && !above.contains(&target) {
                    above.push(target);
                    self.directory(path, name, above);
                    above.pop();
                }
            }
            (Err(error), _) | (_, Err(error)) => self.unreadable(name, &error),
        }
    }

    fn unreadable(&mut self, name: &str, error: &io::Error) {
        self.found.errors.push(FolderError::new(name, Problem::Unreadable { kind: error.kind() }));
    }
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified_ns = modified.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        Self { modified_ns, len: metadata.len(), inode: inode(metadata), rights: Rights::of(metadata) }
    }
}

/// Who may read a file: after a change of it the file has to be read again, as an error may begin or end. A change of
/// the name does not change it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Rights {
    mode: u32,
    user: u32,
    group: u32,
}

impl Rights {
    #[cfg(unix)]
    fn of(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        Self { mode: metadata.mode(), user: metadata.uid(), group: metadata.gid() }
    }

    /// Not known on other systems.
    #[cfg(not(unix))]
    fn of(_: &Metadata) -> Self {
        Self::default()
    }
}

/// The inode number of the file.
#[cfg(unix)]
pub(super) fn inode(metadata: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}

/// Other systems have no inode numbers; the time and the length are enough.
#[cfg(not(unix))]
pub(super) fn inode(_: &Metadata) -> u64 {
    0
}

fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}
