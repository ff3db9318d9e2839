//! The parts that `xds get` and `xds watch` share: subscribing to a server as its clients do, and
//! showing its resources.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgAction, Args};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tracing_subscriber::Layer as _;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use xds::client::bootstrap::{Authority, Bootstrap, BootstrapError, ChannelCredentials, Server};
use xds::client::{
    Client, Code, Event, InspectError, Protocol, Raw, Resource, ResourceFailure, SetEvent, StartError,
    WatchError,
};
use xds::{Parameters, TypeUrl, printable};
use xds_core::XdstpName;

use super::log_fields::PrintableFields;
use super::log_filter::LogFilter;
use super::progress::{self, Spinner};
use super::{Failure, NOTHING, SILENT, counted, descriptors, type_name};
use inspect::Inspection;
use port::speaks_tls;
use servers::{ServerChange, ServerStates, StateListener};
use upstream::Upstream;
use writer::{EventWriter, OutputFormat, ShownEvent};

mod inspect;
mod port;
mod servers;
mod upstream;
mod writer;

#[derive(Debug, Args)]
pub(super) struct Query {
    /// LDS, RDS, SRDS, VHDS, CDS, EDS, LEDS, SDS, RTDS, ECDS, a message (Cluster, acme.Thing) or a
    /// whole type URL
    #[arg(value_name = "TYPE")]
    type_name: Option<String>,
    /// Names (also xdstp names and globs), and dynamic parameters; without a name, or with `*`, all
    /// resources
    ///
    /// An argument with an equals sign is a parameter, unless it starts with `xdstp:`. Parameters
    /// are sent in locators, so they need a server that speaks TP2; other servers select by the
    /// node (see --metadata).
    #[arg(value_name = "NAME|KEY=VALUE")]
    arguments: Vec<String>,
    /// A name that contains an equals sign. May be repeated
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    upstream: Upstream,
    /// How long to wait, in all, for the server and for its answers; `xds watch` without --once goes
    /// on after that
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    timeout: u32,
    /// If the server is down, try again until --timeout is over
    ///
    /// Without this, a server that is down is an error within 2 s. `xds watch` without --once always
    /// tries again.
    #[arg(long)]
    wait: bool,
    /// Format of the output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Text)]
    format: OutputFormat,
    /// Types of your own: a FileDescriptorSet, as
    /// `protoc --include_imports --descriptor_set_out=FILE` writes it
    ///
    /// A message of an unknown type is shown as base64 under `@value`.
    #[arg(long, value_name = "FILE")]
    descriptors: Vec<PathBuf>,
    /// Log the actions of the client to standard error; RUST_LOG sets the level
    #[arg(short, long, action = ArgAction::SetTrue)]
    verbose: bool,
}

/// How long a query runs, and when it writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Runs until interrupted; writes each event at once.
    Watch,
    /// Runs until each name is known; writes each event at once.
    WatchOnce,
    /// Runs until each name is known; then writes the resources in the order of the arguments.
    Get,
}

/// How a changed resource is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Differences {
    /// The whole resource.
    Whole,
    /// The lines that differ from its last version.
    Lines,
}

/// Why a query failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum QueryError {
    #[error("no type: give LDS, RDS, CDS, EDS, a message or a type URL")]
    NoType,
    #[error("dynamic parameters have no meaning with --as-client")]
    ParametersOfClient,
    #[error("{0}")]
    Inspect(InspectError),
    #[error("--diff shows text: leave out --format")]
    DiffFormat,
    #[error("{text:?} has no key before its equals sign; use --name for a name with an equals sign")]
    NoKey { text: String },
    #[error("{}", bootstrap_error(.0))]
    Bootstrap(BootstrapError),
    #[error(transparent)]
    Start(StartError),
    #[error(transparent)]
    Watch(WatchError),
    #[error("{0}")]
    Unreachable(String),
    #[error("no answer within {} s", .0.as_secs())]
    Silent(Duration),
    #[error("no answer within {} s about {about}: it is not known whether it exists", within.as_secs())]
    NotKnown { about: String, within: Duration },
    #[error("cannot write: {0}")]
    Output(io::Error),
}

