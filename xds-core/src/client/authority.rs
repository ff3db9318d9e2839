//! Which of its servers an authority uses (C15, C16).

use std::sync::Arc;

use super::config::AuthorityConfig;
use super::resource_failure::ResourceFailure;
use super::resource_state::ResourceState;

/// One authority, and which of its servers are in use.
#[derive(Debug)]
pub(super) struct Authority {
    pub(super) config: AuthorityConfig,
    /// The last server in use, as an index into its configured servers. The servers before it
    /// failed; the client keeps trying to reach them (P4.6).
    pub(super) active: usize,
    /// How many watches have watchers.
    pub(super) entries: usize,
    /// When no server in use can be reached (C15, P4.5): the error that its watchers see.
    pub(super) outage: Option<Arc<ResourceFailure>>,
}

impl Authority {
    pub(super) fn new(config: AuthorityConfig) -> Self {
        Self { config, active: 0, entries: 0, outage: None }
    }

    /// The servers in use: those that the client subscribes on.
    pub(super) fn in_use(&self) -> &[usize] {
        let end = (self.active + 1).min(self.config.servers.len());
        &self.config.servers[..end]
    }

    pub(super) fn uses(&self, server: usize) -> bool {
        self.in_use().contains(&server)
    }

    /// C15: whether it also uses servers after this one, which may replace what this one sent.
    pub(super) fn falls_back_from(&self, server: usize) -> bool {
        self.uses(server) && self.in_use().last() != Some(&server)
    }

    /// P4.6: whether the state of a resource comes from a server that is no longer in use.
    pub(super) fn is_from_unused(&self, state: &ResourceState) -> bool {
        state.server.is_some_and(|server| !self.uses(server))
    }

    /// The server to use when all servers in use have failed.
    pub(super) fn next(&self) -> Option<usize> {
        self.config.servers.get(self.active + 1).copied()
    }

    /// P4.6: when a server before the active one sends a resource, the authority uses it again, and
    /// no longer the servers after it. Returns whether the active server changed.
    pub(super) fn return_to(&mut self, server: usize) -> bool {
        let at = self.in_use().iter().position(|used| *used == server);
        let Some(at) = at.filter(|at| *at < self.active) else { return false };
        self.active = at;
        true
    }
}
