//! The command line: one module per subcommand.

use std::error::Error;
use std::fmt;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Parser, Subcommand, ValueEnum};
use xds::folder::{
    Descriptors, DescriptorsError, FILE_LIMIT_BYTES, Folder, FolderError, FolderErrors, Isolation, Problem,
};
use xds::{printable, printable_lines, type_name};
use xds_core::PAYLOAD_LIMIT_BYTES;

use config::{Invocation, InvocationError};

mod admin;
mod check;
mod completions;
mod config;
mod get;
mod health;
mod listen;
mod load;
mod log_fields;
mod log_filter;
mod man_pages;
mod mapping;
mod metrics;
mod policy;
mod process;
mod progress;
mod proxy;
mod query;
mod resolve;
mod rollout;
mod rollout_state;
mod running;
mod schema;
mod serve;
mod shown;
mod store;
mod tips;
mod tls;
mod traces;
mod troubles;
mod warnings;
mod watch;
mod yaml;

/// A page of a store that is damaged makes the library of its file panic. That is an error with the same text.
fn leave_out_guarded_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !xds_store::engine::is_guarded() {
            print(info);
        }
    }));
}

/// Parses the command line and runs the command.
pub(crate) fn run() -> ExitCode {
    process::note_start();
    leave_out_guarded_panics();
    let cli = match config::command_line(std::env::args_os().collect()) {
        Ok(Invocation::Run(cli)) => cli,
        Ok(Invocation::Print(options)) => {
            _ = write!(io::stdout(), "{options}");
            return ExitCode::SUCCESS;
        }
        Err(InvocationError::CommandLine(error)) => error.exit(),
        Err(InvocationError::File(errors)) => return failed(&Failure::Config(errors)),
    };
    let done = match cli.command {
        Command::Serve(serve) => serve.run().map(|()| ExitCode::SUCCESS),
        Command::Proxy(proxy) => proxy.run().map(|()| ExitCode::SUCCESS),
        Command::Check(check) => check.run(),
        Command::Resolve(resolve) => resolve.run(),
        Command::Schema(schema) => schema.run().map(|()| ExitCode::SUCCESS),
        Command::Get(get) => get.run(),
        Command::Watch(watch) => watch.run(),
        Command::Rollout(rollout) => rollout.run(),
        Command::Apply(apply) => apply.run(),
        Command::Diff(diff) => diff.run(),
        Command::History(history) => history.run(),
        Command::Rollback(rollback) => rollback.run(),
        Command::Put(put) => put.run(),
        Command::Store(store) => store.run(),
        Command::List(list) => list.run(),
        Command::Delete(delete) => delete.run(),
        Command::Quarantine(quarantine) => quarantine.run(),
        Command::Refs(refs) => refs.run(),
        Command::Completions(completions) => {
            completions.run();
            Ok(ExitCode::SUCCESS)
        }
        Command::ManPages(pages) => pages.run().map(|()| ExitCode::SUCCESS),
    };
    match done {
        Ok(code) => code,
        Err(failure) => failed(&failure),
    }
}

fn failed(failure: &Failure) -> ExitCode {
    eprintln!("{}", printable_lines(&failure.to_string()));
    let mut cause = failure.source();
    while let Some(error) = cause {
        eprintln!("  because: {}", printable(&error.to_string()));
        cause = error.source();
    }
    failure.exit_code()
}

/// An xDS control plane: serves a folder of resources to Envoy and gRPC, and shows the resources of
/// any xDS server.
#[derive(Debug, Parser)]
#[command(name = "xds", version, arg_required_else_help = true, after_help = EXAMPLES, after_long_help = FOLDER)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Serve>),
    Proxy(Box<proxy::ProxyCommand>),
    Check(check::Check),
    Resolve(resolve::Resolve),
    Schema(schema::Schema),
    Get(Box<get::Get>),
    Watch(Box<watch::Watch>),
    Rollout(rollout::RolloutCommand),
    Apply(Box<store::apply::Apply>),
    Diff(Box<store::diff::Diff>),
    List(Box<store::list::List>),
    History(Box<store::history::History>),
    Rollback(Box<store::rollback::Rollback>),
    Put(Box<store::put::Put>),
    Delete(Box<store::delete::Delete>),
    Quarantine(Box<store::quarantine::Quarantine>),
    Refs(Box<store::refs::Refs>),
    Store(Box<store::StoreCommand>),
    Completions(completions::Completions),
    ManPages(man_pages::ManPages),
}

