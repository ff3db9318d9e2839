//! The answer to a poll, and its conversion to JSON.

use std::sync::Arc;

use prost_reflect::prost::Message;
use prost_reflect::prost::bytes::{Bytes, BytesMut};
use serde_json::json;
use xds_core::server::Body;
use xds_core::{ResourceName, Snapshot, TypeUrl};
use xds_proto::Any;
use xds_proto::envoy::service::discovery::v3::{DiscoveryResponse, Resource};
use xds_proto::type_url;

use super::answers::Reservation;
use super::error::PollError;
use super::json;
use crate::folder::Descriptors;

/// A response of the stream machine, not yet converted to JSON.
#[derive(Debug)]
pub(super) struct PollResponse {
    pub(super) version: String,
    pub(super) type_url: TypeUrl,
    pub(super) bodies: Vec<Arc<Body>>,
}

impl PollResponse {
    /// S41: the `DiscoveryResponse` in proto3 JSON, converted from the bytes that a stream would
    /// send.
    ///
    /// # Errors
    /// JSON cannot represent a resource (the error names the first one), the answer exceeds
    /// `limit`, or all answers together exceed the budget.
    pub(super) fn to_json(
        &self,
        wire: Bytes,
        descriptors: &Descriptors,
        snapshot: &Snapshot,
        limit: usize,
        reservation: &mut Reservation,
    ) -> Result<Vec<u8>, PollError> {
        let head = json!({ "versionInfo": self.version, "typeUrl": self.type_url.as_str() });
        let mut text = head.to_string().into_bytes();
        text.pop();
        text.extend_from_slice(b",\"resources\":[");
        let response = DiscoveryResponse::decode(wire)
            .expect("the bodies of a machine are encoded fields of a DiscoveryResponse");
        for (at, any) in response.resources.into_iter().enumerate() {
            if at > 0 {
                text.push(b',');
            }
            json::write_any(&any, descriptors, &mut text).map_err(|error| PollError::Resource {
                type_url: self.type_url.clone(),
                name: self.name_of(&any, snapshot),
                error,
            })?;
            if text.len() > limit {
                return Err(PollError::AnswerTooLarge { type_url: self.type_url.clone(), limit });
            }
            reservation.grow_to(text.len())?;
        }
        text.extend_from_slice(b"]}");
        Ok(text)
    }

    /// The bytes that a stream would send.
    pub(super) fn wire(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.bodies.iter().map(|body| body.len()).sum());
        for chunk in self.bodies.iter().flat_map(|body| body.chunks()) {
            bytes.extend_from_slice(chunk);
        }
        bytes.freeze()
    }

    /// The name of a resource, for the error. The payload may be unreadable, so the name is looked
    /// up in the snapshot.
    fn name_of(&self, any: &Any, snapshot: &Snapshot) -> ResourceName {
        if any.type_url == type_url::RESOURCE {
            let wrapper = Resource::decode(any.value.clone()).unwrap_or_default();
            return wrapper.resource_name.unwrap_or_default().name.as_str().into();
        }
        let names = snapshot.of_type(&self.type_url).into_iter().flat_map(|resources| resources.iter());
        let mut variants = names.flat_map(|(_, variants)| variants.iter());
        let found = variants.find(|variant| *variant.payload() == any.value);
        found.map_or_else(|| "".into(), |variant| variant.name().clone())
    }
}
