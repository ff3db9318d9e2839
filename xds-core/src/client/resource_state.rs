//! The state of one watched resource, and how each event changes it: the table of gRFC A88 (P1).
//!
//! A watcher sees a [`ResourceView`]: a copy, an error, both or neither. An error beside a copy is
//! an ambient error: keep using the copy. To find out whether watchers must be notified of an
//! event, compare the views before and after it.

use std::sync::Arc;

use super::accepted::Accepted;
use super::resource_failure::ResourceFailure;
use crate::code::Code;

/// The status of a watched resource, with the numbers of `ClientResourceStatus` (C19).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceStatus {
    /// Requested, or about to be requested; no server has sent it or reported on it yet.
    #[default]
    Requested = 1,
    /// It does not exist. A copy may be kept in spite of that (P1.9).
    DoesNotExist = 2,
    /// In use.
    Acked = 3,
    /// The resource that came last was rejected; an older copy may be in use.
    Nacked = 4,
    /// The server reported an error for it; an older copy may be in use.
    ReceivedError = 5,
    /// It did not come in time, from a server whose silence does not mean absence (C6).
    Timeout = 6,
}

/// How to treat errors from a server, by its features in the bootstrap file (C6, C9).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ErrorPolicy {
    /// Whether a data error, such as the deletion of a resource, drops the copy. Default: the copy
    /// is kept.
    pub fail_on_data_errors: bool,
    /// Whether a missing response means a transient error, not an absent resource. The timeout is
    /// then 30 s instead of 15 s.
    pub resource_timer_is_transient_error: bool,
}

/// The view of one resource that its watchers have.
#[derive(Debug, Clone, Default)]
pub struct ResourceView {
    /// The resource to use.
    pub copy: Option<Arc<Accepted>>,
    /// With a copy: an ambient error, so keep using the copy. Without a copy: why there is none
    /// (C8).
    pub error: Option<Arc<ResourceFailure>>,
    /// For a glob or wildcard: whether its server has sent the list of members.
    pub is_complete: bool,
}

/// The state of one watched resource, or of one glob or wildcard as a whole.
#[derive(Debug, Clone, Default)]
pub(super) struct ResourceState {
    pub(super) status: ResourceStatus,
    /// The variant that watchers use.
    pub(super) copy: Option<Arc<Accepted>>,
    /// The last server that sent it or reported on it; `None` for a restored resource.
    pub(super) server: Option<usize>,
    /// The error of the resource that belongs to the status.
    pub(super) error: Option<Arc<ResourceFailure>>,
    /// During an outage (P4.5): the error of the servers. It hides `error` in the view, and does
    /// not change the status.
    pub(super) outage: Option<Arc<ResourceFailure>>,
}

impl ResourceState {
    /// P1.17: a valid resource came, and clears the error.
    pub(super) fn on_resource(&mut self, accepted: Arc<Accepted>) {
        self.status = ResourceStatus::Acked;
        self.copy = Some(accepted);
        self.error = None;
    }

    /// P1.5, P1.6, P1.7: the resource that came was rejected.
    pub(super) fn on_nack(&mut self, failure: Arc<ResourceFailure>, policy: ErrorPolicy) {
        self.on_data_error(ResourceStatus::Nacked, failure, policy);
    }

    /// P1.9, P1.10: the resource does not exist on the server, whether or not there was a copy.
    pub(super) fn on_absence(&mut self, failure: Arc<ResourceFailure>, policy: ErrorPolicy) {
        self.on_data_error(ResourceStatus::DoesNotExist, failure, policy);
    }

    /// P1.11 to P1.15: the server reported an error for the resource (C11).
    pub(super) fn on_error(&mut self, failure: Arc<ResourceFailure>, policy: ErrorPolicy) {
        let is_data_error = failure.code.is_data_error();
        self.on_data_error(
            ResourceStatus::ReceivedError,
            failure,
            ErrorPolicy { fail_on_data_errors: policy.fail_on_data_errors && is_data_error, ..policy },
        );
    }

    /// P1.8: the resource did not come in time (C5, C6).
    ///
    /// The server then has not confirmed a copy that was restored or came from another server. With
    /// C5 such a copy is treated as deleted.
    pub(super) fn on_timer(&mut self, failure: Arc<ResourceFailure>, policy: ErrorPolicy) {
        if policy.resource_timer_is_transient_error {
            self.status = ResourceStatus::Timeout;
            self.error = Some(failure);
        } else {
            self.on_absence(failure, policy);
        }
    }

    /// S38: the TTL ended. The server has limited the use of the copy, so it is dropped under every
    /// policy.
    pub(super) fn on_expiry(&mut self, failure: Arc<ResourceFailure>) {
        self.copy = None;
        self.status = ResourceStatus::DoesNotExist;
        self.error = Some(failure);
    }

    /// P1.16: drops the copy before it sets the error, if the policy drops copies.
    fn on_data_error(&mut self, status: ResourceStatus, failure: Arc<ResourceFailure>, policy: ErrorPolicy) {
        if policy.fail_on_data_errors {
            self.copy = None;
        }
        self.status = status;
        self.error = Some(failure);
    }

    /// What watchers see of this state.
    pub(super) fn view(&self) -> ResourceView {
        ResourceView {
            copy: self.copy.clone(),
            error: self.outage.as_ref().or(self.error.as_ref()).cloned(),
            is_complete: self.copy.is_none() && self.status == ResourceStatus::Acked,
        }
    }

    /// Whether another server may be needed for it (C15). An absence that a server reported is not
    /// missing, nor is a glob or wildcard whose members a server has sent.
    pub(super) fn is_missing(&self) -> bool {
        let is_known = matches!(self.status, ResourceStatus::DoesNotExist | ResourceStatus::Acked)
            || (self.status == ResourceStatus::ReceivedError
                && self.error.as_ref().is_some_and(|error| error.code == Code::NOT_FOUND));
        !is_known && self.copy.as_ref().is_none_or(|copy| copy.is_restored)
    }
}

impl ResourceView {
    /// Whether a change from one to the other is no news for a watcher (P1.19). An error with the
    /// same code and message is no news, although it may be a later error (P6.4).
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