/// The folder to read, and how to read it.
#[derive(Debug, Args)]
struct FolderOptions {
    /// The folder with the resources: *.yaml, *.yml, *.json and *.pb, at any depth
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Accept a folder without any resource
    ///
    /// Without this, such a folder is refused, also after a change that leaves no resource: a
    /// volume that is not mounted must not remove the configuration of all clients.
    #[arg(long)]
    allow_empty: bool,
    /// Keep the last good content of the folder, or of each file, when a file has an error or
    /// conflicts with another
    ///
    /// With `file`, all other files are served. If new content conflicts with served content, the
    /// new content is in error; of two new files, the one with the later path is. At startup all
    /// files must be valid: the resources of an invalid file are unknown, and clients must not be
    /// answered that they do not exist.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = IsolationMode::Folder)]
    isolate: IsolationMode,
    /// The largest file, in bytes; a larger one is an error of that file
    ///
    /// Only regular files are read. A FIFO or a device is never read, not through a link either.
    #[arg(long, value_name = "BYTES", default_value_t = FILE_LIMIT_BYTES, value_parser = serve::count)]
    file_limit: usize,
    /// The largest resource, in bytes of its encoded message
    ///
    /// A resource is sent in one message. gRPC clients refuse messages of more than 4 MiB unless
    /// they are configured otherwise (in Go: MaxCallRecvMsgSize), so the default is below that.
    /// Envoy accepts larger ones: 200,000 endpoints are 5.7 MB. Raise the limit if all clients of
    /// the folder accept larger messages.
    #[arg(long, value_name = "BYTES", default_value_t = PAYLOAD_LIMIT_BYTES, value_parser = resource_limit)]
    resource_limit: usize,
}

/// The types that files and payloads may have.
#[derive(Debug, Args)]
struct DescriptorOptions {
    /// Types of your own: a FileDescriptorSet, as `protoc --include_imports
    /// --descriptor_set_out=FILE` writes it
    #[arg(long, value_name = "FILE")]
    descriptors: Vec<PathBuf>,
}

