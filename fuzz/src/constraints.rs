//! The properties of all accepted constraints, whatever their source.

use prost::Message;
use xds_core::draft::Draft;
use xds_core::{Constraints, Formula, Parameters};
use xds_proto::envoy::service::discovery::v3::DynamicParameterConstraints;

/// Checks constraints that a reader has accepted.
pub(crate) fn check(accepted: &Constraints) {
    limits(accepted);
    let points = points(accepted);
    let agree = |other: &Constraints| {
        for point in &points {
            assert_eq!(other.matches(point), accepted.matches(point), "{other} at {point:?}");
        }
    };

    // T23: every other reader reads the bytes that are sent in the same way.
    let sent = Constraints::from_wire(accepted.wire()).expect("sent constraints are accepted");
    assert_eq!(sent.formula(), accepted.formula());
    let message = DynamicParameterConstraints::decode(&accepted.wire()[..]).expect("sent constraints decode");
    let decoded = Constraints::from_proto(&message).expect("sent constraints are accepted");
    assert_eq!(decoded.formula(), accepted.formula());
    let encoded = DynamicParameterConstraints::from(accepted.formula()).encode_to_vec();
    let encoded = Constraints::from_wire(&encoded).expect("a formula that is accepted keeps the limits");
    assert_eq!(encoded.formula(), accepted.formula());

    // T21: the canonical form is its own canonical form, and has the same meaning.
    let canonical = Constraints::from_wire(accepted.canon()).expect("the canonical form is accepted");
    assert_eq!(canonical.canon(), accepted.canon());
    agree(&canonical);

    let printed = accepted.to_string();
    let read: Constraints = printed.parse().unwrap_or_else(|error| panic!("{printed}: {error}"));
    assert_eq!(read, *accepted, "{printed}");
    assert_eq!(read.to_string(), printed);
    agree(&read);

    if let Some(draft) = Draft::of_shape(accepted.formula()) {
        let back = Constraints::from_draft(&draft).expect("a draft of accepted constraints is accepted");
        assert_eq!(back, *accepted, "{printed}");
    }
    if let Ok(draft) = Draft::of_meaning(accepted.formula()) {
        let back = Constraints::from_draft(&draft).expect("a draft of accepted constraints is accepted");
        assert_eq!(back.keys(), accepted.keys(), "{printed}");
        agree(&back);
    }
}

/// T11, T12, W2.
fn limits(accepted: &Constraints) {
    let size = Size::of(accepted.formula());
    assert!(size.leaves <= Constraints::LEAF_LIMIT && size.depth <= Constraints::DEPTH_LIMIT, "{size:?}");
    let keys: Vec<_> = accepted.keys().iter().map(|key| &**key).collect();
    let mut written = keys_of(accepted.formula());
    written.sort_unstable();
    written.dedup();
    assert_eq!(keys, written);
    assert!(!keys.iter().any(|key| key.contains(|c| c < ' ')));
}

#[derive(Debug, Default)]
struct Size {
    leaves: usize,
    depth: usize,
}

impl Size {
    fn of(formula: &Formula) -> Self {
        let parts = match formula {
            Formula::Equals { .. } | Formula::Exists { .. } => return Self { leaves: 1, depth: 0 },
            Formula::All(parts) | Formula::Any(parts) if parts.is_empty() => {
                return Self { leaves: 1, depth: 1 };
            }
            Formula::All(parts) | Formula::Any(parts) => &parts[..],
            Formula::Not(part) => std::slice::from_ref(&**part),
        };
        parts.iter().map(Self::of).fold(Self { leaves: 0, depth: 1 }, |size, part| Self {
            leaves: size.leaves + part.leaves,
            depth: size.depth.max(part.depth + 1),
        })
    }
}

fn keys_of(formula: &Formula) -> Vec<&str> {
    match formula {
        Formula::Equals { key, .. } | Formula::Exists { key } => vec![key],
        Formula::All(parts) | Formula::Any(parts) => parts.iter().flat_map(keys_of).collect(),
        Formula::Not(part) => keys_of(part),
    }
}

/// Parameters that show a wrong reading: the named values in turn, each key absent sometimes, and a
/// value that is not named.
fn points(constraints: &Constraints) -> Vec<Parameters> {
    let mut named = Vec::new();
    values_of(constraints.formula(), &mut named);
    let outcome = |key: &str, point: usize, at: usize| {
        let values: Vec<_> =
            named.iter().filter(|(other, _)| *other == key).map(|(_, value)| *value).collect();
        // A different step for each key, so that the keys do not change their outcomes together.
        match (point * (2 * at + 1) + at) % (values.len() + 2) {
            0 => None,
            1 => Some(FRESH),
            other => Some(values[other - 2]),
        }
    };
    // With a thousand keys, the points take most of the time.
    let count = if named.len() > 64 { 2 } else { 12 };
    let point = |point| {
        let keys = constraints.keys().iter().enumerate();
        keys.filter_map(|(at, key)| Some((&**key, outcome(key, point, at)?))).collect()
    };
    (0..count).map(point).collect()
}

fn values_of<'a>(formula: &'a Formula, named: &mut Vec<(&'a str, &'a str)>) {
    match formula {
        Formula::Equals { key, value } => named.push((key, value)),
        Formula::Exists { .. } => {}
        Formula::All(parts) | Formula::Any(parts) => parts.iter().for_each(|part| values_of(part, named)),
        Formula::Not(part) => values_of(part, named),
    }
}

const FRESH: &str = "a value that no formula names";
