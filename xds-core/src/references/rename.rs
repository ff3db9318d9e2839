//! Replaces the name of a resource in the fields of a payload that name it.

use std::str;

use super::table::{self, Field, Shape};
use super::{Target, endpoints_of};
use crate::name::{ResourceName, TypeUrl};
use crate::wire::fields::{fields, next_field, put_field, text};
use crate::xdstp;

/// A name to replace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rename<'a> {
    pub(crate) target: Target,
    pub(crate) from: &'a ResourceName,
    pub(crate) to: &'a ResourceName,
}

impl Rename<'_> {
    /// The payload of the resource `own` with the new name; `None` if no field has the old one, or if the
    /// payload is not a valid message. Everything else stays byte for byte.
    pub(crate) fn payload(&self, type_url: &TypeUrl, own: &ResourceName, payload: &[u8]) -> Option<Vec<u8>> {
        let target = Target::of(type_url.as_str())?;
        let renamed = table::resource(target).and_then(|shape| self.message(shape, payload, 0));
        let names_endpoints = (target, self.target) == (Target::Cluster, Target::Assignment);
        if !names_endpoints || endpoints_of(own, payload).as_ref() != Some(self.from) {
            return renamed;
        }
        let mut payload = renamed.unwrap_or_else(|| payload.to_vec());
        if let Some(renamed) = self.message(ENDPOINTS, &payload, 0) {
            return Some(renamed);
        }
        // The endpoints have the name of the cluster. A message is merged with one of the same field.
        let mut config = Vec::new();
        put_field(&mut config, SERVICE_NAME, self.to.as_str().as_bytes());
        put_field(&mut payload, EDS_CLUSTER_CONFIG, &config);
        Some(payload)
    }

    fn message(&self, shape: &Shape, bytes: &[u8], depth: usize) -> Option<Vec<u8>> {
        if shape.is_empty() || depth >= DEPTH_LIMIT {
            return None;
        }
        let is_own = |field: &Field| matches!(field, Field::Own(target, ..) if *target == self.target);
        let has_own = |number| shape.iter().any(|(known, _, field)| *known == number && is_own(field));
        let names_own = fields(bytes).flatten().any(|(number, _)| has_own(number));
        let (mut renamed, mut has_changed, mut rest) = (Vec::with_capacity(bytes.len()), false, bytes);
        while !rest.is_empty() {
            let field = rest;
            let (number, value) = next_field(&mut rest)?;
            let of_number = shape.iter().filter(|(known, ..)| *known == number);
            let content = value.and_then(|value| {
                let own = (names_own && number == 1).then(|| self.name(value)).flatten();
                own.or_else(|| of_number.into_iter().find_map(|(.., field)| self.field(*field, value, depth)))
            });
            match content {
                Some(content) => {
                    has_changed = true;
                    put_field(&mut renamed, number, &content);
                }
                None => renamed.extend_from_slice(&field[..field.len() - rest.len()]),
            }
        }
        has_changed.then_some(renamed)
    }

    fn field(&self, field: Field, value: &[u8], depth: usize) -> Option<Vec<u8>> {
        match field {
            Field::Name(target) if target == self.target => self.name(value),
            Field::Name(_) | Field::AnyOf(_) | Field::AllFrom(..) => None,
            Field::Message(shape) | Field::Own(_, shape, _) => self.message(shape, value, depth + 1),
            Field::Any => {
                let type_url = str::from_utf8(text(value, 1).unwrap_or_default()).ok()?;
                let message_name = type_url.rsplit_once('/').map_or(type_url, |(_, name)| name);
                let content = self.message(table::extension(message_name)?, text(value, 2)?, depth + 1)?;
                let mut any = Vec::with_capacity(value.len());
                put_field(&mut any, 1, type_url.as_bytes());
                put_field(&mut any, 2, &content);
                Some(any)
            }
        }
    }

    fn name(&self, name: &[u8]) -> Option<Vec<u8>> {
        let is_it = str::from_utf8(name).is_ok_and(|name| xdstp::canonical(name) == *self.from);
        is_it.then(|| self.to.as_str().as_bytes().to_vec())
    }
}

/// The name of the endpoints of a cluster.
static ENDPOINTS: &Shape = &[(
    EDS_CLUSTER_CONFIG,
    "eds_cluster_config",
    Field::Message(&[(SERVICE_NAME, "service_name", Field::Name(Target::Assignment))]),
)];

const EDS_CLUSTER_CONFIG: u32 = 3;
const SERVICE_NAME: u32 = 2;

/// Up to this many nested messages are read.
const DEPTH_LIMIT: usize = 64;
