//! What becomes of the connections, as one line per change.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::mpsc;
use xds::client::{Code, Protocol, Recorder};

/// What a server did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServerChange {
    Opened,
    Failed(Trouble),
    Answered,
}

/// Why a server does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) server: String,
    code: Option<Code>,
    reason: String,
}

/// Sends what changed; what the reader is too slow for is lost.
#[derive(Debug)]
pub(super) struct StateListener {
    last: Mutex<BTreeMap<String, ServerChange>>,
    sender: mpsc::Sender<(String, ServerChange)>,
}

/// What was said of the servers so far.
#[derive(Debug, Default)]
pub(super) struct ServerStates {
    troubles: BTreeMap<String, Trouble>,
    /// Servers that were asked, and did not fail since.
    open: BTreeMap<String, bool>,
}

impl Trouble {
    /// Whether trying again will hardly help.
    pub(super) fn is_final(&self) -> bool {
        self.code.is_some_and(|code| FINAL.contains(&code.0))
    }

    /// What went wrong, for people.
    pub(super) fn describe(&self, protocol: Protocol) -> String {
        let Self { server, reason, code } = self;
        let hint = match protocol {
            Protocol::Delta if *code == Some(Code(UNIMPLEMENTED)) => {
                "\n  hint: not every server speaks delta; --sotw asks in state of the world"
            }
            Protocol::Delta | Protocol::Sotw => "",
        };
        format!("{server} cannot be reached: {reason}{hint}")
    }

    /// The same on its way.
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
        (Self { last: Mutex::default(), sender }, receiver)
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
        let (name, reason) = (server.to_owned(), super::writer::plain(reason));
        self.send(server, ServerChange::Failed(Trouble { server: name, code, reason }));
    }

    fn connected(&self, server: &str, is_connected: bool) {
        if is_connected {
            self.send(server, ServerChange::Answered);
        }
    }
}

impl ServerStates {
    /// Takes what a server did; what to tell of it, if that is news.
    pub(super) fn on_change(
        &mut self,
        server: String,
        change: ServerChange,
        protocol: Protocol,
    ) -> Option<String> {
        self.open.insert(server.clone(), !matches!(change, ServerChange::Failed(_)));
        match change {
            ServerChange::Opened => None,
            ServerChange::Answered => self.troubles.remove(&server).map(|_| format!("{server} answers now")),
            ServerChange::Failed(trouble) => {
                let description = trouble.describe_retry(protocol);
                let before = self.troubles.insert(server, trouble.clone());
                (before.as_ref() != Some(&trouble)).then_some(description)
            }
        }
    }

    /// Why one of them does not answer.
    pub(super) fn trouble(&self) -> Option<&Trouble> {
        self.troubles.values().next()
    }

    /// Whether an answer may still come from one of them.
    pub(super) fn is_any_open(&self) -> bool {
        self.open.values().any(|open| *open)
    }
}

const UNIMPLEMENTED: i32 = 12;

/// INVALID_ARGUMENT, PERMISSION_DENIED, UNIMPLEMENTED, UNAUTHENTICATED.
const FINAL: [i32; 4] = [3, 7, UNIMPLEMENTED, 16];

/// A server gives rise to some three a second at most.
const STEPS_IN_FLIGHT: usize = 256;
