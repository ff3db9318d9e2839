//! The responses that are sent for one type, and the client's ACKs and NACKs.

use std::sync::Arc;
use std::time::Duration;

use super::contents::ResponseContents;
use super::in_flight::ResponsePart;
use super::response::{Response, Verdict};
use super::type_state::TypeState;
use crate::cache::{Snapshot, Spans};
use crate::name::{Nonce, Version};
use crate::protocol::Protocol;
use crate::wire::{Body, ResourceKey};

impl TypeState {
    /// Records a response and returns it: the body of resources, and bodies that go with it. G10,
    /// D32: a response that is too large for one message is sent in parts. A full state cannot be,
    /// as a part would delete the other resources (T39).
    pub(super) fn send(
        &mut self,
        now: Duration,
        nonce: Nonce,
        version: Version,
        (resources, besides): (Arc<Body>, Vec<Arc<Body>>),
        contents: ResponseContents,
        snapshot: &Snapshot,
    ) -> Response {
        self.sent_version = (self.terms.protocol == Protocol::Sotw).then_some(version);
        let is_whole = matches!(contents, ResponseContents::FullState);
        let mut parts = if is_whole { vec![(resources, None)] } else { resources.parts() };
        let (first, mut after) = parts.remove(0);
        let first_contents = after.as_ref().map(|until| contents.part(None, Some(until)));
        let (mut bodies, mut later_parts) = (vec![first], Vec::new());
        for (body, until) in parts {
            let (contents, brings) = (contents.part(after.as_ref(), until.as_ref()), Spans::default());
            later_parts.push(ResponsePart { version, bodies: vec![body], contents, brings });
            after = until;
        }
        later_parts.last_mut().map_or(&mut bodies, |last| &mut last.bodies).extend(besides);
        let has_parts = !later_parts.is_empty();
        self.sent(now, nonce, first_contents.unwrap_or(contents), later_parts, snapshot);
        self.terms.response(nonce, version, bodies, has_parts)
    }

    /// Records a response and its later parts.
    pub(super) fn sent(
        &mut self,
        now: Duration,
        nonce: Nonce,
        contents: ResponseContents,
        later_parts: Vec<ResponsePart>,
        snapshot: &Snapshot,
    ) {
        if self.responses.rejections().have_groups() {
            let mut responses = std::mem::take(&mut self.responses);
            let is_live = |key: &ResourceKey| self.resolve(snapshot).with_key(key).is_some();
            for contents in std::iter::once(&contents).chain(later_parts.iter().map(|part| &part.contents)) {
                responses.rejections_mut().supersede(contents, is_live);
            }
            self.responses = responses;
        }
        self.responses.sent(now, nonce, contents, later_parts, self.holding.cursor());
    }

    /// The next part of a response that was too large for one message (D32).
    pub(super) fn next_part(&mut self, now: Duration, nonce: Nonce) -> Option<Response> {
        let ResponsePart { version, bodies, .. } = self.responses.next_part(now, nonce)?;
        Some(self.terms.response(nonce, version, bodies, self.responses.in_flight().has_parts()))
    }

    /// Records an ACK or NACK. `None` when the nonce is not one of a response that waits for its
    /// answer (D5). Neither an ACK nor a NACK causes a response (S6), but after an ACK some
    /// resources may have to be sent again (D8).
    pub(super) fn record_answer(&mut self, nonce: Nonce, error_detail: Option<String>) -> Option<Verdict> {
        let type_url = self.terms.type_url.clone();
        match error_detail {
            None => self
                .responses
                .on_ack(nonce, self.terms.protocol)
                .then_some(Verdict::Acked { type_url, nonce }),
            Some(detail) => {
                let is_known = self.responses.on_nack(nonce, &detail);
                self.forget_uncovered();
                is_known.then_some(Verdict::Nacked { type_url, nonce, detail })
            }
        }
    }
}
