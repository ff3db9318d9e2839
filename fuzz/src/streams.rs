//! The stream machines, from requests to the resources that their clients then have.

use std::collections::BTreeMap;
use std::time::Duration;

use xds_core::Cache;
use xds_core::server::{ClientGroup, Protocol};

use content::Content;
use script::Script;
use stream::Stream;

pub(crate) use script::WORDS;

mod content;
mod response;
pub(crate) mod script;
mod stream;
mod subscribed;

/// Runs clients of the state-of-the-world protocol with a cache that changes; see [`stream_delta`].
///
/// # Panics
/// When a property does not hold.
pub fn stream_sotw(raw: &[u8]) -> bool {
    play(raw, Protocol::Sotw)
}

/// Runs clients of the delta protocol with a cache that changes. The bytes are the events: streams
/// open, commits, valid and invalid requests, ACKs and NACKs in any order, time, and the moments
/// when a stream may send.
///
/// Each response is checked: it must be one that the server may send. At the end, when time has
/// passed and all responses are ACKed, the streams must be at rest, and each client must have the
/// resources that it subscribed to.
///
/// # Panics
/// When a property does not hold.
pub fn stream_delta(raw: &[u8]) -> bool {
    play(raw, Protocol::Delta)
}

/// The server and the clients.
struct World {
    protocol: Protocol,
    content: Content,
    groups: BTreeMap<(String, String), ClientGroup>,
    streams: Vec<Stream>,
    /// The stream that ended last; another stream may continue from it.
    ended: Option<Stream>,
    now: Duration,
    has_sent: bool,
}

fn play(raw: &[u8], protocol: Protocol) -> bool {
    let mut world = World {
        protocol,
        content: Content::new(Cache::new()),
        groups: BTreeMap::new(),
        streams: Vec::new(),
        ended: None,
        now: Duration::ZERO,
        has_sent: false,
    };
    let mut script = Script::new(raw);
    while let Some(step) = script.byte() {
        world.step(step, &mut script);
    }
    world.come_to_rest();
    world.has_sent
}

impl World {
    fn step(&mut self, step: u8, script: &mut Script<'_>) {
        let stream = usize::from(step >> 4);
        match step % 16 {
            0 => self.open(script),
            1..=3 => {
                let stream = self.stream(stream);
                let frame = stream.request(script, true);
                self.receive(stream_index(step, self.streams.len()), &frame, true);
            }
            4 => {
                self.stream(stream);
                let frame = script.bytes();
                self.receive(stream_index(step, self.streams.len()), &frame, false);
            }
            5 => {
                let mut frame = self.stream(stream).request(script, false);
                script.damage(&mut frame);
                self.receive(stream_index(step, self.streams.len()), &frame, false);
            }
            6 | 7 => self.content.commit(script),
            8 => self.now += TIMES[stream % TIMES.len()],
            9 | 10 => {
                self.stream(stream);
                self.send(stream_index(step, self.streams.len()), SENDS_LIMIT);
            }
            11 => {
                self.stream(stream);
                self.send(stream_index(step, self.streams.len()), 1);
            }
            12..=14 => {
                let (which, verdict) = (script.choice(4), step % 16 == 14);
                if let Some(frame) = self.stream(stream).answer(which, verdict) {
                    self.receive(stream_index(step, self.streams.len()), &frame, true);
                }
            }
            _ => {
                self.stream(stream);
                self.end(stream_index(step, self.streams.len()));
            }
        }
    }

    /// One of the open streams; opens one if there is none.
    fn stream(&mut self, number: usize) -> &mut Stream {
        if self.streams.is_empty() {
            let stream = Stream::open(self.protocol, 0, &self.content, None);
            self.streams.push(stream);
        }
        let at = number % self.streams.len();
        &mut self.streams[at]
    }

    fn open(&mut self, script: &mut Script<'_>) {
        let how = script.byte().unwrap_or_default();
        if self.streams.len() == STREAMS_LIMIT {
            self.end(0);
        }
        let former = self.ended.take().filter(|_| how & 0x20 != 0);
        self.streams.push(Stream::open(self.protocol, how, &self.content, former));
    }

    fn end(&mut self, at: usize) {
        let mut stream = self.streams.remove(at);
        stream.close();
        self.ended = Some(stream);
    }

    fn receive(&mut self, at: usize, frame: &[u8], is_good: bool) {
        if !self.streams[at].receive(self.now, frame, is_good, &mut self.groups) {
            self.end(at);
        }
    }

    /// Lets a stream send at most `limit` responses. Returns the number that it sent.
    fn send(&mut self, at: usize, limit: usize) -> usize {
        let sent = (0..limit).take_while(|_| self.streams[at].send(self.now, &self.content)).count();
        assert!(sent < SENDS_LIMIT, "there is always more to send");
        self.has_sent |= sent > 0;
        sent
    }

    /// Lets all streams send until none sends any more, whatever time passes.
    fn settle(&mut self, is_answered: bool) {
        for _ in 0..ROUNDS_LIMIT {
            self.now += LONG;
            let mut sent = 0;
            for at in 0..self.streams.len() {
                sent += self.send(at, SENDS_LIMIT);
                if is_answered {
                    while let Some(frame) = self.streams[at].answer(0, false) {
                        self.receive(at, &frame, true);
                        sent += 1;
                    }
                }
            }
            let goes_on = |stream: &mut Stream| stream.is_due(self.now) || stream.is_waiting();
            if sent == 0 && !self.streams.iter_mut().any(goes_on) {
                for stream in &mut self.streams {
                    stream.check_rest(self.now, &self.content);
                }
                return;
            }
        }
        panic!("the streams do not come to rest");
    }

    fn come_to_rest(&mut self) {
        self.settle(false);
        self.settle(true);
        let is_settled = self.streams.iter().all(|stream| stream.is_settled(&self.content));
        for stream in &self.streams {
            stream.check_held(&self.content, is_settled);
        }
    }
}

/// The stream that a step affects.
fn stream_index(step: u8, streams: usize) -> usize {
    usize::from(step >> 4) % streams
}

/// The largest number of open streams.
const STREAMS_LIMIT: usize = 3;

/// Without requests, commits and time, a stream sends fewer responses than this.
const SENDS_LIMIT: usize = 64;

/// Each round lasts longer than any wait.
const ROUNDS_LIMIT: usize = 32;
const LONG: Duration = Duration::from_secs(1000);

/// Times close to the waits of [`StreamConfig`](xds_core::server::StreamConfig).
const TIMES: [Duration; 8] = [
    Duration::ZERO,
    Duration::from_millis(1),
    Duration::from_millis(999),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(16),
    Duration::from_secs(60),
];