impl QueryError {
    /// See [`Failure::exit_code`].
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Bootstrap(BootstrapError::Unreadable { .. }) => 1,
            Self::NoType
            | Self::ParametersOfClient
            | Self::DiffFormat
            | Self::NoKey { .. }
            | Self::Bootstrap(_)
            | Self::Start(_)
            | Self::Watch(_)
            | Self::Inspect(InspectError::Address(_)) => 2,
            Self::Inspect(_) | Self::Unreachable(_) | Self::Output(_) => 1,
            Self::Silent(_) | Self::NotKnown { .. } => SILENT,
        }
    }
}

fn bootstrap_error(error: &BootstrapError) -> String {
    match error {
        BootstrapError::NotSet => "no server: give --server HOST:PORT or --bootstrap FILE, or set \
                                   GRPC_XDS_BOOTSTRAP to the path of a bootstrap file, or GRPC_XDS_BOOTSTRAP_CONFIG \
                                   to its text"
            .into(),
        other => other.to_string(),
    }
}

/// The names and parameters of the arguments.
#[derive(Debug, PartialEq, Eq)]
struct Requested {
    names: Vec<String>,
    parameters: Option<Parameters>,
}

impl Query {
    pub(super) fn run(&self, mode: Mode, differences: Differences) -> Result<ExitCode, Failure> {
        if differences == Differences::Lines && self.format != OutputFormat::Text {
            return Err(Failure::Query(QueryError::DiffFormat));
        }
        let type_name = self.type_name.as_deref().ok_or(Failure::Query(QueryError::NoType))?;
        let type_url = type_name::parse_any(type_name).map_err(Failure::Type)?;
        let requested = requested(&self.arguments, &self.names).map_err(Failure::Query)?;
        let descriptors = descriptors(&self.descriptors)?;
        if !descriptors.knows(type_url.as_str()) {
            eprintln!("warning: no descriptor for {}; see --descriptors", type_url.message_name());
        }
        let mut bootstrap = self.upstream.bootstrap(&requested.names).map_err(Failure::Query)?;
        if mode != Mode::Watch {
            distinguish_silence(&mut bootstrap);
        }
        self.start_log()?;
        let writer = EventWriter {
            format: self.format,
            shows_times: mode != Mode::Get,
            differences,
            descriptors,
            type_url,
            left_out: BTreeSet::new(),
        };
        let runtime = tokio::runtime::Runtime::new().map_err(Failure::System)?;
        let asking = self.ask(mode, requested, bootstrap, writer);
        let done = runtime.block_on(asking);
        // Do not wait for a read of a credentials file that hangs.
        runtime.shutdown_background();
        finished(done)
    }

    /// Shows what the connected client with this node id has.
    pub(super) fn inspect(&self, id: &str) -> Result<ExitCode, Failure> {
        let type_url = self.type_name.as_deref().map(type_name::parse_any).transpose();
        let type_url = type_url.map_err(Failure::Type)?;
        let requested = requested(&self.arguments, &self.names).map_err(Failure::Query)?;
        if requested.parameters.is_some() {
            return Err(Failure::Query(QueryError::ParametersOfClient));
        }
        let writer = EventWriter {
            format: self.format,
            shows_times: false,
            differences: Differences::Whole,
            descriptors: descriptors(&self.descriptors)?,
            type_url: TypeUrl::from(""),
            left_out: BTreeSet::new(),
        };
        let bootstrap = self.upstream.bootstrap(&[]).map_err(Failure::Query)?;
        let Some(server) = bootstrap.servers.first() else {
            return Err(Failure::Query(QueryError::Bootstrap(BootstrapError::NotSet)));
        };
        self.start_log()?;
        let inspection = Inspection { id: id.to_owned(), type_url, names: requested.names };
        let runtime = tokio::runtime::Runtime::new().map_err(Failure::System)?;
        let within = Duration::from_secs(self.timeout.into());
        let done = runtime.block_on(inspection.run(server, within, writer));
        runtime.shutdown_background();
        finished(done)
    }

