//! The states of the servers, as one line of output per change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;
use xds::client::{Code, Protocol, Recorder};

/// A change of a server's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServerChange {
    Opened,
    Failed(Trouble),
    Answered,
}

/// Why a server is not available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) server: String,
    code: Option<Code>,
    reason: String,
    /// Whether the server has sent a response before.
    has_answered: bool,
    /// Whether the port speaks TLS and the client does not.
    needs_tls: bool,
}

/// Sends changes of states. If the reader is too slow, changes are lost.
#[derive(Debug)]
pub(super) struct StateListener {
    last: Mutex<BTreeMap<String, ServerChange>>,
    /// Servers that have sent a response. A stream that is open shows nothing yet.
    answered: Mutex<BTreeSet<String>>,
    sender: mpsc::Sender<(String, ServerChange)>,
}

/// The states of all servers.
#[derive(Debug, Default)]
pub(super) struct ServerStates {
    troubles: BTreeMap<String, Trouble>,
    /// Servers with a stream, and whether it is still open.
    open: BTreeMap<String, bool>,
}

impl Trouble {
    /// Whether trying again will probably fail too.
    pub(super) fn is_final(&self) -> bool {
        self.code.is_some_and(|code| FINAL.contains(&code.0)) || self.tls_mistake().is_some()
    }

    /// Whether the connection ended before the server said anything, as at a port that speaks something else.
    pub(super) fn is_of_other_protocol(&self) -> bool {
        !self.has_answered && self.reason.starts_with("the connection was lost")
    }

    /// Notes that the port speaks TLS and the client does not.
    pub(super) fn set_needs_tls(&mut self) {
        self.needs_tls = true;
    }

    /// A mistake about TLS, in words, and its cure.
    fn tls_mistake(&self) -> Option<(&'static str, &'static str)> {
        match &self.reason {
            _ if self.needs_tls => Some((
                "its port speaks TLS, and this client does not",
                "add --tls, or --ca FILE with the authority of its certificate (in a bootstrap file: channel_creds)",
            )),
            reason if reason.contains("InvalidContentType") => Some((
                "its port does not speak TLS, and this client does",
                "leave out https://, --tls, --ca and --cert, or give the port that speaks TLS",
            )),
            reason if reason.contains("CaUsedAsEndEntity") => Some((
                "its certificate is that of an authority, and not that of a server",
                "give the server a certificate that the authority has signed, with basicConstraints=CA:FALSE",
            )),
            _ => None,
        }
    }

    /// The error for people, with a hint.
    pub(super) fn describe(&self, protocol: Protocol) -> String {
        let Self { server, reason, code, .. } = self;
        if let Some((mistake, cure)) = self.tls_mistake() {
            return format!("{server} cannot be reached: {mistake}\n  hint: {cure}");
        }
        // An admin port with the API of a store asks for an identity, which `xds serve` never does for xDS.
        // Another admin port has no HTTP/2, so it ends the connection before it answers.
        let is_like_admin = *code == Some(Code(UNAUTHENTICATED)) || self.is_of_other_protocol();
        let hint = match protocol {
            Protocol::Delta if *code == Some(Code(UNIMPLEMENTED)) => {
                "\n  hint: not every server speaks delta; try --sotw (state of the world)"
            }
            Protocol::Delta | Protocol::Sotw if is_like_admin => {
                "\n  hint: is this an admin port? xDS has the other port, which `xds serve` prints after `listening on`"
            }
            Protocol::Delta | Protocol::Sotw => "",
        };
        format!("{server} cannot be reached: {reason}{hint}")
    }

    /// The same error while the client tries again.
    fn describe_retry(&self, protocol: Protocol) -> String {
        match self.describe(protocol).split_once('\n') {
            Some((description, hint)) => format!("{description}; trying again\n{hint}"),
            None => format!("{}; trying again", self.describe(protocol)),
        }
    }
}

impl StateListener {
    pub(super) fn new() -> (Self, mpsc::Receiver<(String, ServerChange)>) {
        let (sender, receiver) = mpsc::channel(STEPS_IN_FLIGHT);
        (Self { last: Mutex::default(), answered: Mutex::default(), sender }, receiver)
    }

    fn answered(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, server: &str, change: ServerChange) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.get(server) != Some(&change) {
            last.insert(server.to_owned(), change.clone());
            _ = self.sender.try_send((server.to_owned(), change));
        }
    }
}

impl Recorder for StateListener {
    fn opened(&self, server: &str) {
        self.send(server, ServerChange::Opened);
    }

    fn failed(&self, server: &str, code: Option<Code>, reason: &str) {
        let (name, reason) = (server.to_owned(), xds::printable(reason).into_owned());
        let has_answered = self.answered().contains(server);
        self.send(
            server,
            ServerChange::Failed(Trouble { server: name, code, reason, has_answered, needs_tls: false }),
        );
    }

    fn updates(&self, server: &str, _: &str, _: usize, _: usize) {
        if !self.answered().contains(server) {
            self.answered().insert(server.to_owned());
        }
    }

    fn connected(&self, server: &str, is_connected: bool) {
        if is_connected {
            self.send(server, ServerChange::Answered);
        }
    }
}

impl ServerStates {
    /// Records a change of a server, and returns the line to print, if it is new.
    pub(super) fn on_change(
        &mut self,
        server: String,
        change: ServerChange,
        protocol: Protocol,
    ) -> Option<String> {
        self.open.insert(server.clone(), !matches!(change, ServerChange::Failed(_)));
        match change {
            ServerChange::Opened => None,
            ServerChange::Answered => {
                self.troubles.remove(&server).map(|_| format!("{server} is available again"))
            }
            ServerChange::Failed(trouble) => {
                let description = trouble.describe_retry(protocol);
                let before = self.troubles.insert(server, trouble.clone());
                (before.as_ref() != Some(&trouble)).then_some(description)
            }
        }
    }

    /// The trouble of a server that is not available.
    pub(super) fn trouble(&self) -> Option<&Trouble> {
        self.troubles.values().next()
    }

    /// Whether a server is in trouble and none has an open stream, on which an answer may still come.
    pub(super) fn is_down(&self) -> bool {
        self.trouble().is_some() && !self.open.values().any(|open| *open)
    }
}

const UNIMPLEMENTED: i32 = 12;
const UNAUTHENTICATED: i32 = 16;

/// INVALID_ARGUMENT, PERMISSION_DENIED, UNIMPLEMENTED, UNAUTHENTICATED.
const FINAL: [i32; 4] = [3, 7, UNIMPLEMENTED, UNAUTHENTICATED];

/// A server causes about three changes per second at most.
const STEPS_IN_FLIGHT: usize = 256;
