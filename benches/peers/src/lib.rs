//! Sets of variants, and other engines that find a variant in them.
//!
//! | module | has |
//! | --- | --- |
//! | `workload` | the sets, with queries: the same in every run |
//! | `scan` | reading every variant, as text and as numbers |
//! | `tuple` | a hash table of exact values: the least that a lookup can cost |
//! | `atree` | the crate `a-tree`, which finds all matches among many expressions |
//! | `bdd` | the crate `biodivine-lib-bdd`: a binary decision diagram per variant |
#![forbid(unsafe_code)]

pub mod atree;
pub mod bdd;
pub mod dice;
pub mod scan;
pub mod tuple;
pub mod workload;
