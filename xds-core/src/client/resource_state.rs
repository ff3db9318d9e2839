//! What is known of one watched resource: the table of gRFC A88 (P1).
//!
//! A watcher sees a [`ResourceView`]: a copy, an error, both or neither. Both is an ambient error: keep
//! using the copy. What follows from an event is said once, here; who is to be told is found by
//! comparing views.

use std::sync::Arc;

use super::accepted::Accepted;
use super::resource_failure::ResourceFailure;
use crate::code::Code;

/// How a resource stands, with the numbers of `ClientResourceStatus` (C19).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceStatus {
    /// Asked for, or to be asked for, and nothing known yet.
    #[default]
    Requested = 1,
    /// There is none. A copy may be kept in spite of that (P1.9).
    DoesNotExist = 2,
    /// In use.
    Acked = 3,
    /// What came last was not valid; a copy from before may be in use.
    Nacked = 4,
    /// The server told an error; a copy from before may be in use.
    ReceivedError = 5,
    /// Nothing came in time, from a server that would have told an absence (C6).
    Timeout = 6,
}

/// What a server promises about errors, by its features in the bootstrap file (C6, C9).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ErrorPolicy {
    /// Data errors, the deletion of a resource among them, drop the copy. Default: they keep it.
    pub fail_on_data_errors: bool,
    /// An answer that does not come says nothing about the resource, and has 30 s instead of 15.
    pub resource_timer_is_transient_error: bool,
}

/// What a watcher of one resource sees.
#[derive(Debug, Clone, Default)]
pub struct ResourceView {
    /// What to use.
    pub copy: Option<Arc<Accepted>>,
    /// Beside a copy: what is wrong although it is to be used. Without one: why there is none (C8).
    pub error: Option<Arc<ResourceFailure>>,
    /// Of a glob or wildcard: its server said what belongs to it.
    pub is_complete: bool,
}

/// What is known of one resource that is watched.
#[derive(Debug, Clone, Default)]
pub(super) struct ResourceState {
    pub(super) status: ResourceStatus,
    pub(super) copy: Option<Arc<Accepted>>,
    /// The server that spoke of it last; none of what was restored.
    pub(super) server: Option<usize>,
    /// What went wrong with the resource; goes with the status.
    pub(super) error: Option<Arc<ResourceFailure>>,
    /// No server can be reached; says nothing about the resource.
    pub(super) outage: Option<Arc<ResourceFailure>>,
}

impl ResourceState {
    /// P1.17
    pub(super) fn on_resource(&mut self, accepted: Arc<Accepted>) {
        self.status = ResourceStatus::Acked;
        self.copy = Some(accepted);
        self.error = None;
    }

    /// P1.5, P1.6, P1.7: what came is not valid.
    pub(super) fn on_nack(&mut self, failure: Arc<ResourceFailure>, policy: ErrorPolicy) {
        self.on_data_error(ResourceStatus::Nacked, failure, policy);
    }

    /// P1.9, P1.10: the server has none. Also without a copy: then the resource is known not to
    /// exist.
    pub(super) fn on_absence(&mut self, failure: Arc<ResourceFailure>, policy: ErrorPolicy) {
        self.on_data_error(ResourceStatus::DoesNotExist, failure, policy);
    }

    /// P1.11 to P1.15: the server told an error of the resource (C11).
    pub(super) fn on_error(&mut self, failure: Arc<ResourceFailure>, policy: ErrorPolicy) {
        let is_data_error = failure.code.is_data_error();
        self.on_data_error(
            ResourceStatus::ReceivedError,
            failure,
            ErrorPolicy { fail_on_data_errors: policy.fail_on_data_errors && is_data_error, ..policy },
        );
    }

    /// P1.8: nothing came in time (C5, C6).
    ///
    /// A copy that the server did not confirm, restored or from another one, is then as good as
    /// deleted.
    pub(super) fn on_timer(&mut self, failure: Arc<ResourceFailure>, policy: ErrorPolicy) {
        if policy.resource_timer_is_transient_error {
            self.status = ResourceStatus::Timeout;
            self.error = Some(failure);
        } else {
            self.on_absence(failure, policy);
        }
    }

    /// S38: the server itself said how long the copy may be used, so nothing keeps it.
    pub(super) fn on_expiry(&mut self, failure: Arc<ResourceFailure>) {
        self.copy = None;
        self.status = ResourceStatus::DoesNotExist;
        self.error = Some(failure);
    }

    /// P1.16: the copy goes first, if it goes.
    fn on_data_error(&mut self, status: ResourceStatus, failure: Arc<ResourceFailure>, policy: ErrorPolicy) {
        if policy.fail_on_data_errors {
            self.copy = None;
        }
        self.status = status;
        self.error = Some(failure);
    }

    pub(super) fn view(&self) -> ResourceView {
        ResourceView {
            copy: self.copy.clone(),
            error: self.outage.as_ref().or(self.error.as_ref()).cloned(),
            is_complete: self.copy.is_none() && self.status == ResourceStatus::Acked,
        }
    }

    /// Whether another server may be needed for it (C15): a known absence counts as known, and so
    /// does what a glob or wildcard stands for once it was told.
    pub(super) fn is_missing(&self) -> bool {
        let is_known = matches!(self.status, ResourceStatus::DoesNotExist | ResourceStatus::Acked)
            || (self.status == ResourceStatus::ReceivedError
                && self.error.as_ref().is_some_and(|error| error.code == Code::NOT_FOUND));
        !is_known && self.copy.as_ref().is_none_or(|copy| copy.is_restored)
    }
}

impl ResourceView {
    /// Whether a watcher would be told nothing new (P1.19). An error in the same words may be a
    /// later one (P6.4).
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let same_copy = match (&self.copy, &other.copy) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        let same_error = match (&self.error, &other.error) {
            (Some(one), Some(other)) => one.is_same(other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        same_copy && same_error
    }
}

#[cfg(test)]
mod tests;
