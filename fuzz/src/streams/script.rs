//! The events, read from bytes.

use xds_proto::envoy::service::discovery::v3::ResourceLocator;
use xds_proto::type_url as url;

/// The bytes of the events. Each choice takes one; when none is left, the first choice is made.
pub(crate) struct Script<'a> {
    rest: std::slice::Iter<'a, u8>,
}

impl<'a> Script<'a> {
    pub(crate) fn new(raw: &'a [u8]) -> Self {
        Self { rest: raw.iter() }
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.rest.next().copied()
    }

    /// A number below `of`.
    pub(crate) fn choice(&mut self, of: usize) -> usize {
        usize::from(self.byte().unwrap_or_default()) % of
    }

    /// Some bytes as they are.
    pub(crate) fn bytes(&mut self) -> Vec<u8> {
        let len = self.choice(64);
        self.rest.by_ref().take(len).copied().collect()
    }

    /// Damages a frame, so that it may be invalid.
    pub(crate) fn damage(&mut self, frame: &mut Vec<u8>) {
        let at = self.choice(frame.len() + 1);
        match self.byte() {
            Some(byte) if at < frame.len() => frame[at] = byte,
            _ => frame.truncate(at),
        }
    }

    pub(super) fn type_url(&mut self) -> &'static str {
        TYPES[self.choice(TYPES.len())]
    }

    /// The lists of a request: names and locators.
    pub(super) fn lists(&mut self) -> (Vec<String>, Vec<ResourceLocator>) {
        let counts = self.choice(256);
        let names = (0..counts % 4).map(|_| self.name()).collect();
        let locators = (0..counts / 4 % 4).map(|_| self.locator()).collect();
        (names, locators)
    }

    fn name(&mut self) -> String {
        ASKED[self.choice(ASKED.len())].into()
    }

    fn locator(&mut self) -> ResourceLocator {
        let pick = self.choice(256);
        let parameters = PARAMETERS[pick / ASKED.len() % PARAMETERS.len()];
        let dynamic_parameters =
            parameters.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        ResourceLocator { name: ASKED[pick % ASKED.len()].into(), dynamic_parameters }
    }
}

/// Types of all kinds: with and without full state, some that other types wait for, and an unknown
/// one.
pub(super) const TYPES: [&str; 6] = [
    url::CLUSTER,
    url::CLUSTER_LOAD_ASSIGNMENT,
    url::LISTENER,
    url::ROUTE_CONFIGURATION,
    url::SECRET,
    "example.com/acme.Thing",
];

/// Names for requests. Most of them may exist, some cannot exist.
const ASKED: [&str; 16] =
    ["a", "b", "c", "*", "a", "b", "c", "*", "a", "b", "never", "*", "a", "b", "", "\n"];

const PARAMETERS: [&[(&str, &str)]; 16] = [
    &[],
    &[("env", "prod")],
    &[("env", "test")],
    &[("env", "prod"), ("version", "v1")],
    &[("env", "prod"), ("version", "v2")],
    &[("version", "v1")],
    &[("env", "other")],
    &[("env", "test"), ("version", "")],
    &[],
    &[("env", "prod")],
    &[("env", "test")],
    &[("env", "prod"), ("version", "v1")],
    &[("env", "prod"), ("version", "v2")],
    &[("zone", "z")],
    &[("env\n", "prod")],
    &[("env", "prod"), ("version", "v1"), ("zone", "z"), ("more", "")],
];

/// Steps that often matter, with their arguments.
pub(crate) const WORDS: &[&[u8]] = &[
    // Streams: for all types, of a known client, and again with its resources.
    b"\x00\x00",
    b"\x00\x08",
    b"\x00\x18",
    b"\x00\x28",
    b"\x00\x05",
    // Requests for the wildcard, for one name, for locators.
    b"\x01\x00\x00\x00",
    b"\x01\x01\x01\x01\x00",
    b"\x01\x02\x01\x04\x10",
    b"\x01\x05\x01\x08\x10\x20",
    // Commits of one change.
    b"\x06\x00\x00\x01\x01",
    b"\x06\x00\x01\x03\x02",
    b"\x06\x00\x02\x04\x03",
    b"\x06\x00\x05\x00\x00",
    // Time, sending, ACK, NACK, and the end.
    b"\x38",
    b"\x68",
    b"\x09",
    b"\x19",
    b"\x0b",
    b"\x0c\x00",
    b"\x0e\x00",
    b"\x0f",
];
