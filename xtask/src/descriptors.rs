//! `cargo xtask descriptors`: the descriptor set of all Envoy types, `descriptors/envoy.binpb.gz`.
//!
//! The sources come from the crate `envoy-types`, which contains the `.proto` files of Envoy and of
//! all their imports. Cargo downloads the crate and never compiles it.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto};
use protox::{
    Compiler,
    file::{File, FileResolver, GoogleFileResolver},
};

/// Arguments of `cargo xtask descriptors`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write nothing; fail if the file is out of date
    #[arg(long)]
    check: bool,
}

/// Why the descriptor set was not made, or is out of date. The committed set is unchanged, unless
/// writing it failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DescriptorsError {
    /// A file or folder could not be read or written.
    #[error("{}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Cargo could not be started.
    #[error("cargo could not be started")]
    Cargo(#[source] io::Error),
    /// Cargo could not resolve or download the crate; standard error has the reason.
    #[error("cargo metadata of {ENVOY_TYPES} {VERSION} failed")]
    Fetch,
    /// The answer of `cargo metadata` is not JSON.
    #[error("cargo metadata gave no JSON")]
    Metadata(#[from] serde_json::Error),
    /// The answer of `cargo metadata` does not name the crate.
    #[error("cargo metadata does not name {ENVOY_TYPES} {VERSION}")]
    NoPackage,
    /// The crate has another number of Envoy files than the pinned version.
    #[error("{ENVOY_TYPES} {VERSION} holds {found} Envoy files, not {ENVOY_FILES}")]
    Count { found: usize },
    /// A source does not compile, or imports a file that no include folder has.
    #[error("{file} does not compile")]
    Compile { file: String, source: protox::Error },
    /// The committed set differs from the set of the pinned sources.
    #[error("{OUTPUT} is stale ({found} bytes, {expected} expected): run `cargo xtask descriptors`")]
    Stale { found: usize, expected: usize },
}

impl Args {
    /// Makes the set and writes it, or compares it with the committed one.
    pub(crate) fn run(&self) -> Result<(), DescriptorsError> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
        let output = root.join(OUTPUT);
        let sources = Sources::find(&fetch(root)?, &root.join(OWN))?;
        let set = sources.compile()?;
        let unpacked = set.bytes.len();
        if self.check {
            let committed = unpack(&output)?;
            if committed != set.bytes {
                return Err(DescriptorsError::Stale { found: committed.len(), expected: unpacked });
            }
            println!("{OUTPUT} is current: {} files, {unpacked} bytes unpacked", set.files);
        } else {
            let packed = pack(&set.bytes).map_err(|source| io_error(&output, source))?;
            fs::write(&output, &packed).map_err(|source| io_error(&output, source))?;
            println!("{OUTPUT}: {} files, {unpacked} bytes, {} packed", set.files, packed.len());
        }
        Ok(())
    }
}

/// The `.proto` files of the crate: import name and path.
struct Sources(BTreeMap<String, PathBuf>);

impl Sources {
    /// Finds the files of the package, and those that it lacks.
    fn find(package: &Path, own: &Path) -> Result<Self, DescriptorsError> {
        let mut sources = Self(BTreeMap::new());
        for include in INCLUDES {
            let include = package.join("proto").join(include);
            sources.walk(&include, &include)?;
        }
        sources.walk(own, own)?;
        let found = sources.0.keys().filter(|name| name.starts_with("envoy/")).count();
        if found != ENVOY_FILES {
            return Err(DescriptorsError::Count { found });
        }
        Ok(sources)
    }

    fn walk(&mut self, include: &Path, folder: &Path) -> Result<(), DescriptorsError> {
        for entry in fs::read_dir(folder).map_err(|source| io_error(folder, source))? {
            let path = entry.map_err(|source| io_error(folder, source))?.path();
            if path.is_dir() {
                self.walk(include, &path)?;
            } else if path.extension().is_some_and(|extension| extension == "proto") {
                let name = path.strip_prefix(include).expect("the walk starts at the include folder");
                let name = name.components().map(|part| part.as_os_str().to_string_lossy());
                self.0.insert(name.collect::<Vec<_>>().join("/"), path);
            }
        }
        Ok(())
    }

