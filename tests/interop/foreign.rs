//! Foreign xDS servers, for our client to be tested against: go-control-plane and
//! java-control-plane.
//!
//! Each is a small program in tests/interop/peers. The file go-server/main.go there says what they
//! read and print.

mod tests;

use std::fmt;
use std::process::Stdio;

use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::time;

use crate::peers;
use crate::wait::SOON;

/// One of the programs; it is killed when dropped. All clients get the same from it.
#[derive(Debug)]
pub(crate) struct ForeignServer {
    /// Where it listens, also after a stop.
    pub(crate) port: u16,
    _child: Child,
    input: ChildStdin,
    /// What it prints that is no event.
    answers: mpsc::UnboundedReceiver<Value>,
    events: mpsc::UnboundedReceiver<Event>,
}

/// The implementations of xDS servers that can be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Foreign {
    /// With a snapshot of everything: each type has the version that is set, also when nothing of
    /// it changed. In SotW a NACK is answered at once with the same again.
    GoControlPlane,
    /// The same in "ADS mode": a request by name is answered once it has all names that there are.
    GoControlPlaneAds,
    /// With a cache for each type, which counts its versions by itself and sends only what changed.
    GoControlPlaneLinear,
    /// Knows listeners, routes, clusters, endpoints and secrets. On ADS, a SotW request by name is
    /// answered once all these names are there. A NACK is answered as by go-control-plane.
    JavaControlPlane,
}

/// An event of a server. `stream` is the server's name for a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// `type_url` is empty for ADS.
    StreamOpen {
        stream: String,
        type_url: String,
    },
    StreamClosed {
        stream: String,
    },
    /// Any request with a nonce and without an error; in delta also one that changes a
    /// subscription. `version` is the version in a SotW request, and in delta the version of the
    /// response with this nonce.
    Ack {
        stream: String,
        type_url: String,
        version: String,
        nonce: String,
    },
    Nack {
        stream: String,
        type_url: String,
        nonce: String,
        detail: String,
    },
}

impl ForeignServer {
    /// An empty server on a port that the system picks. `None` if it is not installed.
    pub(crate) async fn start(kind: Foreign) -> Option<Self> {
        let mut child = kind
            .command()?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the program starts");
        let input = child.stdin.take().expect("piped");
        let (answer_sender, answers) = mpsc::unbounded_channel();
        let (event_sender, events) = mpsc::unbounded_channel();
        tokio::spawn(sort(child.stdout.take().expect("piped"), answer_sender, event_sender));
        let mut server = Self { port: 0, _child: child, input, answers, events };
        let port = server.answer().await["port"].as_u64().and_then(|port| port.try_into().ok());
        server.port = port.expect("its first line is its port");
        Some(server)
    }

    /// Replaces all resources of all types by these, which have `@type`.
    ///
    /// # Panics
    /// If the server refuses them.
    pub(crate) async fn set(&mut self, version: &str, resources: &[Value]) {
        let mut types = Map::new();
        for resource in resources {
            let mut resource = resource.clone();
            let fields = resource.as_object_mut().expect("a resource is an object");
            let type_url = fields.remove("@type").expect("a resource says its type");
            let same = types.entry(type_url.as_str().expect("a text")).or_insert_with(|| json!([]));
            same.as_array_mut().expect("it was made as one").push(resource);
        }
        self.command(&json!({"version": version, "resources": types})).await;
    }

    /// Ends each aggregated stream that subscribes to one of these types from now on. Only the servers of
    /// go-control-plane can.
    pub(crate) async fn lack(&mut self, types: &[&str]) {
        self.command(&json!({"lacks": types})).await;
    }

    /// Closes the port and all streams; the resources stay.
    pub(crate) async fn stop(&mut self) {
        self.command(&json!({"stop": true})).await;
    }

    /// Listens again on the same port.
    pub(crate) async fn start_again(&mut self) {
        self.command(&json!({"start": true})).await;
    }

