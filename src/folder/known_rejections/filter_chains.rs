//! The filter chains of a listener: which of them gets a connection.

use std::collections::HashMap;
use std::net::IpAddr;

use prost_reflect::DynamicMessage;
use prost_reflect::prost::Message;

use super::{Found, is_set, list, messages, number, sub, text, texts};

pub(super) fn check(listener: &DynamicMessage, found: &mut Found<'_>) {
    let chains = messages(listener, "filter_chains");
    unsupported(&chains, found);
    if is_set(listener, "filter_chain_matcher") {
        names(&chains, found);
    } else {
        server_names(&chains, found);
        overlaps(&chains, found);
    }
}

fn unsupported(chains: &[DynamicMessage], found: &mut Found<'_>) {
    for (index, chain) in chains.iter().enumerate() {
        let matched = sub(chain, "filter_chain_match");
        let has_suffix =
            |matched: &DynamicMessage| is_set(matched, "address_suffix") || is_set(matched, "suffix_len");
        let reason = "Envoy does not implement `address_suffix` and `suffix_len`";
        found.add_at(matched.as_ref().is_some_and(has_suffix), "filter_chains", Some(index), reason);
    }
}

/// A matcher selects a chain by its name.
fn names(chains: &[DynamicMessage], found: &mut Found<'_>) {
    let mut names = HashMap::<String, usize>::new();
    for (index, chain) in chains.iter().enumerate() {
        let name = text(chain, "name");
        let reason = "needs a `name`, as the listener has a `filter_chain_matcher`";
        found.add_at(name.is_empty(), "filter_chains", Some(index), reason);
        let first = *names.entry(name).or_insert(index);
        let reason = format!("has the `name` of filter_chains[{first}]; a matcher needs different names");
        found.add_at(first != index, "filter_chains", Some(index), reason);
    }
}

fn server_names(chains: &[DynamicMessage], found: &mut Found<'_>) {
    for (index, chain) in chains.iter().enumerate() {
        let matched = sub(chain, "filter_chain_match");
        for name in matched.iter().flat_map(|matched| texts(matched, "server_names")) {
            let rest = name.strip_prefix("*.").unwrap_or(&name);
            let reason =
                format!("the server name {name:?} has a partial wildcard; only `*.` at its start is allowed");
            found.add_at(rest.contains('*'), "filter_chains", Some(index), reason);
        }
    }
}

/// Adds the chains that match connections of a chain before them. Envoy takes the most specific
/// chain, so only equal values conflict: 10.0.0.0/8 and 10.0.0.0/16 are different values.
fn overlaps(chains: &[DynamicMessage], found: &mut Found<'_>) {
    let matches: Vec<_> = chains.iter().map(|chain| sub(chain, "filter_chain_match")).collect();
    let values: Vec<_> =
        matches.iter().map(|matched| matched.as_ref().map_or_else(without_condition, values_of)).collect();
    let mut encoded = HashMap::<Vec<u8>, usize>::new();
    let mut taken = HashMap::<Vec<&str>, (usize, usize)>::new();
    for (index, matched) in matches.iter().enumerate() {
        let bytes = matched.as_ref().map(Message::encode_to_vec).unwrap_or_default();
        let first = *encoded.entry(bytes).or_insert(index);
        if first != index {
            let reason = format!("has the same `filter_chain_match` as filter_chains[{first}]");
            found.add_at(true, "filter_chains", Some(index), reason);
            continue;
        }
        let count = values[index].iter().map(Vec::len).fold(1, usize::saturating_mul);
        if count.saturating_add(taken.len()) > COMBINATION_LIMIT {
            continue;
        }
        let conflict = (0..count).find_map(|number| {
            let combination = combination(&values[index], number);
            let first = *taken.entry(combination.clone()).or_insert((index, number));
            (first != (index, number)).then_some((combination, first.0))
        });
        let Some((combination, first)) = conflict else { continue };
        let shown = shown(&combination);
        let reason = match first == index {
            true => format!("its `filter_chain_match` has {shown} twice"),
            false => format!(
                "its `filter_chain_match` and that of filter_chains[{first}] overlap: both have {shown}"
            ),
        };
        found.add_at(true, "filter_chains", Some(index), reason);
    }
}

