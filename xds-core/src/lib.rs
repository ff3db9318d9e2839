//! The cache and the stream machines of an xDS control plane.
//!
//! A [`Transaction`] changes a [`Cache`]. The cache has an immutable [`Snapshot`] of its contents
//! and wakes the streams that a change affects. A machine of [`server`] is one stream: it takes
//! requests and returns the next response.
//!
//! This crate deliberately has no runtime, sockets, files, clock or random numbers. Time is an
//! argument, and the caller waits. So every rule of the protocol can be tested without a socket.
//!
//! ```
//! use std::time::Duration;
//! use xds_core::server::{DeltaRequest, Next, Protocol, Service, Stream, StreamConfig};
//! use xds_core::{Cache, Resource, Transaction};
//!
//! let cache = Cache::new();
//! let mut transaction = Transaction::new();
//! let payload = bytes::Bytes::from_static(b"any message");
//! transaction.put(Resource::new("example.com/acme.Thing", "a", payload)?);
//! cache.commit(transaction)?;
//!
//! let mut stream = Stream::new(cache.watch(), Service::Aggregated, Protocol::Delta, StreamConfig::default());
//! let request = DeltaRequest {
//!     type_url: "example.com/acme.Thing".into(),
//!     subscribe: vec!["a".into()].into(),
//!     ..DeltaRequest::default()
//! };
//! stream.on_request(Duration::ZERO, request)?;
//! let Next::Send(response) = stream.next(Duration::ZERO, &cache.snapshot()) else { panic!("it exists") };
//! assert_eq!(response.resources(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | `cache` | [`Cache`], [`Transaction`], [`Snapshot`]; which streams a change affects |
//! | [`server`] | a stream of a server, SotW or delta |
//! | [`client`] | the client of xDS servers |
//! | [`proxy`] | a caching proxy between the two |
//! | [`testing`] | a client in memory, for tests of control planes |
//! | [`subscription`] | the subscription of a stream to one type |
//! | `references` | the resources that a payload names |
//! | `field_path` | names in payloads of types that the tables do not have |
//! | `resource`, `variants` | a resource as a source commits it, and as the cache stores it |
//! | `payload` | the message in a resource, decoded once for all readers |
//! | `known_type` | how the protocol serves each type, as data |
//! | `constraint`, `parameters` | the condition of a variant, and the parameters of a subscription |
//! | [`matching`] | [`VariantSet`]: finds the variant for given parameters, and proves that no other one matches |
//! | `mapping` | derives parameters from the node, for clients that send none |
//! | [`when`], [`draft`] | two ways to write constraints: the `when:` syntax, and the draft form of TP2 |
//! | `name` | type URL, name, version, nonce, revision |
//! | [`RolloutMachine`] | rolls out what a source commits: more and more clients try it, until all get it |
//! | `printable` | escapes what texts of peers hide from people |
//! | `shortened` | shortens texts of peers for people |
//! | `protocol` | SotW or delta |
//! | `wire` | fields of encoded messages, and the encoded parts of a response |
//! | `xdstp` | new-style names ([`XdstpName`]): their parts, their canonical text, their globs |
#![forbid(unsafe_code)]

pub use access::{Access, NamePatterns};
pub use cache::{Audience, AudienceError, Candidate, RequestedRollout, RolloutPlan};
pub use cache::{
    Cache, ClientName, Commit, CommitError, Snapshot, Source, SubscriptionCounts, Transaction, TypeSnapshot,
    Watch,
};
pub use cache::{
    ChangedVariant, CommitCounts, CommitEvent, CommitOrigin, CommitOutcome, Commits, VARIANTS_LISTED,
};
pub use cache::{
    ClientOutcome, DECIDE_WITHIN, Delivery, FollowedCommit, Follower, NAMES_LISTED, Outcome, StreamOutcome,
};
pub use cache::{LocatorStatus, OnDemandSubscription, OnDemandSubscriptions};
pub use code::Code;
pub use constraint::{ConstraintError, ConstraintPath, Constraints, Formula, draft, when};
pub use field_path::FieldPath;
pub use hash::seed_tables;
pub use known_type::KnownType;
pub use mapping::{
    Derived, MetadataKeys, NamedPath, NamedPathError, ParameterMapping, SkippedMetadata, SkippedValue,
};
pub use matching::VariantSet;
pub use name::{Nonce, ResourceName, Revision, TypeUrl, Version};
pub use parameters::Parameters;
pub use payload::{Payload, Raw, ResourceType, decode_message};
pub use printable::{printable, printable_lines};
pub use references::target_of_field;
pub use resource::{PAYLOAD_LIMIT_BYTES, Resource, ResourceError, VariantId};
pub use rollout::{
    OnChange, RefusedChange, RolloutCounts, RolloutEvent, RolloutMachine, RolloutOrder, RolloutSteps,
    RunningCandidate,
};
pub use shortened::shortened;
pub use variants::{Decoded, Variant, Variants};
pub use xdstp::{XdstpError, XdstpName, XdstpUrl};

mod access;
mod cache;
pub mod client;
mod code;
mod constraint;
mod extras;
mod field_path;
mod hash;
mod known_type;
mod mapping;
pub mod matching;
mod name;
mod parameters;
mod payload;
mod printable;
mod protocol;
pub mod proxy;
mod references;
mod resource;
mod rollout;
pub mod server;
mod shortened;
pub mod subscription;
pub mod testing;
mod variants;
mod wire;
mod xdstp;
