//! Where a store is: a folder, an etcd, or the memory of the process.

use std::fmt;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tokio::runtime::Handle;
use xds_store::engine::{
    AddressError, Batch, Engine, EngineError, EtcdAddress, MemoryEngine, OpenError, RedbEngine,
};
use xds_store::store::{Identity, LoadError, Store};
use xds_store_server::StartError;

use super::etcd::EtcdOptions;

/// The value of `--store`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) enum Place {
    /// Nothing survives the process.
    Memory,
    Folder(PathBuf),
    /// Several servers can use it.
    Etcd(Box<EtcdAddress>),
}

/// Why a store cannot be created, opened or loaded.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum PlaceError {
    /// ST2.
    #[error(
        "there is no store in {place}: create one with `xds store init {place}`. If it has one, look whether its \
         volume is mounted"
    )]
    NoStore { place: Place },
    /// ST1.
    #[error(
        "{place} is not empty: a store is created in a new or empty folder, or where etcd has no key with the prefix"
    )]
    NotEmpty { place: Place },
    /// ST3.
    #[error("another process has the store in {place} open; one process at a time can use a store")]
    Locked { place: Place },
    /// ST4.
    #[error(
        "the store in {place} has format {found}; this version reads formats up to {known}: use the version that \
         wrote it, or a newer one"
    )]
    Newer { place: Place, found: u32, known: u32 },
    /// SV13.
    #[error(
        "the store in {place} is in phase F{phase} of plan {number}, {name}, which this server does not have as it \
         began: add this plan to the file of --schemas, with its names, types and major version"
    )]
    LacksPlan { place: Place, number: u32, name: String, phase: u32 },
    /// ST47.
    #[error(
        "the store in {place} is damaged, and nothing of it is served: {cause}. {}`xds store restore` makes a store \
         from a backup", check_hint(.place)
    )]
    Damaged { place: Place, cause: String },
    #[error(
        "{place} is not a folder: this command reads a store in a folder. For one in etcd, `xds store backup FILE \
         --server HOST:PORT` writes a backup, and `xds store check FILE` checks it"
    )]
    NotFolder { place: Place },
    #[error("{}: {cause}", path.display())]
    File { path: PathBuf, cause: String },
    #[error("the options do not suit {place}: {cause}")]
    Access { place: Place, cause: String },
    #[error("the store in {place} cannot be read: {cause}")]
    Unreadable { place: Place, cause: String },
    #[error("the store in {place} cannot be created: {cause}")]
    Uncreatable { place: Place, cause: String },
    /// ST18.
    #[error("the store in {place} cannot be served, which is a defect of this version: {cause}")]
    Unservable { place: Place, cause: String },
}

impl Place {
    /// The engine with the store, without reading the store. The engine on etcd needs the runtime.
    pub(in crate::cli) fn open(
        &self,
        identity: &Identity,
        etcd: &EtcdOptions,
        runtime: &Handle,
    ) -> Result<Box<dyn Engine>, PlaceError> {
        etcd.check(self)?;
        let place = || self.clone();
        match self {
            Self::Memory => {
                let mut engine = MemoryEngine::default();
                let created = engine.commit(&Store::init(identity));
                created.map_err(|error| PlaceError::Uncreatable { place: place(), cause: causes(&error) })?;
                Ok(Box::new(engine))
            }
            Self::Folder(folder) => Ok(Box::new(self.open_file(folder, RedbEngine::open)?)),
            Self::Etcd(address) => Ok(Box::new(etcd.engine(address, runtime.clone())?)),
        }
    }

    /// The engine with the store in a folder, for readers alone: nothing is changed.
    pub(in crate::cli) fn read(folder: &Path) -> Result<RedbEngine, PlaceError> {
        Self::open_folder(folder, RedbEngine::open_unchanged)
    }

    /// The same for a command that writes.
    pub(in crate::cli) fn write(folder: &Path) -> Result<RedbEngine, PlaceError> {
        Self::open_folder(folder, RedbEngine::open)
    }

    fn open_folder(
        folder: &Path,
        open: impl FnOnce(&Path) -> Result<RedbEngine, OpenError>,
    ) -> Result<RedbEngine, PlaceError> {
        if is_in_etcd(folder)
            && let Some(Ok(place)) = folder.to_str().map(str::parse)
        {
            return Err(PlaceError::NotFolder { place });
        }
        Self::Folder(folder.to_owned()).open_file(folder, open)
    }

