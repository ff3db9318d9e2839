//! Which of its servers an authority uses (C15, C16).

use std::sync::Arc;

use super::config::AuthorityConfig;
use super::resource_failure::ResourceFailure;
use super::resource_state::ResourceState;

/// One authority: its servers in order, down to the one that is in use.
#[derive(Debug)]
pub(super) struct Authority {
    pub(super) config: AuthorityConfig,
    /// The last of its servers that is asked. Those before it failed and are tried on (P4.6).
    pub(super) active: usize,
    /// How many things are watched.
    pub(super) entries: usize,
    /// None of the servers in use can be reached: what watchers are told (C15, P4.5).
    pub(super) outage: Option<Arc<ResourceFailure>>,
}

impl Authority {
    pub(super) fn new(config: AuthorityConfig) -> Self {
        Self { config, active: 0, entries: 0, outage: None }
    }

    /// The servers that are asked.
    pub(super) fn in_use(&self) -> &[usize] {
        let end = (self.active + 1).min(self.config.servers.len());
        &self.config.servers[..end]
    }

    pub(super) fn uses(&self, server: usize) -> bool {
        self.in_use().contains(&server)
    }

    /// P4.6: whether only a server spoke of something that is not asked any more.
    pub(super) fn is_from_unused(&self, state: &ResourceState) -> bool {
        state.server.is_some_and(|server| !self.uses(server))
    }

    /// The server that is asked when the one in use last fails.
    pub(super) fn next(&self) -> Option<usize> {
        self.config.servers.get(self.active + 1).copied()
    }

    /// P4.6: a resource came from this server, so those after it are left.
    pub(super) fn return_to(&mut self, server: usize) -> bool {
        let at = self.in_use().iter().position(|used| *used == server);
        let Some(at) = at.filter(|at| *at < self.active) else { return false };
        self.active = at;
        true
    }
}