    fn compile(self) -> Result<DescriptorSet, DescriptorsError> {
        let names: Vec<String> = self.0.keys().cloned().collect();
        let mut compiler =
            Compiler::with_file_resolver(Qualifier { sources: self, parsed: RefCell::default() });
        compiler.include_imports(true).include_source_info(false);
        for (count, name) in names.iter().enumerate() {
            if count % 100 == 0 {
                eprintln!("compiling {count} of {} files", names.len());
            }
            compiler
                .open_file(name)
                .map_err(|source| DescriptorsError::Compile { file: name.clone(), source })?;
        }
        // Not `file_descriptor_set()`: prost-types would drop the options that are extensions
        // (validation rules, REST paths, the type a service serves).
        Ok(DescriptorSet { bytes: compiler.encode_file_descriptor_set(), files: compiler.files().len() })
    }
}

/// An encoded `google.protobuf.FileDescriptorSet`, each file after its imports.
struct DescriptorSet {
    bytes: Vec<u8>,
    files: usize,
}

/// Opens sources and makes the type names in them absolute.
///
/// By the rules of the language a relative name sees the file itself and its direct imports. protox
/// looks in all files of its pool instead, and in `envoy.extensions.clusters.*` the name
/// `common.dynamic_forward_proxy.v3` then stops at the package `envoy.extensions.clusters.common`
/// of a file that was never imported.
struct Qualifier {
    sources: Sources,
    parsed: RefCell<BTreeMap<String, FileDescriptorProto>>,
}

impl Qualifier {
    fn parse(&self, name: &str) -> Result<FileDescriptorProto, protox::Error> {
        if let Some(file) = self.parsed.borrow().get(name) {
            return Ok(file.clone());
        }
        let file = match self.sources.0.get(name) {
            Some(path) => File::open(name, path),
            None => GoogleFileResolver::new().open_file(name),
        }?;
        let file = FileDescriptorProto::from(file);
        self.parsed.borrow_mut().insert(name.to_owned(), file.clone());
        Ok(file)
    }

    /// Adds the types that an importer of `file` sees: its own and those of its public imports.
    fn export(&self, file: &FileDescriptorProto, types: &mut BTreeSet<String>) -> Result<(), protox::Error> {
        declare(&format!(".{}", file.package()), &file.message_type, &file.enum_type, types);
        for &index in &file.public_dependency {
            let index = usize::try_from(index).expect("the parser gives indices of imports");
            self.export(&self.parse(&file.dependency[index])?, types)?;
        }
        Ok(())
    }
}

impl FileResolver for Qualifier {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        let mut file = self.parse(name)?;
        let mut types = BTreeSet::new();
        self.export(&file, &mut types)?;
        for import in &file.dependency {
            self.export(&self.parse(import)?, &mut types)?;
        }
        let scope = format!(".{}", file.package());
        file.message_type.iter_mut().for_each(|message| qualify_message(&scope, message, &types));
        file.extension.iter_mut().for_each(|field| qualify_field(&scope, field, &types));
        for method in file.service.iter_mut().flat_map(|service| &mut service.method) {
            qualify(&scope, &mut method.input_type, &types);
            qualify(&scope, &mut method.output_type, &types);
        }
        Ok(file.into())
    }
}

fn declare(
    scope: &str,
    messages: &[DescriptorProto],
    enums: &[EnumDescriptorProto],
    types: &mut BTreeSet<String>,
) {
    types.extend(enums.iter().map(|declared| format!("{scope}.{}", declared.name())));
    for message in messages {
        let name = format!("{scope}.{}", message.name());
        declare(&name, &message.nested_type, &message.enum_type, types);
        types.insert(name);
    }
}

