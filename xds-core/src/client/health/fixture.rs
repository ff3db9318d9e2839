//! One upstream for tests, and events in short. Types go by one letter.

use super::*;
use crate::client::Code;

pub(crate) const UNIMPLEMENTED: Code = Code(12);

/// One upstream, driven like a driver does.
#[derive(Default)]
pub(crate) struct Fixture {
    pub(crate) health: Health,
    pub(crate) now: Duration,
}

pub(crate) fn url(letter: &str) -> TypeUrl {
    format!("type.googleapis.com/{letter}").as_str().into()
}

pub(crate) fn status(code: Code) -> Status {
    Status { code, message: "in the words of the server".into() }
}

/// `1: a b !c ?d`: in generation 1 a and b are confirmed, c is rejected, d is pending; `!c` and so
/// on alone for a type that is reclassified.
pub(crate) fn shown(events: &[Event]) -> String {
    let one = |event: &Event| match event {
        Event::Init(init) => shown_init(init),
        Event::Reclassified { type_url, state } => shown_state(type_url, state),
    };
    events.iter().map(one).collect::<Vec<_>>().join(", ")
}

pub(crate) fn shown_init(init: &Init) -> String {
    let mut text = format!("{}:", init.generation);
    let types = [
        init.confirmed.iter().map(|of| (of, "")).collect::<Vec<_>>(),
        init.rejected.keys().map(|of| (of, "!")).collect(),
        init.pending.iter().map(|of| (of, "?")).collect(),
    ];
    for (type_url, mark) in types.concat() {
        text += &format!(" {mark}{}", type_url.message_name());
    }
    text
}

pub(crate) fn shown_state(type_url: &TypeUrl, state: &SyncState) -> String {
    let mark = match state {
        SyncState::Synced(_) => "",
        SyncState::Rejected(..) => "!",
        SyncState::Requested | SyncState::Stale(_) => "?",
    };
    format!("{mark}{}", type_url.message_name())
}

impl Fixture {
    /// With these types requested.
    pub(crate) fn of(types: &str) -> Self {
        let mut fixture = Self::default();
        types.split_whitespace().for_each(|of| fixture.health.request(Duration::ZERO, &url(of)));
        fixture
    }

    pub(crate) fn request(&mut self, of: &str) {
        self.health.request(self.now, &url(of));
        self.ask();
    }

    /// Opens a stream, and subscribes to all types that it may have.
    pub(crate) fn open(&mut self) -> String {
        let events = self.health.on_open(self.now);
        self.ask();
        shown(&events)
    }

    /// Subscribes to the types that the stream may have and does not have yet.
    pub(crate) fn ask(&mut self) {
        let to_subscribe: Vec<_> = self.health.to_subscribe().cloned().collect();
        to_subscribe.iter().for_each(|of| self.health.on_subscribe(self.now, of, false));
    }

    pub(crate) fn respond(&mut self, types: &str) -> String {
        let respond = |of| self.health.on_response(&url(of));
        let events: Vec<_> = types.split_whitespace().flat_map(respond).collect();
        self.ask();
        shown(&events)
    }

    pub(crate) fn reject(&mut self, of: &str) -> String {
        let events = self.health.on_rejected(&url(of), status(UNIMPLEMENTED));
        self.ask();
        shown(&events)
    }

    pub(crate) fn end(&mut self, code: Code) -> String {
        shown(&self.health.on_end(self.now, Some(status(code))))
    }

    /// Lets seconds pass.
    pub(crate) fn pass(&mut self, seconds: u64) -> String {
        let until = self.now + Duration::from_secs(seconds);
        let mut events = Vec::new();
        while let Some(deadline) = self.health.next_deadline().filter(|deadline| *deadline <= until) {
            self.now = deadline;
            events.extend(self.health.on_timeout(deadline));
            self.ask();
        }
        self.now = until;
        shown(&events)
    }

    /// The types that the stream subscribes to, or will subscribe to.
    pub(crate) fn askable(&self) -> String {
        let may = |of: &&TypeUrl| self.health.may_subscribe(of);
        let types = self.health.states().map(|(of, _)| of).filter(may);
        types.map(|of| of.message_name()).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn state(&self, of: &str) -> String {
        match self.health.state(&url(of)) {
            None => "-".into(),
            Some(SyncState::Requested) => "requested".into(),
            Some(SyncState::Synced(generation)) => format!("synced {generation}"),
            Some(SyncState::Rejected(generation, status)) => format!("rejected {generation} {}", status.code),
            Some(SyncState::Stale(generation)) => format!("stale {generation}"),
        }
    }
}