    /// The next event.
    pub(crate) async fn event(&mut self) -> Event {
        let event = time::timeout(SOON, self.events.recv()).await.expect("something happens in time");
        event.expect("the program has not ended")
    }

    /// Waits for an event like this; drops the events before it.
    pub(crate) async fn until(&mut self, what: &str, like: impl Fn(&Event) -> bool) -> Event {
        let mut dropped = Vec::new();
        let found = async {
            while let Some(event) = self.events.recv().await {
                if like(&event) {
                    return event;
                }
                dropped.push(event);
            }
            panic!("the program ended: {what}")
        };
        let found = time::timeout(SOON, found).await;
        found.unwrap_or_else(|_elapsed| panic!("waited {SOON:?} in vain: {what}; there was {dropped:?}"))
    }

    async fn command(&mut self, command: &Value) {
        let line = format!("{command}\n");
        self.input.write_all(line.as_bytes()).await.expect("the program runs");
        let answer = self.answer().await;
        assert_eq!(answer, json!({"ok": true}), "{command}");
    }

    async fn answer(&mut self) -> Value {
        let answer = time::timeout(2 * SOON, self.answers.recv()).await.expect("the program answers in time");
        answer.expect("the program has not ended")
    }
}

impl Foreign {
    pub(crate) const ALL: [Self; 4] =
        [Self::GoControlPlane, Self::GoControlPlaneAds, Self::GoControlPlaneLinear, Self::JavaControlPlane];

    /// The command for the program; `None` if it is not installed.
    fn command(self) -> Option<Command> {
        let go = |cache| {
            let mut command = Command::new(peers::find(peers::GO_CONTROL_PLANE)?);
            command.arg(cache);
            Some(command)
        };
        match self {
            Self::GoControlPlane => go("snapshot"),
            Self::GoControlPlaneAds => go("ads"),
            Self::GoControlPlaneLinear => go("linear"),
            Self::JavaControlPlane => {
                let folder = peers::find(peers::JAVA_CONTROL_PLANE)?;
                let path = format!("{0}/classes:{0}/lib/*", folder.display());
                let mut java = Command::new("java");
                // Options for a quick start of the JVM.
                java.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", &path, "Server"]);
                Some(java)
            }
        }
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GoControlPlane => "go-control-plane",
            Self::GoControlPlaneAds => "go-control-plane in ADS mode",
            Self::GoControlPlaneLinear => "go-control-plane, linear",
            Self::JavaControlPlane => "java-control-plane",
        })
    }
}

/// Parses the lines of a program, until it ends or the receiver is dropped.
async fn sort(
    from: ChildStdout,
    answers: mpsc::UnboundedSender<Value>,
    events: mpsc::UnboundedSender<Event>,
) {
    let mut lines = BufReader::new(from).lines();
    while let Some(line) = lines.next_line().await.expect("its output is text") {
        let line: Value = serde_json::from_str(&line).expect("its output is JSON");
        let sent = match line.get("event") {
            Some(kind) => events.send(event(kind, &line)).is_ok(),
            None => answers.send(line).is_ok(),
        };
        if !sent {
            return;
        }
    }
}

fn event(kind: &Value, line: &Value) -> Event {
    let field = |name| line[name].as_str().unwrap_or_else(|| panic!("{name} is missing: {line}")).to_owned();
    let stream = field("stream");
    match kind.as_str() {
        Some("stream_open") => Event::StreamOpen { stream, type_url: field("type") },
        Some("stream_closed") => Event::StreamClosed { stream },
        Some("ack") => {
            Event::Ack { stream, type_url: field("type"), version: field("version"), nonce: field("nonce") }
        }
        Some("nack") => {
            Event::Nack { stream, type_url: field("type"), nonce: field("nonce"), detail: field("detail") }
        }
        _ => panic!("no such event: {line}"),
    }
}