    fn open_file(
        &self,
        folder: &Path,
        open: impl FnOnce(&Path) -> Result<RedbEngine, OpenError>,
    ) -> Result<RedbEngine, PlaceError> {
        let place = || self.clone();
        let file = folder.join(FILE);
        // ST2: opening would create the file.
        match fs::metadata(&file) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(PlaceError::NoStore { place: place() });
            }
            Err(error) => {
                return Err(PlaceError::Unreadable { place: place(), cause: causes(&error) });
            }
        }
        open(&file).map_err(|error| match error {
            OpenError::Locked => PlaceError::Locked { place: place() },
            OpenError::Damaged(_) => PlaceError::Damaged { place: place(), cause: causes(&error) },
            error => PlaceError::Unreadable { place: place(), cause: causes(&error) },
        })
    }

    /// The file of the store; `None` if it has none.
    pub(in crate::cli) fn file(&self) -> Option<PathBuf> {
        match self {
            Self::Folder(folder) => Some(folder.join(FILE)),
            _ => None,
        }
    }

    /// The error of a store of this place that does not start.
    pub(in crate::cli) fn not_started(&self, error: StartError) -> PlaceError {
        let place = self.clone();
        match error {
            StartError::Load(LoadError::NoStore) => PlaceError::NoStore { place },
            StartError::Load(LoadError::Newer { found, known }) => PlaceError::Newer { place, found, known },
            StartError::Load(LoadError::LacksPlan { number, name, phase }) => {
                PlaceError::LacksPlan { place, number, name, phase }
            }
            StartError::Load(
                ref error @ (LoadError::Damaged(_) | LoadError::Engine(EngineError::Corrupt { .. })),
            ) => PlaceError::Damaged { place, cause: causes(error) },
            StartError::Cache(source) => PlaceError::Unservable { place, cause: causes(&source) },
            error => PlaceError::Unreadable { place, cause: causes(&error) },
        }
    }
}

impl Place {
    /// The error of a store of this place that cannot be loaded.
    pub(in crate::cli) fn not_loaded(&self, error: LoadError) -> PlaceError {
        self.not_started(StartError::Load(error))
    }
}

/// Creates a store with this first batch (ST1).
pub(in crate::cli) fn init(place: &Place, first: &Batch, etcd: &EtcdOptions) -> Result<(), PlaceError> {
    create(place, etcd, |engine| match engine.commit(first) {
        Ok(_) => Ok(()),
        Err(EngineError::Conflict) => Err(PlaceError::NotEmpty { place: place.clone() }),
        Err(error) => Err(PlaceError::Uncreatable { place: place.clone(), cause: causes(&error) }),
    })
}

/// Creates a store where there is nothing: `write` writes it into an empty engine. If `write` fails,
/// there is no store.
pub(in crate::cli) fn create<T, E: From<PlaceError>>(
    place: &Place,
    etcd: &EtcdOptions,
    write: impl FnOnce(&mut dyn Engine) -> Result<T, E>,
) -> Result<T, E> {
    etcd.check(place)?;
    match place {
        Place::Folder(folder) => create_in_folder(folder, write),
        Place::Etcd(address) => create_in_etcd(address, etcd, write),
        Place::Memory => {
            let cause = "nothing is left of it when the command ends".to_owned();
            Err(PlaceError::Uncreatable { place: Place::Memory, cause }.into())
        }
    }
}

fn create_in_etcd<T, E: From<PlaceError>>(
    address: &EtcdAddress,
    etcd: &EtcdOptions,
    write: impl FnOnce(&mut dyn Engine) -> Result<T, E>,
) -> Result<T, E> {
    let place = || Place::Etcd(Box::new(address.clone()));
    let uncreatable =
        |cause: &dyn std::error::Error| PlaceError::Uncreatable { place: place(), cause: causes(cause) };
    let runtime = tokio::runtime::Runtime::new().map_err(|error| uncreatable(&error))?;
    let mut engine = etcd.engine(address, runtime.handle().clone())?;
    let mut is_empty = true;
    let view = engine.view().map_err(|error| uncreatable(&error))?;
    let found = view.range(b"\0", &[0xff; 8], &mut |_, _| {
        is_empty = false;
        ControlFlow::Break(())
    });
    found.map_err(|error| uncreatable(&error))?;
    if is_empty { write(&mut engine) } else { Err(PlaceError::NotEmpty { place: place() }.into()) }
}

