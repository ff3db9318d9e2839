//! What of a refusal fits into a status (ST54b). Message and details are trailers, and a client of gRPC's C core (C++, Python,
//! Ruby, PHP) takes 8 KiB of metadata: of a larger answer it sees only RESOURCE_EXHAUSTED.

use prost::Message;
use xds_core::shortened;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::violation::Why;

/// ST54b: what of these violations fits, and how many others there are. The first one is always there.
pub(super) fn refusal(violations: Vec<proto::Violation>, limits: Limits) -> proto::Refusal {
    let count = violations.len();
    let (mut fitting, mut left) = (Vec::new(), DETAIL_LIMIT);
    for violation in violations {
        let violation = short(violation, limits);
        let size = violation.encoded_len() + TAG_AND_LENGTH;
        if size > left && !fitting.is_empty() {
            break;
        }
        left = left.saturating_sub(size);
        fitting.push(violation);
    }
    proto::Refusal { others: u32::try_from(count - fitting.len()).unwrap_or(u32::MAX), violations: fitting }
}

/// The message of a status.
pub(super) fn message(text: String) -> String {
    if text.len() <= MESSAGE_LIMIT { text } else { shortened(&text, MESSAGE_LIMIT).into_owned() }
}

/// The message of a violation. What is wrong stands behind the key, so that a long key is shortened first.
fn short_message(message: &str, key: Option<&proto::Key>, limits: Limits) -> String {
    let parts = key.map_or([""; 2], |key| [&*key.name, &*key.when]);
    let with_words = |limit: usize| {
        let long = parts.into_iter().filter(|part| part.len() > limit);
        long.fold(message.to_owned(), |message, part| message.replace(part, &shortened(part, limit)))
    };
    let whole = with_words(limits.word);
    // Name and constraints leave room for the rest.
    let message = if whole.len() <= limits.text { whole } else { with_words(limits.text / 3) };
    shortened(&message, limits.text).into_owned()
}

/// Whether a status with this message and these encoded details fits. In headers, a message has three bytes for each
/// byte outside of ASCII, and details four for each three.
pub(super) fn fits(message: &str, details: &[u8]) -> bool {
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~' if *byte != b'%');
    let message: usize = message.as_bytes().iter().map(|byte| if is_plain(byte) { 1 } else { 3 }).sum();
    message + details.len().div_ceil(3) * 4 <= STATUS_LIMIT
}

/// A violation with short texts and lists.
pub(super) fn short(violation: proto::Violation, limits: Limits) -> proto::Violation {
    let proto::Violation { change, key, message, why } = violation;
    let message = short_message(&message, key.as_ref(), limits);
    proto::Violation {
        change,
        key: key.map(|key| short_key(key, limits)),
        message,
        why: why.map(|why| short_why(why, limits)),
    }
}

fn short_key(key: proto::Key, limits: Limits) -> proto::Key {
    let proto::Key { type_url, name, when } = key;
    let word = |text: &str| limits.word_of(text);
    proto::Key { type_url: word(&type_url), name: word(&name), when: word(&when) }
}

fn short_why(why: Why, limits: Limits) -> Why {
    let word = |text: &str| limits.word_of(text);
    let words = |list: &[String]| list.iter().take(limits.list).map(|text| word(text)).collect();
    let short_key = |key: proto::Key| short_key(key, limits);
    match why {
        Why::Invalid(of) => Why::Invalid(proto::Invalid { field: word(&of.field) }),
        Why::Region(of) => Why::Region(proto::RegionOwned { other_regions: words(&of.other_regions), ..of }),
        Why::Owned(of) => Why::Owned(proto::OwnedByOthers { owners: words(&of.owners) }),
        Why::Ambiguous(of) => {
            let witness = of.witness.iter().take(limits.list).map(|(key, value)| (word(key), word(value)));
            Why::Ambiguous(proto::AmbiguousVariants {
                other: of.other.map(short_key),
                witness: witness.collect(),
                kind: of.kind,
            })
        }
        Why::Referred(of) => {
            let short = |by: proto::Reference| proto::Reference {
                source: by.source.map(short_key),
                target: by.target.map(short_key),
                field: word(&by.field),
                ..by
            };
            Why::Referred(proto::Referred {
                by: of.by.into_iter().take(limits.list).map(short).collect(),
                count: of.count,
                silent_regions: words(&of.silent_regions),
            })
        }
        Why::MissingTarget(of) => Why::MissingTarget(proto::MissingTarget {
            target: of.target.map(short_key),
            field: word(&of.field),
            ..of
        }),
        // Their texts are the server's own, or names with a short limit.
        Why::Condition(_) | Why::Schema(_) | Why::Limit(_) | Why::Right(_) | Why::Gate(_) => why,
    }
}

/// How much of a violation is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    text: usize,
    /// Of a name, constraints, or another short text.
    word: usize,
    /// Of the elements of a list.
    list: usize,
}

impl Limits {
    /// For violations that all fit: whole, if they are usual.
    pub(super) const WHOLE: Self = Self { text: 512, word: 512, list: 20 };
    /// For more violations than fit: as many as possible.
    pub(super) const SOME: Self = Self { text: 512, word: 512, list: 1 };
    /// Each violation fits.
    pub(super) const LEAST: Self = Self { text: 160, word: 96, list: 1 };

    fn word_of(self, text: &str) -> String {
        shortened(text, self.word).into_owned()
    }

    /// The message of a status with it.
    pub(super) fn message(self, text: &str) -> String {
        shortened(text, self.text).into_owned()
    }
}

/// Message and details together, as they are sent.
pub(super) const STATUS_LIMIT: usize = 4096 - HEAD;
/// The names of the headers, and the status around the details.
const HEAD: usize = 256;
/// The message is sent twice: as it is, and in the details.
const MESSAGE_LIMIT: usize = 640;
pub(super) const DETAIL_LIMIT: usize = 1400;
const TAG_AND_LENGTH: usize = 4;

#[cfg(test)]
mod tests;
