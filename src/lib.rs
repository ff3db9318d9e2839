#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub use xds_core::matching;
pub use xds_core::server::{
    ReportStatus, ResourceReport, Serving, StreamConfig, TypeConfig, TypeReport, Verdict,
};
pub use xds_core::{
    Access, Audience, AudienceError, Cache, Candidate, ChangedVariant, ClientName, ClientOutcome, Code,
    Commit, CommitError, CommitEvent, CommitOrigin, CommitOutcome, Commits, Constraints, Delivery,
    LocatorStatus, MetadataKeys, NamePatterns, NamedPath, OnChange, OnDemandSubscription,
    OnDemandSubscriptions, Outcome, ParameterMapping, Parameters, RefusedChange, RequestedRollout, Resource,
    ResourceError, ResourceName, Revision, RolloutCounts, RolloutPlan, RolloutSteps, Snapshot, Source,
    Transaction, TypeUrl, Variant, VariantId, VariantSet, Variants, Version, printable, printable_lines,
    shortened,
};
pub use xds_proto::type_url;
pub use xds_server::skim::Client as StreamClient;
pub use xds_server::{
    Authorizer, ClientList, ClientStream, ConnectedClient, ConnectionEnd, Denied, Event, HandshakeFailure,
    Identity, LastNack, Node, NodeParameters, Observer, ParameterFunction, Peer, Readiness, Reading, Refusal,
    RefusedRollout, RejectedVariant, Rejections, Reloads, ResponseCounts, RolloutStatus, Rollouts,
    RunningRollout, ServeError, Server, ServerConfig, StandingNack, Stopping, TRACE_TARGET, applied, listen,
    trace_commits,
};

#[cfg(feature = "tls")]
pub use xds_server::{Tls, TlsError, TlsFiles};

#[cfg(feature = "client")]
pub use xds_client as client;

#[cfg(feature = "admin")]
pub mod admin;
pub mod explain;
#[cfg(feature = "cli")]
pub mod field_converter;
#[cfg(feature = "folder")]
pub mod folder;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "rest")]
pub mod rest;
pub mod source;
#[cfg(feature = "cli")]
pub mod store_changes;
pub mod testing;
pub mod type_name;

/// The code of these pages is compiled and run, like the code of README.md.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../docs/embedding.md")]
    mod embedding {}
    #[doc = include_str!("../docs/rollouts.md")]
    mod rollouts {}
    #[doc = include_str!("../docs/migrating.md")]
    mod migrating {}
}
