//! Hashes of table keys and of content.

use std::hash::BuildHasher;

use ahash::{AHasher, RandomState};

/// ahash with constant seeds, because this crate has no entropy. Resources, and the subscriptions
/// of our own client, fill the tables. Clients of a server only look up, so they cannot make keys
/// collide.
#[derive(Debug, Clone)]
pub(crate) struct FixedState(RandomState);

impl Default for FixedState {
    fn default() -> Self {
        Self(RandomState::with_seeds(0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344))
    }
}

impl BuildHasher for FixedState {
    type Hasher = AHasher;

    fn build_hasher(&self) -> AHasher {
        self.0.build_hasher()
    }
}

/// The first 128 bits of a BLAKE3 digest.
pub(crate) fn digest(hasher: &blake3::Hasher) -> u128 {
    let digest = hasher.finalize();
    u128::from_be_bytes(*digest.as_bytes().first_chunk().expect("a digest has 32 bytes"))
}