impl DescriptorOptions {
    fn read(&self) -> Result<Descriptors, Failure> {
        descriptors(&self.descriptors)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum IsolationMode {
    /// The folder is one transaction
    Folder,
    /// Each file is one transaction, unless it conflicts with another
    File,
}

impl From<IsolationMode> for Isolation {
    fn from(mode: IsolationMode) -> Self {
        match mode {
            IsolationMode::Folder => Self::Folder,
            IsolationMode::File => Self::File,
        }
    }
}

impl FolderOptions {
    fn open(&self, descriptors: impl Into<Arc<Descriptors>>) -> Folder {
        let folder = Folder::new(&self.folder)
            .with_descriptors(descriptors)
            .with_isolation(self.isolate.into())
            .with_file_limit(self.file_limit)
            .with_resource_limit(self.resource_limit);
        if self.allow_empty { folder.allow_empty() } else { folder }
    }
}

fn resource_limit(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok().filter(|bytes| (1..=RESOURCE_LIMIT_BYTES).contains(bytes));
    bytes.ok_or_else(|| format!("write a whole number from 1 to {RESOURCE_LIMIT_BYTES}, such as 16000000"))
}

/// The descriptors of all Envoy types, of the records of a store, and of the types in the files.
fn descriptors(files: &[PathBuf]) -> Result<Descriptors, Failure> {
    let mut descriptors = Descriptors::envoy().with_store_types();
    for file in files {
        descriptors.add_file(file).map_err(Failure::Descriptors)?;
    }
    Ok(descriptors)
}

/// Why a command ended early.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{}", error_lines(.0))]
    Config(config::ConfigErrors),
    #[error("error: {0}")]
    Descriptors(DescriptorsError),
    #[error("{}", folder_failure(folder, errors))]
    Folder { folder: PathBuf, errors: FolderErrors },
    #[error("error: cannot listen on {address}: {error}")]
    Listen { address: SocketAddr, error: io::Error },
    #[error("error: {0}")]
    Type(type_name::TypeError),
    #[error("error: {0}")]
    Option(serve::OptionError),
    #[error("{}", error_lines(.0))]
    Security(listen::ListenError),
    #[error("error: {0}")]
    LogFilter(log_filter::LogFilterError),
    #[error("error: {0}")]
    Query(query::QueryError),
    #[error("error: {0}")]
    Proxy(proxy::ProxyError),
    #[error("{}", store_failure(.0))]
    Store(store::StoreError),
    #[error("error: {0}")]
    Admin(admin::AdminError),
    #[error("error: {0}")]
    Rollout(rollout_state::RolloutStateError),
    #[error("error: {0}")]
    Place(store::place::PlaceError),
    #[error("error: {0}")]
    Backup(store::BackupFileError),
    #[error("error: {0}")]
    Seal(serve::SealError),
    #[error("{}", error_lines(.0))]
    Schemas(serve::SchemasError),
    #[error("error: {0}")]
    Migration(serve::MigrationError),
    #[error("error: {0}")]
    Tokens(serve::TokenError),
    #[error("error: {0}")]
    Peers(serve::PeersError),
    #[error("error: {0}")]
    Join(store::JoinError),
    #[error("error: {0}")]
    Serve(#[from] xds::ServeError),
    #[cfg(feature = "kubernetes")]
    #[error("error: {0}")]
    Kubernetes(xds::kubernetes::KubernetesError),
    #[cfg(feature = "otel")]
    #[error("error: --otlp-endpoint {endpoint}: {error}; write a URL such as http://127.0.0.1:4317")]
    Traces { endpoint: String, error: opentelemetry_otlp::ExporterBuildError },
    #[error("error: {folder}: {error}")]
    ManPages { folder: PathBuf, error: io::Error },
    #[error("error: system error: {0}")]
    System(io::Error),
}

impl Failure {
    /// 2: invalid folder or option. 1: system error (port in use, unreadable file).
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Descriptors(DescriptorsError::Unreadable { .. }) => ExitCode::from(1),
            Self::Folder { errors, .. } if errors.are_environment() => ExitCode::from(1),
            Self::Descriptors(_)
            | Self::Folder { .. }
            | Self::Type(_)
            | Self::Option(_)
            | Self::LogFilter(_) => ExitCode::from(2),
            Self::Config(error) => ExitCode::from(error.exit_code()),
            Self::Security(error) => ExitCode::from(error.exit_code()),
            Self::Query(error) => ExitCode::from(error.exit_code()),
            Self::Proxy(error) => ExitCode::from(error.exit_code()),
            Self::Store(error) => ExitCode::from(error.exit_code()),
            Self::Admin(error) => ExitCode::from(error.exit_code()),
            Self::Place(error) => ExitCode::from(error.exit_code()),
            Self::Backup(error) => ExitCode::from(error.exit_code()),
            Self::Seal(error) => ExitCode::from(error.exit_code()),
            Self::Schemas(error) => ExitCode::from(error.exit_code()),
            Self::Migration(error) => ExitCode::from(error.exit_code()),
            Self::Tokens(error) => ExitCode::from(error.exit_code()),
            Self::Peers(_) | Self::Join(store::JoinError::Etcd | store::JoinError::Region) => {
                ExitCode::from(2)
            }
            Self::Join(_) => ExitCode::from(1),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(_) => ExitCode::from(1),
            #[cfg(feature = "otel")]
            Self::Traces { .. } => ExitCode::from(2),
            Self::Listen { .. }
            | Self::ManPages { .. }
            | Self::Rollout(_)
            | Self::Serve(_)
            | Self::System(_) => ExitCode::from(1),
        }
    }
}

/// One line for each error of a file.
fn error_lines(error: &impl fmt::Display) -> String {
    let lines: Vec<_> = error.to_string().lines().map(|line| format!("error: {line}")).collect();
    lines.join("\n")
}