fn qualify_message(scope: &str, message: &mut DescriptorProto, types: &BTreeSet<String>) {
    let scope = format!("{scope}.{}", message.name());
    message.field.iter_mut().for_each(|field| qualify_field(&scope, field, types));
    message.extension.iter_mut().for_each(|field| qualify_field(&scope, field, types));
    message.nested_type.iter_mut().for_each(|nested| qualify_message(&scope, nested, types));
}

fn qualify_field(scope: &str, field: &mut FieldDescriptorProto, types: &BTreeSet<String>) {
    qualify(scope, &mut field.type_name, types);
    qualify(scope, &mut field.extendee, types);
}

/// Replaces a relative name by the innermost type it can mean. A name that fits nothing stays, and
/// protox reports it.
fn qualify(scope: &str, name: &mut Option<String>, types: &BTreeSet<String>) {
    let Some(name) = name else { return };
    let mut scope = Some(scope);
    while let Some(outer) = scope {
        let candidate = format!("{outer}.{name}");
        if types.contains(&candidate) {
            *name = candidate;
            return;
        }
        scope = outer.rfind('.').map(|end| &outer[..end]);
    }
}

/// Downloads the crate with cargo, and returns its folder.
fn fetch(root: &Path) -> Result<PathBuf, DescriptorsError> {
    let folder = root.join("target/xtask-descriptors");
    let library = folder.join("src/lib.rs");
    let manifest = folder.join("Cargo.toml");
    fs::create_dir_all(folder.join("src")).map_err(|source| io_error(&folder, source))?;
    fs::write(&library, "").map_err(|source| io_error(&library, source))?;
    let text = format!(
        "[package]\nname = \"sources\"\nedition = \"2024\"\n\n[dependencies]\n\
         {ENVOY_TYPES} = {{ version = \"={VERSION}\", default-features = false }}\n\n[workspace]\n"
    );
    fs::write(&manifest, text).map_err(|source| io_error(&manifest, source))?;
    eprintln!("fetching {ENVOY_TYPES} {VERSION}");
    let answer = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--quiet", "--format-version", "1", "--manifest-path"])
        .arg(&manifest)
        .stderr(Stdio::inherit())
        .output()
        .map_err(DescriptorsError::Cargo)?;
    if !answer.status.success() {
        return Err(DescriptorsError::Fetch);
    }
    let metadata: serde_json::Value = serde_json::from_slice(&answer.stdout)?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages
        .filter(|package| package["name"] == ENVOY_TYPES && package["version"] == VERSION)
        .find_map(|package| Path::new(package["manifest_path"].as_str()?).parent())
        .map(Path::to_owned)
        .ok_or(DescriptorsError::NoPackage)
}

fn pack(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}

fn unpack(path: &Path) -> Result<Vec<u8>, DescriptorsError> {
    let packed = fs::read(path).map_err(|source| io_error(path, source))?;
    let mut bytes = Vec::new();
    GzDecoder::new(packed.as_slice()).read_to_end(&mut bytes).map_err(|source| io_error(path, source))?;
    Ok(bytes)
}

fn io_error(path: &Path, source: io::Error) -> DescriptorsError {
    DescriptorsError::Io { path: path.to_owned(), source }
}

const ENVOY_TYPES: &str = "envoy-types";

/// The pinned version; a new one also needs [`ENVOY_FILES`].
const VERSION: &str = "0.7.7";

/// The number of files below `envoy/`, to detect a new or missing include folder.
const ENVOY_FILES: usize = 478;

/// Include folders below `proto/` of the crate. CEL has its own depth: `cel-spec` alone would not
/// resolve the import of `cel/expr/checked.proto`.
const INCLUDES: [&str; 8] = [
    "cel-spec/proto",
    "client_model",
    "data-plane-api",
    "googleapis",
    "opentelemetry-proto",
    "protoc-gen-validate",
    "ratelimit/api",
    "xds",
];

/// Declarations of messages of cncf/xds that Envoy accepts and the crate lacks.
const OWN: &str = "xtask/proto";

const OUTPUT: &str = "descriptors/envoy.binpb.gz";
