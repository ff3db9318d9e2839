//! The state of everything that is watched (C19).

use std::sync::Arc;

use super::accepted::Accepted;
use super::resource_failure::ResourceFailure;
use super::resource_state::{ResourceState, ResourceStatus};
use super::watched_type::{WatchEntry, WatchedType};
use super::{Client, WatchId};
use crate::cache::LocatorStatus;
use crate::code::Code;
use crate::name::{ResourceName, TypeUrl};
use crate::parameters::Parameters;

/// The state of one watched resource, for CSDS and metrics (C19).
#[derive(Debug, Clone)]
pub struct Report {
    /// Its type.
    pub type_url: TypeUrl,
    /// Its name. A glob or wildcard has one report per member.
    pub name: ResourceName,
    /// The parameters of the watch.
    pub parameters: Parameters,
    /// Its status.
    pub status: ResourceStatus,
    /// The variant in use.
    pub copy: Option<Arc<Accepted>>,
    /// The newest version that the server gave the variant in use.
    pub version: Option<Arc<str>>,
    /// Its error.
    pub error: Option<Arc<ResourceFailure>>,
}

impl Client {
    /// The answer of the servers to a watch, if it is not a resource. `None` while there is no
    /// answer, and when a server sent the resource.
    #[must_use]
    pub(crate) fn answer(&self, watch: WatchId) -> Option<LocatorStatus> {
        let entry = self.store.entry(watch);
        let ResourceState { status, error, .. } = &entry.state;
        let failed = |code| {
            let text = error.as_ref().map(|error| Arc::clone(&error.message));
            Some(LocatorStatus::Failed { code, message: text.unwrap_or_default() })
        };
        match status {
            ResourceStatus::Requested => None,
            ResourceStatus::Acked => entry.is_collection().then_some(LocatorStatus::Complete),
            ResourceStatus::DoesNotExist => Some(LocatorStatus::Complete),
            ResourceStatus::Nacked | ResourceStatus::Timeout => failed(Code::UNAVAILABLE),
            ResourceStatus::ReceivedError => match error.as_ref().map(|error| error.code) {
                // An error of a collection says that nobody knows what is in it.
                Some(Code::NOT_FOUND) if !entry.is_collection() => Some(LocatorStatus::Complete),
                code => failed(code.unwrap_or(Code::UNAVAILABLE)),
            },
        }
    }

    /// Whether a watch has an answer: a resource, its absence, an error, or the end of its timer.
    #[must_use]
    pub(crate) fn is_answered(&self, watch: WatchId) -> bool {
        self.store.entry(watch).state.status != ResourceStatus::Requested
    }

    /// Everything that is watched, in the order of types, names and parameters (C19).
    #[must_use]
    pub fn report(&self) -> Vec<Report> {
        let mut reports = Vec::new();
        for of_type in &self.store.types {
            for (_, entry) in of_type.entries.iter().filter(|(_, entry)| entry.watchers > 0) {
                match &entry.members {
                    None => reports.push(report(of_type, entry, &entry.name, &entry.state)),
                    Some(members) => {
                        let members = members.iter();
                        reports.extend(members.map(|(name, state)| report(of_type, entry, name, state)));
                    }
                }
            }
        }
        let place = |one: &Report, other: &Report| {
            let names = one.type_url.cmp(&other.type_url).then_with(|| one.name.cmp(&other.name));
            // Any stable order will do, as parameters have no natural order.
            names.then_with(|| one.parameters.iter().cmp(other.parameters.iter()))
        };
        reports.sort_by(place);
        reports
    }
}

fn report(of_type: &WatchedType, entry: &WatchEntry, name: &ResourceName, state: &ResourceState) -> Report {
    let copy = state.copy.clone();
    let stored = |copy: &Arc<Accepted>| {
        let named = of_type.names.get(copy.name())?;
        let stored = named.variants.iter().find(|stored| Arc::ptr_eq(&stored.accepted, copy))?;
        Some(Arc::clone(&stored.version))
    };
    Report {
        type_url: of_type.type_url.clone(),
        name: name.clone(),
        parameters: entry.parameters.clone(),
        status: state.status,
        version: copy.as_ref().map(|copy| stored(copy).unwrap_or_else(|| Arc::clone(&copy.version))),
        copy,
        error: state.error.clone(),
    }
}