/// One line for each violation. Indented lines continue the one before.
fn store_failure(error: &store::StoreError) -> String {
    let error = error.to_string();
    let line = |line: &str| if line.starts_with(' ') { line.to_owned() } else { format!("error: {line}") };
    error.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn folder_failure(folder: &Path, errors: &FolderErrors) -> String {
    let mut text = String::new();
    for error in errors {
        text.push_str(&error_line(folder, error));
        text.push('\n');
    }
    let is_warning = |error: &FolderError| matches!(error.problem, Problem::Warning(_));
    let count = if errors.iter().all(is_warning) {
        counted(errors.len(), "warning") + warnings::STRICT
    } else {
        counted(errors.len(), "error")
    };
    text.push_str(&format!("{}: {count}", folder.display()));
    text
}

fn error_line(folder: &Path, error: &FolderError) -> String {
    if let Problem::Warning(warning) = &error.problem {
        return warnings::warning_text(warning);
    }
    let place = if error.file.is_empty() { format!("{}: ", folder.display()) } else { String::new() };
    format!("error: {place}{error}")
}

/// Writes lines or JSON to standard output. Errors are ignored: a reader such as `head` may have closed
/// the pipe.
fn say(text: impl fmt::Display) {
    _ = writeln!(io::stdout(), "{}", printable_lines(&text.to_string()));
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// `xds proxy`, `xds get` and `xds watch` accept messages of up to 1 GiB. The difference is for the
/// other fields of a response.
const RESOURCE_LIMIT_BYTES: usize = 1_000_000_000;

/// The exit code if the requested resource does not exist.
const NOTHING: u8 = 3;

/// The exit code if a server that was asked gives no answer.
const SILENT: u8 = 5;

const EXAMPLES: &str = "\
Examples:
  xds serve examples/quickstart                serve a folder on 127.0.0.1:18000
  xds serve config --listen 0.0.0.0:18000 --listen-cert c.pem --listen-key k.pem    for other machines
  xds proxy --upstream 10.0.0.1:18000          share the resources of that server with many clients
  xds check config                             find all errors, without serving
  xds resolve config RDS web env=prod          which variant such clients get, and why
  xds get --server 127.0.0.1:18000 CDS '*'     the resources of a server, once
  xds watch --server 127.0.0.1:18000 EDS web   and each change
  xds schema > xds.schema.json                 for editors: completion and mistakes as you type
  xds completions bash > /etc/bash_completion.d/xds

`xds --help` describes the files of a folder.";

const FOLDER: &str = "\
What a folder may hold:
  Files *.yaml, *.yml, *.json (proto3 JSON; snake_case or camelCase) and *.pb, at any depth. Names that begin with
  a dot are skipped. Each document is one of
    - Envoy's own file form:    resources:
                                - \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster
                                  name: web
    - one resource:             \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster
                                name: web
    - one wrapper:              \"@type\": type.googleapis.com/envoy.service.discovery.v3.Resource
                                name: web
                                resource: { \"@type\": .. }
      which may also have     ttl: 30s               # clients drop it unless they get it again
                              aliases: [www]         # other names for delta clients
                              cache_control: { do_not_cache: true }
                              metadata: { .. }
  `when:` beside \"@type\" says which clients the resource is for, so one name can have several
  variants. Each client gets the one that its parameters select (see `xds serve --help`); variants
  that overlap are refused.
    - \"@type\": type.googleapis.com/envoy.config.route.v3.RouteConfiguration
      name: web
      when: env=prod,!version      # also: env in (a,b), env!=prod, key (present), ||, parentheses
  YAML needs quotes if it begins with an exclamation mark: when: '!version'

  A YAML file may hold several documents, separated by `---`. A .pb file is a binary DiscoveryResponse.

  domains.yaml at the top lists the values that clients have, for `xds check` (see its --help).

  The folder is one transaction: if a file has an error, the last good state of the folder stays in use (with
  `xds serve --isolate file`, that of the file). The server picks up changes: writes in place, renames, and the
  ..data link of Kubernetes volumes.

Examples:
  xds serve examples/quickstart                serve a folder on 127.0.0.1:18000
  xds serve config --listen 0.0.0.0:18000 --listen-cert c.pem --listen-key k.pem    for other machines
  xds proxy --upstream 10.0.0.1:18000          share the resources of that server with many clients
  xds check config                             find all errors, without serving
  xds resolve config RDS web env=prod          which variant such clients get, and why
  xds get --server 127.0.0.1:18000 CDS '*'     the resources of a server, once
  xds watch --server 127.0.0.1:18000 EDS web   and each change
  xds schema > xds.schema.json                 for editors: completion and mistakes as you type
  xds completions bash > /etc/bash_completion.d/xds

Exit codes:
  0  done    1  system or server error    2  invalid input: arguments, files
  3  the resource does not exist (`xds resolve`, `xds get`)";
