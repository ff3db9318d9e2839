//! The content of the cache, and a second record of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use xds_core::{Cache, Constraints, Parameters, Resource, Transaction, VariantId};
use xds_proto::type_url as url;

use super::script::{Script, TYPES};

/// The cache, and the variants that were committed to it.
pub(super) struct Content {
    pub(super) cache: Arc<Cache>,
    variants: BTreeMap<(&'static str, &'static str), Vec<Variant>>,
}

/// One variant as it was committed.
pub(super) struct Variant {
    pub(super) constraints: Constraints,
    pub(super) payload: Vec<u8>,
}

impl Content {
    pub(super) fn new(cache: Arc<Cache>) -> Self {
        Self { cache, variants: BTreeMap::new() }
    }

    /// All variants of a type for these parameters, by name.
    pub(super) fn selected<'a>(
        &'a self,
        type_url: &'a str,
        name: &'a str,
        parameters: &'a Parameters,
    ) -> impl Iterator<Item = (&'static str, &'a Variant)> {
        let of_name = self
            .variants
            .iter()
            .filter(move |((of, own), _)| *of == type_url && (name == "*" || name == *own));
        of_name
            .flat_map(|((_, name), variants)| variants.iter().map(|variant| (*name, variant)))
            .filter(|(_, variant)| variant.constraints.matches(parameters))
    }

    /// Replaces all variants of some names by others that do not overlap.
    pub(super) fn commit(&mut self, script: &mut Script<'_>) {
        let mut transaction = Transaction::new();
        let mut changes = BTreeMap::new();
        for _ in 0..=script.choice(4) {
            let pick = script.choice(TYPES.len() * NAMES.len());
            let (type_url, name) = (TYPES[pick % TYPES.len()], NAMES[pick / TYPES.len()]);
            let (conditions, content) = (SCHEMES[script.choice(SCHEMES.len())], script.choice(256));
            let variant = |(at, condition): (usize, &&str)| Variant {
                constraints: condition.parse().expect("it is one"),
                payload: payload(type_url, name, content >> at & 3),
            };
            let variants = conditions.iter().enumerate().map(variant).collect::<Vec<_>>();
            changes.insert((type_url, name), variants);
        }
        for ((type_url, name), variants) in changes {
            let id = |constraints: &Constraints| VariantId {
                type_url: type_url.into(),
                name: name.into(),
                constraints: constraints.clone(),
            };
            let before = self.variants.remove(&(type_url, name)).unwrap_or_default();
            let is_kept = |old: &Variant| variants.iter().any(|new| new.constraints == old.constraints);
            for old in before.iter().filter(|old| !is_kept(old)) {
                transaction.remove(id(&old.constraints));
            }
            for new in &variants {
                let resource = Resource::new(type_url, name, new.payload.clone());
                let resource = resource.expect("it is one").with_constraints(new.constraints.clone());
                transaction.put(resource);
            }
            if !variants.is_empty() {
                self.variants.insert((type_url, name), variants);
            }
        }
        self.cache.commit(transaction).expect("what is committed does not overlap");
    }
}

/// A message whose field 1 is the name; clusters are of type EDS. The largest payloads are sent in
/// slices of their own.
fn payload(type_url: &str, name: &str, content: usize) -> Vec<u8> {
    let mut payload = vec![0x0a, u8::try_from(name.len()).expect("it is short")];
    payload.extend_from_slice(name.as_bytes());
    if type_url == url::CLUSTER {
        payload.extend_from_slice(&[0x10, 3]);
    }
    match content {
        3 => {
            payload.extend_from_slice(&[0xfa, 0x07, 0x80, 0x20]);
            payload.resize(payload.len() + 4096, b'x');
        }
        content => payload.extend_from_slice(&[0xf8, 0x07, content as u8]),
    }
    payload
}

const NAMES: [&str; 3] = ["a", "b", "c"];

/// The variants of one name.
const SCHEMES: [&[&str]; 9] = [
    &[],
    &["true"],
    &["env=prod"],
    &["env=prod", "env=test"],
    &["env=prod", "env!=prod"],
    &["env=prod,version=v1", "env=prod,version!=v1"],
    &["env=prod,!version", "env=prod,version=v1", "env=prod,version=v2"],
    &["env in (prod,test)"],
    &["version=v1", "!version"],
];