    fn start_log(&self) -> Result<(), Failure> {
        let filter = match (LogFilter::from_env(), self.verbose) {
            (Ok(None), true) => LogFilter::parse("xds_client=debug,xds_core=debug"),
            (Ok(None), false) => return Ok(()),
            (filter, _) => filter.map(Option::unwrap_or_default),
        };
        let filter = filter.map_err(Failure::LogFilter)?;
        let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false);
        let layer = layer.fmt_fields(PrintableFields);
        tracing_subscriber::registry().with(layer.with_filter(filter.targets())).init();
        Ok(())
    }

    async fn ask(
        &self,
        mode: Mode,
        requested: Requested,
        bootstrap: Bootstrap,
        writer: EventWriter,
    ) -> Result<ExitCode, QueryError> {
        let has_one_server = all_servers(&bootstrap).len() == 1;
        let is_without_tls = |server: &&Server| server.credentials == ChannelCredentials::Insecure;
        let without_tls = all_servers(&bootstrap).into_iter().filter(is_without_tls);
        let without_tls: BTreeSet<_> = without_tls.map(|server| server.uri.clone()).collect();
        let timeout = Duration::from_secs(self.timeout.into());
        let (listener, mut changes) = StateListener::new();
        // A client waits twice as long for servers whose silence does not mean absence, and here for all of them. Its
        // timers end before the command does: then it is known that a set has no more members (C12).
        let of_names = if mode == Mode::Watch { timeout } else { (timeout - GRACE.min(timeout / 4)) / 2 };
        let mut builder = self.upstream.client(bootstrap, of_names).recorder(Arc::new(listener));
        if requested.parameters.is_some() {
            builder = builder.speaks_locators();
        }
        let mut client = builder.start().map_err(QueryError::Start)?;
        if let Some(parameters) = &requested.parameters {
            client = client.with(parameters.iter().map(|(key, value)| (Arc::clone(key), Arc::clone(value))));
        }
        let mut events = watch(&client, &writer.type_url, &requested.names)?;
        let mut results = QueryResults {
            mode,
            writer,
            requested: requested.names.into_iter().map(RequestedName::new).collect(),
        };
        let mut servers = ServerStates::default();
        let protocol = self.upstream.protocol();
        let start = Instant::now();
        let mut patience = Some(start + timeout);
        // A server that is just starting has this long.
        let is_impatient = has_one_server && mode != Mode::Watch && !self.wait;
        let mut down_at = is_impatient.then(|| start + DOWN_AFTER);
        // The other modes print each event at once, so they need no spinner.
        let (spinner, mut show_at) = (Spinner::hidden(), (mode == Mode::Get).then(|| start + progress::LONG));
        spinner.say("waiting for the server");
        let mut came = 0;
        while mode == Mode::Watch || !results.is_known() {
            tokio::select! {
                biased;
                Some((server, mut change)) = changes.recv() => {
                    if let ServerChange::Failed(trouble) = &mut change
                        && trouble.is_of_other_protocol()
                        && without_tls.contains(&server)
                        && speaks_tls(&server).await
                    {
                        trouble.set_needs_tls();
                    }
                    let news = servers.on_change(server, change, protocol);
                    let hopeless = servers.trouble().filter(|trouble| has_one_server && trouble.is_final());
                    if let Some(trouble) = hopeless.filter(|_| mode != Mode::Watch) {
                        return Err(QueryError::Unreachable(trouble.describe(protocol)));
                    }
                    if let Some(news) = news {
                        spinner.aside(|| eprintln!("{news}"));
                    }
                    if is_impatient && down_at.is_none() && servers.is_down() {
                        drop(spinner);
                        return results.give_up(&servers, protocol, timeout);
                    }
                }
                Some((entry, event)) = events.recv() => {
                    if event.is_resource() {
                        came += 1;
                        spinner.say(format!("waiting for the rest; {} so far", counted(came, "resource")));
                    }
                    results.on_event(entry, event)?;
                }
                () = until(show_at) => {
                    show_at = None;
                    spinner.show();
                }
                () = until(down_at) => {
                    down_at = None;
                    if servers.is_down() {
                        drop(spinner);
                        return results.give_up(&servers, protocol, timeout);
                    }
                }
                () = until(patience) => {
                    patience = None;
                    if mode != Mode::Watch {
                        drop(spinner);
                        return results.give_up(&servers, protocol, timeout);
                    }
                    if servers.trouble().is_none() && !results.is_known() {
                        eprintln!("no answer within {} s; still waiting", timeout.as_secs());
                    }
                }
            }
        }
        drop(spinner);
        results.end()
    }
}

