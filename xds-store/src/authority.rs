//! Which authorities may refer to the names of which others (SG37).

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use xds_core::XdstpName;
use xds_proto::xds::store::v1 as proto;

use crate::key::RecordKey;
use crate::record::RecordState;
use crate::region::Policies;

/// The type of the records that are authorities (ST55).
pub const AUTHORITY_TYPE: &str = "type.googleapis.com/xds.store.v1.Authority";

/// The authorities that have a record, with what each imports. One without a record is not restricted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Authorities {
    imports: BTreeMap<Box<str>, BTreeSet<Box<str>>>,
    /// Circles that nodes made at once: each authority of a circle is in one of them.
    circles: Vec<String>,
}

/// An authority that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BadAuthority {
    /// The part of the record that is wrong: `key.name`, `put.content.payload` or a field of that.
    pub field: &'static str,
    /// For people.
    pub message: String,
}

impl Authorities {
    /// Whether there is none: all names may refer to all others.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.imports.is_empty()
    }

    /// Whether a record is an authority.
    #[must_use]
    pub fn is_authority(key: &RecordKey) -> bool {
        key.has_type(AUTHORITY_TYPE)
    }

    /// Whether this name and payload are an authority that can be used.
    ///
    /// # Errors
    /// The name, or that of an import, is no authority or one with escaped characters; an import is there twice or is
    /// the authority itself; there are more than 256; or the payload has a field that this version does not know.
    pub fn check(name: &str, payload: &[u8]) -> Result<(), BadAuthority> {
        imports(name, payload).map(drop)
    }

    /// Takes the state of a record, if it is an authority.
    pub fn note(&mut self, key: &RecordKey, state: &RecordState) {
        if !Self::is_authority(key) {
            return;
        }
        let name = key.type_and_name().1;
        let content = state.content.as_ref().filter(|_| state.lifecycle() != proto::State::Deleted);
        // Neither a commit nor an entry brings an authority that cannot be used.
        match content.and_then(|content| imports(name, &content.payload).ok()) {
            Some(imports) => _ = self.imports.insert(name.into(), imports),
            None => _ = self.imports.remove(name),
        }
        let mut imports = self.imports.get(name).into_iter().flatten();
        if !self.circles.is_empty() || imports.any(|import| self.circle(name, import).is_some()) {
            self.circles = self.find_circles();
        }
    }

    /// The circles of imports, such as `a > b > a`, which do not count for new references.
    #[must_use]
    pub fn circles(&self) -> &[String] {
        &self.circles
    }

    fn find_circles(&self) -> Vec<String> {
        let (mut found, mut members) = (Vec::new(), BTreeSet::new());
        for (name, import) in self.imports() {
            if members.contains(name) {
                continue;
            }
            if let Some(circle) = self.circle(name, import) {
                found.push(circle.join(" > "));
                members.extend(circle);
            }
        }
        found
    }

    /// Why a name may not refer to another one, for people; `None`: it may.
    #[must_use]
    pub fn refuses(&self, source: &str, target: &str) -> Option<String> {
        let (source, target) = (of_name(source)?, of_name(target)?);
        let imports = self.imports.get(&*source).filter(|_| source != target)?;
        if !imports.contains(&*target) {
            return Some(format!("the authority {source} does not import {target}"));
        }
        // Two nodes may have made it at once. Its imports do not count until one of them ends.
        let circle = self.circle(&source, &target)?;
        Some(format!("the imports {} are a circle", circle.join(" > ")))
    }

    /// The circle that an import is a part of, from the authority to itself.
    pub(crate) fn circle<'a>(&'a self, authority: &'a str, import: &'a str) -> Option<Vec<&'a str>> {
        let mut from: BTreeMap<&str, &str> = BTreeMap::from([(import, authority)]);
        let mut next = vec![import];
        while let Some(at) = next.pop() {
            if at == authority {
                break;
            }
            for import in self.imports.get(at).into_iter().flatten() {
                from.entry(import).or_insert_with(|| {
                    next.push(import);
                    at
                });
            }
        }
        let mut circle = vec![authority];
        let mut at = *from.get(authority)?;
        while at != authority {
            circle.push(at);
            at = from.get(at)?;
        }
        circle.push(authority);
        circle.reverse();
        Some(circle)
    }

    /// All imports, in order.
    pub(crate) fn imports(&self) -> impl Iterator<Item = (&str, &str)> {
        self.imports.iter().flat_map(|(name, imports)| imports.iter().map(move |import| (&**name, &**import)))
    }

    /// The imports whose names some regions do not have that have names of the authority, with these regions for
    /// people.
    pub(crate) fn misplaced(&self, policies: &Policies) -> BTreeMap<(&str, &str), String> {
        let regions = |authority: &str| policies.regions_of(&format!("{SCHEME}{authority}/"));
        let lacking = |(name, import): (&str, &str)| match (regions(name), regions(import)) {
            (_, None) => None,
            (None, Some(_)) => Some("all regions".to_owned()),
            (Some(of_name), Some(of_import)) => {
                let lacking: Vec<_> = of_name.difference(&of_import).copied().collect();
                (!lacking.is_empty()).then(|| lacking.join(", "))
            }
        };
        self.imports().filter_map(|import| Some((import, lacking(import)?))).collect()
    }
}

/// The authority of a new-style name, unless it is empty.
fn of_name(name: &str) -> Option<String> {
    let name = XdstpName::of(name).ok()??;
    Some(name.authority().to_owned()).filter(|authority| !authority.is_empty())
}

fn imports(name: &str, payload: &[u8]) -> Result<BTreeSet<Box<str>>, BadAuthority> {
    let bad = |field, message: String| BadAuthority { field, message };
    check_name("key.name", name)?;
    let authority = proto::Authority::decode(payload)
        .map_err(|error| bad("put.content.payload", format!("the payload is no authority: {error}")))?;
    // SG11: a later version may say there what this one would not keep.
    if authority.encode_to_vec() != payload {
        let message = "the payload has a field that this version does not know".to_owned();
        return Err(bad("put.content.payload", message));
    }
    if authority.imports.len() > IMPORTS_LIMIT {
        let found = authority.imports.len();
        return Err(bad(IMPORTS, format!("{found} imports exceed the limit of {IMPORTS_LIMIT}")));
    }
    let mut imports = BTreeSet::new();
    for import in authority.imports {
        check_name(IMPORTS, &import)?;
        if import == name {
            return Err(bad(IMPORTS, format!("{name} may always refer to its own names")));
        }
        if imports.contains(&*import) {
            return Err(bad(IMPORTS, format!("{import} is there twice")));
        }
        imports.insert(import.into());
    }
    Ok(imports)
}

fn check_name(field: &'static str, authority: &str) -> Result<(), BadAuthority> {
    let text = format!("{SCHEME}{authority}/t/x");
    let name = XdstpName::of(&text).ok().flatten();
    let is_plain = |name: XdstpName| name.authority() == authority && name.canonical().as_str() == text;
    if !authority.is_empty() && name.is_some_and(is_plain) {
        return Ok(());
    }
    let message = format!("{authority:?} is no authority, or has characters that names escape");
    Err(BadAuthority { field, message })
}

const SCHEME: &str = "xdstp://";
const IMPORTS: &str = "put.content.payload.imports";
/// Of an authority.
const IMPORTS_LIMIT: usize = 256;
