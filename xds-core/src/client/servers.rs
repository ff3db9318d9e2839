//! The servers of a client, and which of them each authority uses.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use super::authority::Authority;
use super::config::{AuthorityConfig, ServerConfig};
use super::health::Health;
use super::upstream::Upstream;

/// The servers, and the authorities that use them.
#[derive(Debug)]
pub(super) struct Servers {
    /// In the order of [`ClientConfig::servers`](super::ClientConfig::servers).
    pub(super) upstreams: Vec<Upstream>,
    /// The first authority is the one of old-style names.
    pub(super) authorities: Vec<Authority>,
}

impl Servers {
    /// The servers, and the number of each configured authority by its name. `health`: of each server at
    /// first.
    pub(super) fn new(
        servers: Vec<ServerConfig>,
        health: impl Fn() -> Option<Health>,
        default_authority: AuthorityConfig,
        named: BTreeMap<String, AuthorityConfig>,
    ) -> (Self, BTreeMap<String, usize>) {
        let (mut authorities, mut numbers) = (vec![Authority::new(default_authority)], BTreeMap::new());
        for (name, authority) in named {
            numbers.insert(name, authorities.len());
            authorities.push(Authority::new(authority));
        }
        (
            Self {
                upstreams: servers.into_iter().map(|config| Upstream::new(config, health())).collect(),
                authorities,
            },
            numbers,
        )
    }

    /// C15: whether an authority uses this server, and servers after it too.
    pub(super) fn falls_back_from(&self, server: usize) -> bool {
        self.authorities.iter().any(|authority| authority.falls_back_from(server))
    }
}

impl Index<usize> for Servers {
    type Output = Upstream;

    fn index(&self, server: usize) -> &Upstream {
        &self.upstreams[server]
    }
}

impl IndexMut<usize> for Servers {
    fn index_mut(&mut self, server: usize) -> &mut Upstream {
        &mut self.upstreams[server]
    }
}