/// The results so far, and the writer that shows them.
struct QueryResults {
    mode: Mode,
    writer: EventWriter,
    requested: Vec<RequestedName>,
}

/// One requested name, and its resources.
struct RequestedName {
    name: String,
    is_known: bool,
    /// The glob or wildcard as a whole has an error.
    has_set_error: bool,
    found: BTreeMap<String, Resource<Raw>>,
    /// Why there is no resource.
    error: Option<Arc<ResourceFailure>>,
}

/// An event of a watcher of one name, or of a glob or wildcard.
enum WatchEvent {
    One(Event<Raw>),
    Many(SetEvent<Raw>),
}

impl WatchEvent {
    fn is_resource(&self) -> bool {
        matches!(self, Self::One(Event::Changed(_)) | Self::Many(SetEvent::Member(_, Event::Changed(_))))
    }
}

impl QueryResults {
    fn is_known(&self) -> bool {
        self.requested.iter().all(|entry| entry.is_known)
    }

    fn on_event(&mut self, number: usize, watch_event: WatchEvent) -> Result<(), QueryError> {
        let Self { mode, writer, requested } = self;
        let entry = &mut requested[number];
        let whole = entry.name.clone();
        let (name, shown) = match &watch_event {
            WatchEvent::One(event) => (&*whole, shown_event(event)),
            WatchEvent::Many(SetEvent::Member(name, event)) => (name.as_str(), shown_event(event)),
            WatchEvent::Many(SetEvent::Complete) => (&*whole, ShownEvent::Complete),
            WatchEvent::Many(SetEvent::Failed(why)) => (&*whole, ShownEvent::Ambient(why.as_deref())),
        };
        // After an error of a set, the watcher reports `Complete` again although it was complete.
        let is_repeated = matches!(shown, ShownEvent::Complete) && entry.has_set_error;
        if *mode != Mode::Get && !is_repeated {
            writer.event(name, &shown, entry.found.get(name)).map_err(QueryError::Output)?;
        }
        let name = name.to_owned();
        entry.on_watch_event(name, watch_event);
        Ok(())
    }

    /// Each name is known: writes the resources and errors that are not written yet.
    fn end(mut self) -> Result<ExitCode, QueryError> {
        let mut code = 0;
        for entry in &self.requested {
            if self.mode == Mode::Get {
                for (name, resource) in &entry.found {
                    self.writer
                        .event(name, &ShownEvent::Changed(resource), None)
                        .map_err(QueryError::Output)?;
                }
            }
            let Some(error) = &entry.error else {
                if self.mode == Mode::Get && entry.found.is_empty() {
                    eprintln!("{}: no resources", self.writer.label(&entry.name));
                }
                continue;
            };
            let is_absent = error.code == Code::NOT_FOUND && !is_set(&entry.name);
            code = match (is_absent, code) {
                (true, 0) => NOTHING,
                (true, code) => code,
                (false, _) => 1,
            };
            if self.mode == Mode::Get && self.writer.format == OutputFormat::Json {
                self.writer
                    .event(&entry.name, &ShownEvent::Absent(error), None)
                    .map_err(QueryError::Output)?;
            }
            if self.mode == Mode::Get {
                let label = self.writer.label(&entry.name);
                eprintln!("error: {label}: {}", printable(&error.to_string()));
                if is_absent {
                    eprintln!("{ABSENT_HINT}");
                }
            }
        }
        Ok(ExitCode::from(code))
    }

