//! Properties that hold for any input of our parsers, wire readers, machines and the matching of
//! constraints.
//!
//! A *body* is a plain function over bytes. It panics when a property does not hold, and returns
//! whether the input was accepted. There are two callers:
//!
//! - `tests/bodies.rs` on stable, in each `cargo test`: the files of `corpus/<body>/`, then a
//!   [`Mutator`] for a second, or ten where the environment has `CI` (`XDS_FUZZ_SECONDS` overrides
//!   both). What was accepted is mutated further, which takes the place of coverage: valid inputs
//!   grow.
//! - `libfuzzer/`, a workspace of its own for long runs with coverage, on nightly with cargo-fuzz:
//!   `cargo +nightly fuzz run --fuzz-dir fuzz/libfuzzer constraints_when
//!   fuzz/corpus/constraints_when`.
//!
//! A test prints its seed before it starts, so that even a stack overflow can be replayed with
//! `XDS_FUZZ_SEED`. When a property fails, it prints the input. An input that failed once becomes a
//! file of the corpus, and a named test beside the code that was wrong.
//!
//! ```
//! assert!(xds_fuzz::constraints_when(b"env in (prod,canary), !beta"));
//! assert!(!xds_fuzz::constraints_when(b"env in prod"));
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `wire`, `when`, `draft` | the bodies for constraints, by what they are read from |
//! | `constraints` | what holds for all accepted constraints |
//! | `matching` | the body for sets of variants, with the limits that are in use |
//! | `names` | the body for new-style names |
//! | `bootstrap` | the body for bootstrap documents of clients |
//! | `last_good` | the body for last-known-good files |
//! | `requests` | the bodies for requests of streams |
//! | `clients` | the bodies for clients: what they watch, and servers that say anything |
//! | `streams` | the bodies for whole streams: clients, commits and time |
//! | `mutate` | inputs from inputs, by a seed |
#![forbid(unsafe_code)]

mod bootstrap;
mod clients;
mod constraints;
mod draft;
mod last_good;
mod matching;
mod mutate;
mod names;
mod requests;
mod streams;
mod when;
mod wire;

pub use bootstrap::bootstrap_json;
pub use clients::{client_delta, client_sotw};
pub use draft::constraints_draft;
pub use last_good::last_good_file;
pub use matching::variant_sets;
pub use mutate::Mutator;
pub use names::names_xdstp;
pub use requests::{requests_delta, requests_sotw};
pub use streams::{stream_delta, stream_sotw};
pub use when::constraints_when;
pub use wire::constraints_wire;

/// A function that panics when a property does not hold for an input, and returns whether the input
/// was accepted.
pub type Body = fn(&[u8]) -> bool;

/// All bodies, each with the name of its corpus and words of its input language.
pub const BODIES: &[(&str, Body, &[&[u8]])] = &[
    ("bootstrap_json", bootstrap_json, bootstrap::WORDS),
    ("client_delta", client_delta, clients::WORDS),
    ("client_sotw", client_sotw, clients::WORDS),
    ("constraints_wire", constraints_wire, wire::WORDS),
    ("constraints_draft", constraints_draft, draft::WORDS),
    ("constraints_when", constraints_when, when::WORDS),
    ("last_good_file", last_good_file, last_good::WORDS),
    ("names_xdstp", names_xdstp, names::WORDS),
    ("requests_delta", requests_delta, requests::WORDS),
    ("requests_sotw", requests_sotw, requests::WORDS),
    ("stream_delta", stream_delta, streams::WORDS),
    ("stream_sotw", stream_sotw, streams::WORDS),
    ("variant_sets", variant_sets, matching::WORDS),
];
