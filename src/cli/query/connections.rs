//! What becomes of the connections, as one line per change.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::mpsc;
use xds::client::{Code, Protocol, Recorder};

/// What a server did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
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
pub(super) struct Listener {
    last: Mutex<BTreeMap<String, Step>>,
    sender: mpsc::Sender<(String, Step)>,
}

/// What was said of the servers so far.
#[derive(Debug, Default)]
pub(super) struct Connections {
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
    pub(super) fn told(&self, protocol: Protocol) -> String {
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
    fn told_early(&self, protocol: Protocol) -> String {
        match self.told(protocol).split_once('\n') {
            Some((told, hint)) => format!("{told}; trying again\n{hint}"),
            None => format!("{}; trying again", self.told(protocol)),
        }
    }
}

impl Listener {
    pub(super) fn new() -> (Self, mpsc::Receiver<(String, Step)>) {
        let (sender, receiver) = mpsc::channel(STEPS_IN_FLIGHT);
        (Self { last: Mutex::default(), sender }, receiver)
    }

    fn tell(&self, server: &str, step: Step) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.get(server) != Some(&step) {
            last.insert(server.to_owned(), step.clone());
            _ = self.sender.try_send((server.to_owned(), step));
        }
    }
}

impl Recorder for Listener {
    fn opened(&self, server: &str) {
        self.tell(server, Step::Opened);
    }

    fn failed(&self, server: &str, code: Option<Code>, reason: &str) {
        let (name, reason) = (server.to_owned(), super::show::plain(reason));
        self.tell(server, Step::Failed(Trouble { server: name, code, reason }));
    }

    fn connected(&self, server: &str, is_connected: bool) {
        if is_connected {
            self.tell(server, Step::Answered);
        }
    }
}

impl Connections {
    /// Takes what a server did; what to tell of it, if that is news.
    pub(super) fn on_step(&mut self, server: String, step: Step, protocol: Protocol) -> Option<String> {
        self.open.insert(server.clone(), !matches!(step, Step::Failed(_)));
        match step {
            Step::Opened => None,
            Step::Answered => self.troubles.remove(&server).map(|_| format!("{server} answers now")),
            Step::Failed(trouble) => {
                let told = trouble.told_early(protocol);
                let before = self.troubles.insert(server, trouble.clone());
                (before.as_ref() != Some(&trouble)).then_some(told)
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
