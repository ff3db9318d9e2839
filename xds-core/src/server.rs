//! The server's side of one stream of either protocol.
//!
//! [`Stream`] takes requests and decides what to send now ([`Next`]). It has no socket, task or
//! clock. The caller asks it again when a request came, when [`Watch::woken`](crate::Watch::woken)
//! returned, and when the time of [`Next::Wait`] has come, and only when the transport has room. So
//! there is no queue, except for unsent parts of one response that is too large for one message
//! (D32), and each response is made from the newest snapshot.
//!
//! **A response is what a client should have, minus what it has, as far as the order allows.** Six
//! files say how:
//!
//! | file | contents |
//! | --- | --- |
//! | `stream` | the machine: requests in, responses out, type by type |
//! | `type_state` | one type: its subscription, and everything below |
//! | `resolution` | what the client should get: its subscription, resolved in a snapshot |
//! | `holding` | what the client has: the selection at its cursor, with exceptions |
//! | `diff` | what the client should have, minus what it has |
//! | `order` | when a type may send: make before break (S33) |
//!
//! SotW and delta differ in how a request edits the subscription, in what is sent whole, and in the
//! encoding: `sotw`, `delta`.

pub use client_group::ClientGroup;
pub use config::{Serving, StreamConfig, TypeConfig};
pub use report::{Rejection, ReportStatus, ResourceReport, Suspects, TypeReport};
pub use request::{DeltaRequest, Request, SotwRequest};
pub use response::{Continuation, DeniedNames, Next, Response, Service, StreamError, Verdict};
pub use stream::Stream;

pub use crate::protocol::Protocol;
pub use crate::wire::Body;

#[cfg(test)]
mod access_tests;
mod answers;
#[cfg(test)]
mod attribution_tests;
mod client_group;
mod config;
mod contents;
mod covering;
mod delta;
mod diff;
#[cfg(test)]
mod edges_tests;
mod encode;
#[cfg(test)]
mod endless_tests;
mod entries;
#[cfg(test)]
mod errors_tests;
#[cfg(test)]
pub(crate) mod fixture;
mod holding;
mod in_flight;
mod in_use;
#[cfg(test)]
mod locators_tests;
#[cfg(test)]
mod names_tests;
mod order;
mod owed;
mod parts;
mod published;
#[cfg(test)]
mod redirect_tests;
mod referrers_sent;
mod refresh;
mod rejections;
mod report;
mod request;
mod request_names;
mod resolution;
mod response;
mod responses;
mod retained;
mod send_times;
mod sotw;
#[cfg(test)]
mod sources_tests;
#[cfg(test)]
mod splitting_tests;
mod stream;
#[cfg(test)]
mod switch_tests;
mod terms;
#[cfg(test)]
mod ttl_tests;
mod turn;
mod type_state;
#[cfg(test)]
mod variants_tests;
mod virtual_hosts;
mod waiting;
