//! Tells people which types a server does not serve, and when it serves them again (G4b).

use std::collections::BTreeSet;
use std::sync::Arc;

use tracing::{info, warn};
use xds_core::TypeUrl;
use xds_core::client::Client as Machine;

use crate::hub::Hub;

/// The types that one server is known not to serve.
pub(crate) struct RefusedTypes {
    server: usize,
    name: Arc<str>,
    known: BTreeSet<TypeUrl>,
}

impl RefusedTypes {
    pub(crate) fn new(server: usize, name: &Arc<str>) -> Self {
        Self { server, name: Arc::clone(name), known: BTreeSet::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Notes what changed with an event. A type that is tried again is neither refused nor served.
    pub(crate) fn follow(&mut self, hub: &Hub) {
        let server = self.server;
        let read = |machine: &Machine| {
            let health = machine.health(server)?;
            let refused =
                health.states().filter_map(|(of, _)| Some((of.clone(), health.refusal(of)?.clone())));
            let served = health.states().filter(|(_, state)| state.is_readable()).map(|(of, _)| of.clone());
            Some((refused.collect::<Vec<_>>(), served.collect::<Vec<_>>()))
        };
        let Some((refused, served)) = hub.read(read).flatten() else { return };
        for (type_url, status) in refused {
            let r#type = type_url.message_name();
            if self.known.insert(type_url.clone()) {
                warn!(server = %self.name, r#type, %status, "the server does not serve the type; its others go on");
            }
        }
        for type_url in served {
            if self.known.remove(&type_url) {
                info!(server = %self.name, r#type = type_url.message_name(), "the server serves the type again");
            }
        }
    }
}