fn create_in_folder<T, E: From<PlaceError>>(
    folder: &Path,
    write: impl FnOnce(&mut dyn Engine) -> Result<T, E>,
) -> Result<T, E> {
    let place = || Place::Folder(folder.to_owned());
    let uncreatable = |error: io::Error| PlaceError::Uncreatable { place: place(), cause: causes(&error) };
    create_folder(folder).map_err(uncreatable)?;
    let (unfinished, file) = (folder.join(UNFINISHED), folder.join(FILE));
    for entry in fs::read_dir(folder).map_err(uncreatable)? {
        // The rest of an `init` that was interrupted is no store.
        if entry.map_err(uncreatable)?.file_name() != UNFINISHED {
            return Err(PlaceError::NotEmpty { place: place() }.into());
        }
    }
    create_file(&unfinished).map_err(uncreatable)?;
    let mut engine = RedbEngine::open(&unfinished)
        .map_err(|error| PlaceError::Uncreatable { place: place(), cause: causes(&error) })?;
    let written = write(&mut engine);
    drop(engine);
    let written = written.inspect_err(|_| {
        // Its content is of no use, such as that of a backup which is cut off.
        _ = fs::remove_file(&unfinished);
    })?;
    // The store is there whole, or not at all.
    fs::rename(&unfinished, &file).map_err(uncreatable)?;
    fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(uncreatable)?;
    Ok(written)
}

/// The store has secrets, so only its user can read it.
fn create_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

fn create_file(file: &Path) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(file).map(drop)
}

impl PlaceError {
    /// As in `Failure::exit_code`.
    pub(in crate::cli) fn exit_code(&self) -> u8 {
        match self {
            Self::NoStore { .. }
            | Self::NotEmpty { .. }
            | Self::Newer { .. }
            | Self::LacksPlan { .. }
            | Self::NotFolder { .. }
            | Self::File { .. }
            | Self::Access { .. } => 2,
            Self::Locked { .. }
            | Self::Damaged { .. }
            | Self::Unreadable { .. }
            | Self::Uncreatable { .. }
            | Self::Unservable { .. } => 1,
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("etcd" | "etcds", rest)) if rest.starts_with("//") => text
                .parse()
                .map(|address| Self::Etcd(Box::new(address)))
                .map_err(|error: AddressError| error.to_string()),
            Some((scheme, rest)) if rest.starts_with("//") => Err(format!(
                "there is no engine {scheme}://; write a folder, etcd://HOST:PORT/PREFIX or memory:"
            )),
            _ if text.is_empty() => Err("write a folder, etcd://HOST:PORT/PREFIX or memory:".to_owned()),
            _ => Ok(Self::Folder(text.into())),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Folder(folder) => folder.display().fmt(f),
            Self::Etcd(address) => address.fmt(f),
        }
    }
}

/// Whether what should be a folder is the address of an etcd.
pub(in crate::cli) fn is_in_etcd(folder: &Path) -> bool {
    folder.to_str().is_some_and(|text| text.starts_with("etcd://") || text.starts_with("etcds://"))
}

/// `xds store check` reads a folder only.
fn check_hint(place: &Place) -> String {
    match place {
        Place::Folder(_) => format!("`xds store check {place}` lists the damage, "),
        Place::Memory | Place::Etcd(_) => String::new(),
    }
}

/// An error with its causes.
pub(in crate::cli) fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The file of a store in its folder.
const FILE: &str = "store.redb";
/// The file while `init` writes it.
const UNFINISHED: &str = "store.redb.new";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_folder_an_etcd_or_the_memory() {
        assert_eq!("memory:".parse(), Ok(Place::Memory));
        assert_eq!("a:b".parse(), Ok(Place::Folder("a:b".into())));
        assert!("nats://x".parse::<Place>().unwrap_err().contains("no engine nats://"));
        assert!("".parse::<Place>().is_err());
        assert_eq!("etcd://a:1/x".parse::<Place>().unwrap().to_string(), "etcd://a:1/x");
        assert!("etcd://a:1".parse::<Place>().unwrap_err().contains("prefix"));
    }
}
