//! Hash tables, and hashes of content.
#![expect(clippy::disallowed_types, reason = "the other modules use the tables of this one")]

use std::collections;
use std::hash::{BuildHasher, Hash};
use std::sync::OnceLock;

use ahash::{AHasher, RandomState};

/// Seeds the hash tables of this crate that are made from now on. Only the first call in a process
/// counts.
///
/// Peers choose keys of these tables: clients of a proxy subscribe to names, and servers send names
/// and constraints. With a known seed, a peer could choose keys that collide, so that each look-up
/// compares many of them. This crate has no entropy, so the program gives it a hasher with random
/// keys. The servers, clients and proxies of `xds-server` and `xds-client` do so when they are made;
/// other programs that use this crate should do it first. No output depends on the seed.
///
/// ```
/// xds_core::seed_tables(&std::hash::RandomState::new());
/// ```
pub fn seed_tables(random: &impl BuildHasher) {
    SEEDS.set(random);
}

/// The seeds of the process, or of a test.
#[derive(Debug)]
struct Seeds(OnceLock<[u64; 4]>);

static SEEDS: Seeds = Seeds(OnceLock::new());

impl Seeds {
    fn set(&self, random: &impl BuildHasher) {
        self.0.get_or_init(|| [0_u64, 1, 2, 3].map(|number| random.hash_one(number)));
    }

    fn table_state(&self) -> TableState {
        TableState(seeded(self.0.get().unwrap_or(&CONSTANT_SEEDS)))
    }
}

/// ahash with the seeds of the process.
#[derive(Debug, Clone)]
pub(crate) struct TableState(RandomState);

impl Default for TableState {
    fn default() -> Self {
        SEEDS.table_state()
    }
}

impl BuildHasher for TableState {
    type Hasher = AHasher;

    fn build_hasher(&self) -> AHasher {
        self.0.build_hasher()
    }
}

/// A hash table with the seeds of the process; clippy refuses every other one.
pub(crate) type HashMap<K, V> = collections::HashMap<K, V, TableState>;
/// A set with the seeds of the process.
pub(crate) type HashSet<T> = collections::HashSet<T, TableState>;
/// A persistent hash table with the seeds of the process.
pub(crate) type HashTrieMap<K, V> = rpds::HashTrieMapSync<K, V, TableState>;

pub(crate) fn empty_map<K: Eq + Hash, V>() -> HashTrieMap<K, V> {
    HashTrieMap::new_with_hasher_and_degree_and_ptr_kind(TableState::default(), DEGREE)
}

/// The largest number of children of a node of a persistent table. A commit copies the nodes on the
/// way to a key, and writes to the reference counter of each child of these nodes, which is rarely in
/// a CPU cache. In a table of 100,000 names these are about 65 counters with 16, and 150 with 64
/// children. A look-up visits two nodes more.
const DEGREE: u8 = 16;

/// A hash that is equal in every process. It is not for tables.
pub(crate) fn constant_hash(of: &impl Hash) -> u64 {
    seeded(&CONSTANT_SEEDS).hash_one(of)
}

fn seeded(&[one, two, three, four]: &[u64; 4]) -> RandomState {
    RandomState::with_seeds(one, two, three, four)
}

const CONSTANT_SEEDS: [u64; 4] = [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344];

/// The first 128 bits of a BLAKE3 digest.
pub(crate) fn digest(hasher: &blake3::Hasher) -> u128 {
    let digest = hasher.finalize();
    u128::from_be_bytes(*digest.as_bytes().first_chunk().expect("a digest has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_the_first_seeds_and_a_constant_hash_has_none() {
        let (seeds, constant) = (Seeds(OnceLock::new()), constant_hash(&"a"));
        assert_eq!(seeds.table_state().hash_one("a"), constant);
        seeds.set(&seeded(&[1, 2, 3, 4]));
        let hash = seeds.table_state().hash_one("a");
        assert_ne!(hash, constant);
        seeds.set(&seeded(&[5, 6, 7, 8]));
        assert_eq!(seeds.table_state().hash_one("a"), hash);
        assert_eq!(constant_hash(&"a"), constant);
    }
}