    /// Writes the results so far, and fails.
    fn give_up(
        self,
        servers: &ServerStates,
        protocol: Protocol,
        timeout: Duration,
    ) -> Result<ExitCode, QueryError> {
        let unknown: Vec<_> = self.requested.iter().filter(|entry| !entry.is_known).collect();
        // The errors of a server that answers, and not of the timers of the client.
        let of_server = |error: &&Arc<ResourceFailure>| !error.message.contains(" did not send ");
        let error = unknown.iter().filter_map(|entry| entry.error.as_ref()).find(of_server);
        let mut about: Vec<_> =
            unknown.iter().take(NAMES_SHOWN).map(|entry| self.writer.label(&entry.name)).collect();
        if unknown.len() > NAMES_SHOWN {
            about.push(format!("{} more", unknown.len() - NAMES_SHOWN));
        }
        let why = match (servers.trouble(), error) {
            (Some(trouble), _) => QueryError::Unreachable(trouble.describe(protocol)),
            (None, Some(error)) => QueryError::Unreachable(printable(&error.to_string()).into_owned()),
            (None, None) => QueryError::NotKnown { about: about.join(", "), within: timeout },
        };
        let requested = self.requested.into_iter().filter(|entry| entry.is_known).collect();
        Self { requested, ..self }.end()?;
        Err(why)
    }
}

impl RequestedName {
    fn new(name: String) -> Self {
        Self { name, is_known: false, has_set_error: false, found: BTreeMap::new(), error: None }
    }

    fn on_watch_event(&mut self, name: String, watch_event: WatchEvent) {
        if let WatchEvent::Many(SetEvent::Failed(why)) = &watch_event {
            self.has_set_error = why.is_some();
        }
        match watch_event {
            WatchEvent::One(Event::Changed(resource)) => {
                self.is_known = true;
                self.error = None;
                self.found.insert(name, resource);
            }
            WatchEvent::One(Event::Absent(why)) => {
                self.found.remove(&name);
                self.on_failure(why);
            }
            WatchEvent::Many(SetEvent::Member(_, Event::Changed(resource))) => {
                self.found.insert(name, resource);
            }
            WatchEvent::Many(SetEvent::Member(_, Event::Absent(_))) => {
                self.found.remove(&name);
            }
            WatchEvent::Many(SetEvent::Complete) => {
                self.is_known = true;
                self.error = None;
            }
            WatchEvent::Many(SetEvent::Failed(Some(why))) if !self.is_known => self.on_failure(why),
            WatchEvent::One(Event::Ambient(_))
            | WatchEvent::Many(SetEvent::Failed(_) | SetEvent::Member(_, Event::Ambient(_))) => {}
        }
    }

    /// UNAVAILABLE may be temporary, so the name stays unknown. Any other error is an answer.
    fn on_failure(&mut self, why: Arc<ResourceFailure>) {
        self.is_known |= why.code != Code::UNAVAILABLE;
        self.error = Some(why);
    }
}

fn shown_event(event: &Event<Raw>) -> ShownEvent<'_> {
    match event {
        Event::Changed(resource) => ShownEvent::Changed(resource),
        Event::Absent(why) => ShownEvent::Absent(why),
        Event::Ambient(why) => ShownEvent::Ambient(why.as_deref()),
    }
}

/// Watches all names. Each event comes with the index of its name.
fn watch(
    client: &Client,
    type_url: &TypeUrl,
    names: &[String],
) -> Result<mpsc::Receiver<(usize, WatchEvent)>, QueryError> {
    let (sender, receiver) = mpsc::channel(EVENTS_IN_FLIGHT);
    for (number, name) in names.iter().enumerate() {
        let sender = sender.clone();
        if is_set(name) {
            let mut watcher = client.watch_set_raw(type_url, name).map_err(QueryError::Watch)?;
            tokio::spawn(async move {
                while let Some(event) = watcher.next().await {
                    _ = sender.send((number, WatchEvent::Many(event))).await;
                }
            });
        } else {
            let mut watcher = client.watch_raw(type_url, name).map_err(QueryError::Watch)?;
            tokio::spawn(async move {
                while let Some(event) = watcher.next().await {
                    _ = sender.send((number, WatchEvent::One(event))).await;
                }
            });
        }
    }
    Ok(receiver)
}

