//! A server that does not serve a type: what watchers of it get, and what all others get (G4).

use super::fixture::Fixture;
use super::health::{Status, SyncState};
use super::*;
use crate::payload::Raw;

const BOTH: [Protocol; 2] = [Protocol::Sotw, Protocol::Delta];

/// A server that answers each first request of a type, unless the client says that it has the version, and ends the
/// streams with a request of another.
struct Server {
    f: Fixture,
    refused: Vec<&'static str>,
    code: Code,
    /// How long it takes to end such a stream.
    delay: Duration,
    ends_at: Option<Duration>,
    streams: usize,
    nonce: usize,
    /// What watchers were told.
    told: Vec<String>,
}

impl Server {
    fn new(protocol: Protocol, refused: &[&'static str], code: Code) -> Self {
        let mut f = Fixture::of(&[(protocol, ErrorPolicy::default())]);
        f.now = Duration::from_secs(1);
        Self {
            f,
            refused: refused.into(),
            code,
            delay: Duration::ZERO,
            ends_at: None,
            streams: 0,
            nonce: 0,
            told: Vec::new(),
        }
    }

    fn note(&mut self, told: &str) {
        self.told.extend(told.lines().map(ToOwned::to_owned));
    }

    /// Everything that happens until a time.
    fn run_until(&mut self, until: Duration) {
        loop {
            self.exchange();
            let times = [self.f.client.connect_at(0), self.f.client.next_deadline(), self.ends_at];
            let at = times.into_iter().flatten().min();
            let Some(at) = at.filter(|at| *at <= until) else { break };
            self.f.now = self.f.now.max(at);
            let told = self.f.pass(0);
            self.note(&told);
            if self.ends_at.is_some_and(|at| at <= self.f.now) {
                self.end(self.code);
            }
            if self.f.client.connect_at(0).is_some_and(|at| at <= self.f.now) {
                self.f.open(0);
                self.streams += 1;
            }
            self.exchange();
        }
        self.f.now = until;
    }

    fn exchange(&mut self) {
        loop {
            // Answers may allow further requests.
            let sent = self.f.sent(0);
            if sent.is_empty() || !self.answer(&sent) {
                return;
            }
        }
    }

    /// Returns whether the stream is still open.
    fn answer(&mut self, sent: &str) -> bool {
        for request in sent.lines() {
            let words: Vec<_> = request.split(' ').filter(|word| *word != "node").collect();
            let type_name = words[0];
            if self.refused.contains(&type_name) {
                if self.delay.is_zero() {
                    self.end(self.code);
                    return false;
                }
                self.ends_at.get_or_insert(self.f.now + self.delay);
                continue;
            }
            // An ACK has a nonce.
            if !words.iter().any(|word| word.starts_with('n') || *word == "v1") {
                self.nonce += 1;
                let told = self.f.get(&format!("{type_name} v1 n{}: a=1", self.nonce));
                self.note(&told);
            }
        }
        true
    }

    fn end(&mut self, code: Code) {
        self.ends_at = None;
        let status = Status { code, message: "not here".into() };
        let end = StreamEnd { status: Some(status), reason: "not here", jitter: u32::MAX / 2 };
        let effects = self.f.client.on_end(self.f.now, 0, end);
        let told = self.f.shown(&effects);
        self.note(&told);
    }
}

/// Nine types that are served, and X.
fn ten(protocol: Protocol, code: Code) -> (Server, Vec<WatchId>, WatchId) {
    let mut server = Server::new(protocol, &["X"], code);
    let types = ["CDS", "LDS", "T1", "T2", "T3", "T4", "T5", "Y1", "Y2"];
    let others = types.map(|type_name| server.f.watch(type_name, "a")).into();
    let refused = server.f.watch("X", "a");
    (server, others, refused)
}

const CODES: [Code; 3] = [Code::UNIMPLEMENTED, Code::INVALID_ARGUMENT, Code::NOT_FOUND];

#[test]
fn g4b_the_other_types_of_a_server_that_refuses_one_are_there_in_a_second() {
    for (protocol, code) in BOTH.into_iter().flat_map(|protocol| CODES.map(|code| (protocol, code))) {
        let (mut server, others, refused) = ten(protocol, code);
        server.run_until(Duration::from_secs(2));
        let views: Vec<_> = others.iter().map(|watch| server.f.view(*watch)).collect();
        assert_eq!(views, ["1"; 9], "{protocol:?} {code}");
        // D28: the status of a stream is not about a resource.
        let shown = if code == Code::NOT_FOUND { Code::UNAVAILABLE } else { code };
        assert_eq!(server.f.view(refused), shown.to_string(), "{protocol:?}");
        assert!(server.streams <= 6, "{protocol:?} {code}: {} streams", server.streams);
        let errors: Vec<_> = server.told.iter().filter(|told| !told.ends_with(": 1")).collect();
        assert_eq!(errors.len(), 1, "{protocol:?} {code}: {errors:?}");
    }
}

/// Regression: a server without news for a client that brings versions (S32) sends nothing. It ended the stream two
/// seconds later because of another type, and the client left out the silent types for 30 s.
#[test]
fn g4b_a_type_without_news_is_not_taken_for_one_that_is_refused_late() {
    for (protocol, restarts) in BOTH.into_iter().flat_map(|protocol| [false, true].map(|of| (protocol, of))) {
        let (mut server, others, refused) = ten(protocol, Code::UNIMPLEMENTED);
        server.refused.clear();
        server.run_until(Duration::from_secs(2));
        assert_eq!(server.f.view(refused), "1");
        (server.refused, server.delay) = (vec!["X"], Duration::from_secs(2));
        if restarts {
            server.end(Code::UNAVAILABLE);
        }
        let new = server.f.watch("X", "b");
        server.run_until(Duration::from_secs(20));
        assert_eq!(server.f.view(new), "UNIMPLEMENTED", "{protocol:?}");
        let health = server.f.client.health(0).unwrap();
        assert_eq!(health.isolated().count(), 1, "{protocol:?} {restarts}: {health:?}");
        let told: Vec<_> = server.told.iter().filter(|told| told.contains("UNIMPLEMENTED")).collect();
        assert_eq!(told.len(), 2, "{protocol:?}, X a and X b: {told:?}");
        assert!(others.iter().all(|watch| server.f.view(*watch) == "1"));
    }
}

#[test]
fn g4b_a_refused_type_is_tried_again_seldom_and_its_watchers_hear_of_it_once() {
    for protocol in BOTH {
        let (mut server, others, refused) = ten(protocol, Code::UNIMPLEMENTED);
        server.run_until(Duration::from_secs(3600));
        let (streams, told) = (server.streams, server.told.clone());
        // After 30 s, twice as long each time, and at last each 10 min.
        assert!((6..=25).contains(&streams), "{protocol:?}: {streams} streams in an hour");
        let of_refused = told.iter().filter(|told| told.contains("UNIMPLEMENTED")).count();
        assert_eq!(of_refused, 1, "{protocol:?}: {told:?}");
        assert_eq!(server.f.view(others[0]), "1");
        server.refused.clear();
        server.run_until(Duration::from_secs(3600 + 601));
        assert_eq!(server.f.view(refused), "1", "{protocol:?}");
    }
}

#[test]
fn g4b_a_new_watch_of_a_refused_type_has_the_status_at_once() {
    let (mut server, ..) = ten(Protocol::Delta, Code::UNIMPLEMENTED);
    server.run_until(Duration::from_secs(2));
    let other = server.f.watch("X", "b");
    assert_eq!(server.f.view(other), Code::UNIMPLEMENTED.to_string());
    let streams = server.streams;
    server.run_until(Duration::from_secs(20));
    assert_eq!(server.streams, streams, "the client does not ask for it");
}

#[test]
fn g4_the_answer_that_a_type_is_not_served_ends_no_stream() {
    for protocol in BOTH {
        let mut f = Fixture::with(protocol, ErrorPolicy::default());
        let (x, a) = (f.watch("X", "a"), f.watch("CDS", "a"));
        f.sent(0);
        f.get("X v1 n1: a!12");
        f.get("CDS v1 n2: a=1");
        assert_eq!((f.view(x), f.view(a)), (Code::UNIMPLEMENTED.to_string(), "1".to_owned()));
        let health = f.client.health(0).unwrap();
        assert!(matches!(health.state(&fixture::url("X")), Some(SyncState::Rejected(..))), "{protocol:?}");
        assert!(matches!(health.state(&fixture::url("CDS")), Some(SyncState::Synced(_))), "{protocol:?}");
    }
}

/// The next stream began without it, so the server reported it as absent (seed 206 of the simulator).
#[test]
fn g4_what_a_client_keeps_of_a_refused_type_is_in_the_first_request_of_the_next_stream() {
    let mut f = Fixture::with(Protocol::Delta, ErrorPolicy::default());
    let x = f.watch("X", "a");
    f.sent(0);
    f.get("X v1 n1: a=1");
    f.get("X v1 n2: a!12");
    assert_eq!(f.view(x), format!("1 beside {}", Code::UNIMPLEMENTED));
    f.end(0);
    assert_eq!(f.connect(0), "node X +a (a:?)");
    f.get("X v1 n1: a!12");
    assert_eq!(f.view(x), format!("1 beside {}", Code::UNIMPLEMENTED));
    f.get("X v1 n2: a=1");
    assert_eq!(f.view(x), "1");
}

/// C15: what serves no type at all is no server, as an HTTP proxy without a route to it.
#[test]
fn g4b_c15_a_server_that_refuses_all_types_has_failed() {
    for protocol in BOTH {
        let policy = ErrorPolicy::default();
        let mut f = Fixture::of(&[(protocol, policy), (protocol, policy)]);
        let watches = ["CDS", "LDS", "X"].map(|type_name| f.watch(type_name, "a"));
        for _ in 0..4 {
            f.now = f.client.connect_at(0).unwrap();
            f.open(0);
            f.sent(0);
            let status = Status { code: Code::UNIMPLEMENTED, message: "no such method".into() };
            let end = StreamEnd { status: Some(status), reason: "no such method", jitter: 0 };
            f.client.on_end(f.now, 0, end);
        }
        assert_eq!(f.wanted(), [0, 1], "{protocol:?}: the next server is used");
        f.connect(1);
        f.get_from(1, "CDS v1 n1: a=1");
        assert_eq!(f.view(watches[0]), "1");
    }
}

#[test]
fn g4b_an_end_with_another_status_refuses_nothing() {
    for code in [Code::UNAVAILABLE, Code(13)] {
        let (mut server, ..) = ten(Protocol::Delta, code);
        server.run_until(Duration::from_secs(60));
        let health = server.f.client.health(0).unwrap();
        assert_eq!(health.isolated().count(), 0);
    }
}

/// The next server may be a newer one.
#[test]
fn g4b_a_refused_type_is_tried_again_after_a_reconnect() {
    for protocol in BOTH {
        let (mut server, _, refused) = ten(protocol, Code::UNIMPLEMENTED);
        server.run_until(Duration::from_secs(2));
        server.f.end(0);
        server.refused.clear();
        server.run_until(Duration::from_secs(4));
        assert_eq!(server.f.view(refused), "1", "{protocol:?}");
    }
}

#[test]
fn g4b_no_timer_is_left_of_a_type_that_nobody_watches() {
    for protocol in BOTH {
        let mut f = Fixture::with(protocol, ErrorPolicy::default());
        let x = f.watch("X", "a");
        f.sent(0);
        f.client.on_unwatch(x);
        f.sent(0);
        let own = f.client.health(0).unwrap().next_deadline();
        assert_eq!(own, None, "{protocol:?}");
        f.watch("X", "b");
        f.sent(0);
        assert!(f.client.health(0).unwrap().next_deadline().is_some(), "{protocol:?}");
    }
}

/// The control plane is replaced by an older one, and by a newer one again.
#[test]
fn g4b_a88_watchers_of_a_type_that_is_refused_later_keep_what_they_have_beside_its_status() {
    for (protocol, code) in BOTH.into_iter().flat_map(|protocol| CODES.map(|code| (protocol, code))) {
        let (mut server, others, named) = ten(protocol, code);
        server.refused.clear();
        let all = server.f.watch("X", "*");
        server.run_until(Duration::from_secs(2));
        let what = format!("{protocol:?} {code}");
        assert_eq!((server.f.view(named), server.f.view(others[0])), ("1".into(), "1".into()), "{what}");
        server.told.clear();
        server.refused.push("X");
        server.f.end(0);
        server.run_until(Duration::from_secs(10));
        let shown = if code == Code::NOT_FOUND { Code::UNAVAILABLE } else { code };
        assert_eq!(server.f.view(named), format!("1 beside {shown}"), "{what}");
        assert_eq!(server.f.view(all), shown.to_string(), "{what}: the set as a whole");
        let member = server.f.client.member_view(all, &"a".into());
        assert!(member.copy.is_some() && member.error.is_none(), "{what}: {member:?}");
        let of_refused: Vec<_> =
            server.told.iter().filter(|told| told.contains(&shown.to_string())).collect();
        assert_eq!(of_refused.len(), 2, "{what}: once each: {of_refused:?}");
        let read = |server: &Server, type_name| {
            let guard = server.f.client.read::<Raw>(fixture::url(type_name), None);
            matches!(guard.route(), ReadRoute::Cache(_))
        };
        assert!(!read(&server, "X") && read(&server, "CDS"), "{what}");
        assert!(others.iter().all(|other| server.f.view(*other) == "1"), "{what}");
        server.refused.clear();
        server.f.end(0);
        server.run_until(Duration::from_secs(20));
        assert_eq!(server.f.view(named), "1", "{what}");
        assert!(server.f.client.view(all).is_complete && read(&server, "X"), "{what}");
    }
}