/// The values of each of [`FIELDS`] as Envoy compares them. The value of a field that is not set is
/// empty.
fn values_of(matched: &DynamicMessage) -> Vec<Vec<String>> {
    let values = FIELDS.iter().map(|(field, kind)| {
        let values = match kind {
            Kind::Number => sub(matched, field)
                .and_then(|value| number(&value, "value"))
                .iter()
                .map(u64::to_string)
                .collect(),
            Kind::Text => vec![text(matched, field)],
            Kind::Texts => texts(matched, field),
            Kind::ServerNames => texts(matched, field).iter().map(|name| server_name(name)).collect(),
            Kind::Ranges => messages(matched, field).iter().map(range).collect(),
            Kind::Numbers => list(matched, field)
                .iter()
                .filter_map(|port| port.as_u32())
                .map(|port| port.to_string())
                .collect(),
            Kind::Enumeration => {
                let value = matched.get_field_by_name(field).and_then(|value| value.as_enum_number());
                value.filter(|value| *value != 0).iter().map(i32::to_string).collect()
            }
        };
        if values.is_empty() { vec![String::new()] } else { values }
    });
    values.collect()
}

fn without_condition() -> Vec<Vec<String>> {
    vec![vec![String::new()]; FIELDS.len()]
}

fn server_name(name: &str) -> String {
    name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name).to_ascii_lowercase()
}

/// A range of addresses, with zeros for the bits that do not count.
fn range(range: &DynamicMessage) -> String {
    let text = text(range, "address_prefix");
    let Ok(address) = text.parse::<IpAddr>() else { return text };
    let width = if address.is_ipv4() { 32 } else { 128 };
    let length = sub(range, "prefix_len").and_then(|length| number(&length, "value")).unwrap_or_default();
    let length = u32::try_from(length).unwrap_or(width).min(width);
    let first = match address {
        IpAddr::V4(v4) => IpAddr::from((v4.to_bits() & u32::MAX.unbounded_shl(width - length)).to_be_bytes()),
        IpAddr::V6(v6) => {
            IpAddr::from((v6.to_bits() & u128::MAX.unbounded_shl(width - length)).to_be_bytes())
        }
    };
    format!("{first}/{length}")
}

/// One value of each field: the combination with this number.
fn combination(values: &[Vec<String>], mut number: usize) -> Vec<&str> {
    let mut combination = Vec::with_capacity(values.len());
    for of_field in values {
        combination.push(of_field[number % of_field.len()].as_str());
        number /= of_field.len();
    }
    combination
}

fn shown(combination: &[&str]) -> String {
    let given = FIELDS.iter().zip(combination).filter(|(_, value)| !value.is_empty());
    let given: Vec<_> = given.map(|((field, _), value)| format!("`{field}` {value:?}")).collect();
    if given.is_empty() { "no condition".to_owned() } else { given.join(" with ") }
}

/// How the values of a field are read.
enum Kind {
    Number,
    Numbers,
    Text,
    Texts,
    ServerNames,
    Ranges,
    Enumeration,
}

/// The fields of a `filter_chain_match`, in the order in which Envoy compares them.
const FIELDS: [(&str, Kind); 9] = [
    ("destination_port", Kind::Number),
    ("prefix_ranges", Kind::Ranges),
    ("server_names", Kind::ServerNames),
    ("transport_protocol", Kind::Text),
    ("application_protocols", Kind::Texts),
    ("direct_source_prefix_ranges", Kind::Ranges),
    ("source_type", Kind::Enumeration),
    ("source_prefix_ranges", Kind::Ranges),
    ("source_ports", Kind::Numbers),
];

/// So many combinations of values are compared in a listener. Beyond that, overlaps are not found.
const COMBINATION_LIMIT: usize = 10_000;