fn finished(done: Result<ExitCode, QueryError>) -> Result<ExitCode, Failure> {
    match done {
        // The reader closed the pipe, as `head` does: that is not an error.
        Err(QueryError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        done => done.map_err(Failure::Query),
    }
}

/// X12: a glob or the wildcard.
fn is_set(name: &str) -> bool {
    name == "*" || XdstpName::of(name).is_ok_and(|name| name.is_some_and(|name| name.is_glob()))
}

fn requested(arguments: &[String], names: &[String]) -> Result<Requested, QueryError> {
    let mut requested = Vec::new();
    let mut parameters = Vec::new();
    for text in arguments {
        match text.split_once('=') {
            Some(("", _)) => return Err(QueryError::NoKey { text: text.clone() }),
            Some((key, value)) if !XdstpName::is_new_style(text) => parameters.push((key, value)),
            Some(_) | None => requested.push(text.clone()),
        }
    }
    requested.extend_from_slice(names);
    let mut seen = BTreeSet::new();
    requested.retain(|name| seen.insert(name.clone()));
    if requested.is_empty() {
        requested.push("*".to_owned());
    }
    let parameters = (!parameters.is_empty()).then(|| parameters.into_iter().collect());
    Ok(Requested { names: requested, parameters })
}

/// C6: silence is no answer. Clients of gRPC and Envoy take it for absence, but an operator has to know which it is.
fn distinguish_silence(bootstrap: &mut Bootstrap) {
    let of_authorities = bootstrap.authorities.values_mut().flat_map(|authority| &mut authority.servers);
    for server in bootstrap.servers.iter_mut().chain(of_authorities) {
        server.features.resource_timer_is_transient_error = true;
    }
}

/// The different servers that the client may use.
fn all_servers(bootstrap: &Bootstrap) -> BTreeSet<&Server> {
    let of_authorities = bootstrap.authorities.values().flat_map(|Authority { servers, .. }| servers);
    bootstrap.servers.iter().chain(of_authorities).collect()
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

const EVENTS_IN_FLIGHT: usize = 64;

/// So long before the command the timers of the client end.
const GRACE: Duration = Duration::from_secs(1);

/// How long the command tries to reach a server that is down.
const DOWN_AFTER: Duration = Duration::from_millis(1500);

/// How many names a message has at most.
const NAMES_SHOWN: usize = 3;

/// A server cannot tell a client that others have a variant.
const ABSENT_HINT: &str = "  hint: it may have variants for other clients: --metadata KEY=VALUE says which client asks, \
                           and `xds resolve` on the server says why one gets nothing";

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arguments: &[&str], names: &[&str]) -> Result<(Vec<String>, Option<String>), String> {
        let own = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let requested = requested(&own(arguments), &own(names)).map_err(|error| error.to_string())?;
        Ok((requested.names, requested.parameters.map(|parameters| parameters.to_string())))
    }

    #[test]
    fn names_and_parameters_are_told_apart_by_the_equals_sign() {
        let xdstp = "xdstp://a/envoy.config.cluster.v3.Cluster/x?env=prod";
        let (names, parameters) = of(&["web", "env=prod", xdstp, "v=", "web"], &["a=b"]).unwrap();
        assert_eq!(names, ["web", xdstp, "a=b"]);
        assert_eq!(parameters.unwrap(), r#"env="prod", v="""#);
        assert_eq!(of(&["web"], &[]).unwrap().1, None);
        // Without a name it is about all resources.
        assert_eq!(of(&["a=b"], &[]).unwrap(), (vec!["*".to_owned()], Some(r#"a="b""#.to_owned())));
        assert_eq!(of(&[], &[]).unwrap(), (vec!["*".to_owned()], None));
        assert!(of(&["web", "=b"], &[]).unwrap_err().starts_with("\"=b\" has no key"));
    }

    #[test]
    fn x12_globs_and_the_wildcard_are_sets() {
        let names = ["*", "xdstp://a/acme.Thing/shop/*", "xdstp://a/acme.Thing/shop", "a*", ""];
        assert_eq!(names.map(is_set), [true, true, false, false, false]);
    }
}
