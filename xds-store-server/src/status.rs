//! Refusals as gRPC statuses with typed details.

use std::time::Duration;

use bytes::Bytes;
use prost::{Message, Name};
use tonic::{Code, Status};
use xds_proto::xds::store::v1 as proto;
use xds_proto::{Any, google};
use xds_store::commit::{RefusalCode, Refused};
use xds_store::engine::EngineError;
use xds_store::key::{KeyError, RecordKey};
use xds_store::read::ReadError;

use crate::access::Caller;
use crate::standing::{Condition, Standing};

use fit::Limits;

mod fit;

/// A status whose details hold a message: the trailer `grpc-status-details-bin` has a
/// `google.rpc.Status` with it.
pub(crate) fn with_detail<M: Message + Name>(code: Code, message: impl Into<String>, detail: &M) -> Status {
    let message = fit::message(message.into());
    let details = details_of(code, &message, detail);
    // ST54b: a client that gets more sees neither the code nor the message.
    let is_fitting = fit::fits(&message, &details);
    debug_assert!(is_fitting, "a detail of {} bytes", details.len());
    if is_fitting {
        Status::with_details(code, message, Bytes::from(details))
    } else {
        Status::new(code, message)
    }
}

fn details_of<M: Message + Name>(code: Code, message: &str, detail: &M) -> Vec<u8> {
    let details = google::rpc::Status {
        code: code.into(),
        message: message.to_owned(),
        details: vec![Any { type_url: M::type_url(), value: detail.encode_to_vec().into() }],
    };
    details.encode_to_vec()
}

/// A refusal with as many of these violations as fit.
pub(crate) fn with_violations(
    code: Code,
    message: impl Into<String>,
    violations: Vec<proto::Violation>,
) -> Status {
    let message = message.into();
    for limits in [Limits::WHOLE, Limits::SOME] {
        let refusal = fit::refusal(violations.clone(), limits);
        let is_enough = refusal.others == 0 || limits == Limits::SOME;
        if is_enough && fit::fits(&message, &details_of(code, &message, &refusal)) {
            return with_detail(code, message, &refusal);
        }
    }
    with_detail(code, Limits::LEAST.message(&message), &fit::refusal(violations, Limits::LEAST))
}

/// DEADLINE_EXCEEDED: it is committed. The response has what fits.
pub(crate) fn committed_only(message: String, response: proto::CommitResponse) -> Status {
    let proto::CommitResponse { revision, effect_count, acked_peers, .. } = &response;
    let (effect_count, acked_peers) = (*effect_count, *acked_peers);
    let response = if response.encoded_len() <= fit::DETAIL_LIMIT {
        response
    } else {
        proto::CommitResponse { revision: revision.clone(), effect_count, acked_peers, ..Default::default() }
    };
    with_detail(Code::DeadlineExceeded, message, &proto::Committed { response: Some(response) })
}

/// A refusal with one violation, which concerns no certain change.
pub(crate) fn refusal(
    code: Code,
    message: impl Into<String>,
    key: Option<proto::Key>,
    why: proto::violation::Why,
) -> Status {
    let message = message.into();
    let violation = proto::Violation { change: 0, key, message: message.clone(), why: Some(why) };
    with_violations(code, message, vec![violation])
}

/// INVALID_ARGUMENT because of a field.
pub(crate) fn invalid(field: &str, message: impl Into<String>) -> Status {
    let why = proto::violation::Why::Invalid(proto::Invalid { field: field.to_owned() });
    refusal(Code::InvalidArgument, message, None, why)
}

/// A key that is none.
pub(crate) fn invalid_key(key: proto::Key, error: &KeyError) -> Status {
    let why = proto::violation::Why::Invalid(proto::Invalid { field: "key".to_owned() });
    refusal(Code::InvalidArgument, error.to_string(), Some(key), why)
}

/// PERMISSION_DENIED because of a right (ST65).
pub(crate) fn lacks(right: &str, key: Option<proto::Key>, message: impl Into<String>) -> Status {
    let why = proto::violation::Why::Right(proto::RightMissing { right: right.to_owned() });
    refusal(Code::PermissionDenied, message, key, why)
}

/// RESOURCE_EXHAUSTED because of a limit (ST42).
pub(crate) fn exceeds(limit: &str, option: &str, value: usize, found: usize) -> Status {
    let why = proto::violation::Why::Limit(proto::LimitExceeded {
        limit: limit.to_owned(),
        option: option.to_owned(),
        value: value as u64,
        found: found as u64,
    });
    let cure = if option.is_empty() { String::new() } else { format!("; {option} changes it") };
    refusal(Code::ResourceExhausted, format!("{found} {limit} exceed the limit of {value}{cure}"), None, why)
}

/// UNAVAILABLE: retry later.
pub(crate) fn not_ready(standing: &Standing, message: impl Into<String>) -> Status {
    not_ready_in(standing.condition, message)
}

fn not_ready_in(condition: Condition, message: impl Into<String>) -> Status {
    let retry_after = prost_types::Duration { seconds: RETRY_AFTER.as_secs().cast_signed(), nanos: 0 };
    let detail = proto::NotReady { condition: condition.into(), retry_after: Some(retry_after) };
    with_detail(Code::Unavailable, message, &detail)
}

/// OUT_OF_RANGE with the floor (ST30).
pub(crate) fn compacted(floor: String) -> Status {
    let message = format!("revisions up to {floor} are forgotten: start again");
    with_detail(Code::OutOfRange, message, &proto::Compacted { floor })
}

pub(crate) fn of_read(error: &ReadError, printed: impl Fn(u64) -> String) -> Status {
    match error {
        ReadError::Compacted { floor } => compacted(printed(*floor)),
        ReadError::FormsChanged { revision, .. } => {
            let detail = proto::Compacted { floor: printed(*revision) };
            with_detail(Code::OutOfRange, fit::message(error.to_string()), &detail)
        }
        ReadError::Ahead { .. } | ReadError::Revision(_) => invalid("revision", error.to_string()),
        ReadError::Damaged(damaged) => Status::data_loss(fit::message(damaged.to_string())),
        ReadError::Engine(error) => of_engine(error),
        ReadError::Schema(refused) => refusal(
            if refused.is_unknown_major() { Code::Unimplemented } else { Code::FailedPrecondition },
            refused.to_string(),
            None,
            proto::violation::Why::Schema(refused.to_proto()),
        ),
        ReadError::Convert(error) => Status::failed_precondition(fit::message(error.to_string())),
        error => Status::internal(fit::message(error.to_string())),
    }
}

pub(crate) fn of_engine(error: &EngineError) -> Status {
    not_ready_in(Condition::ReadOnly, error.to_string())
}

/// The closed gates that a refusal names.
pub(crate) fn gates_of(refused: &Refused) -> impl Iterator<Item = &proto::ClosedGate> {
    refused.violations.iter().filter_map(|violation| match &violation.why {
        Some(proto::violation::Why::Gate(gate)) => Some(gate),
        _ => None,
    })
}

/// The refusal of a commit, with no more than the caller may read (ST54).
pub(crate) fn of_refused(why: Refused, standing: &Standing, caller: &Caller) -> Status {
    let Refused { code, violations, message } = why;
    let violations = readable(violations, caller);
    let first = violations.first().cloned().map(|violation| fit::short(violation, Limits::WHOLE).message);
    let message = first.map_or(message, |first| match violations.len() {
        1 => first,
        more => format!("{first} (and {} more)", more - 1),
    });
    if violations.is_empty() && code == RefusalCode::Unavailable {
        return not_ready(standing, message);
    }
    with_violations(code_of(code), message, violations)
}

/// Violations with no more than the caller may read (ST54).
pub(crate) fn readable(violations: Vec<proto::Violation>, caller: &Caller) -> Vec<proto::Violation> {
    violations.into_iter().map(|violation| shown(violation, caller)).collect()
}

pub(crate) fn code_of(code: RefusalCode) -> Code {
    match code {
        RefusalCode::InvalidArgument => Code::InvalidArgument,
        RefusalCode::PermissionDenied => Code::PermissionDenied,
        RefusalCode::AlreadyExists => Code::AlreadyExists,
        RefusalCode::NotFound => Code::NotFound,
        RefusalCode::Aborted => Code::Aborted,
        RefusalCode::FailedPrecondition => Code::FailedPrecondition,
        RefusalCode::DataLoss => Code::DataLoss,
        RefusalCode::Unimplemented => Code::Unimplemented,
        RefusalCode::ResourceExhausted => Code::ResourceExhausted,
        RefusalCode::Unavailable => Code::Unavailable,
        _ => Code::Unknown,
    }
}

/// The refusal that a status of another store has; `None`: it says nothing of that kind.
pub(crate) fn refused_by(status: &Status) -> Option<Refused> {
    let code = match status.code() {
        Code::InvalidArgument => RefusalCode::InvalidArgument,
        Code::PermissionDenied => RefusalCode::PermissionDenied,
        Code::NotFound => RefusalCode::NotFound,
        Code::FailedPrecondition => RefusalCode::FailedPrecondition,
        Code::ResourceExhausted => RefusalCode::ResourceExhausted,
        _ => return None,
    };
    let details = google::rpc::Status::decode(status.details()).ok()?.details;
    let detail = details.iter().find(|detail| detail.type_url == proto::Refusal::type_url())?;
    let proto::Refusal { violations, .. } = proto::Refusal::decode(&*detail.value).ok()?;
    Some(Refused { code, violations, message: status.message().to_owned() })
}

/// A violation without the keys that the caller may not read. Its own key is the caller's text.
fn shown(violation: proto::Violation, caller: &Caller) -> proto::Violation {
    use proto::violation::Why;

    let may_read = |key: &proto::Key| RecordKey::parse(key).is_ok_and(|key| caller.may_read(&key));
    let proto::Violation { change, key, message, why } = violation;
    let (message, why) = match why {
        Some(Why::Ambiguous(of)) if of.other.as_ref().is_some_and(|other| !may_read(other)) => {
            let message = "it overlaps with a record that this client may not read".to_owned();
            (message, Why::Ambiguous(proto::AmbiguousVariants { kind: of.kind, ..Default::default() }).into())
        }
        Some(Why::Referred(of)) => {
            let (shown, hidden): (Vec<_>, Vec<_>) =
                of.by.into_iter().partition(|by| by.source.as_ref().is_none_or(may_read));
            let message = match hidden.len() {
                0 => message,
                _ => format!("it is used by {} records", of.count),
            };
            (message, Some(Why::Referred(proto::Referred { by: shown, ..of })))
        }
        why => (message, why),
    };
    proto::Violation { change, key, message, why }
}

/// What a client may wait before it tries again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{Extensions, HeaderMap, header};
    use xds_core::Access;

    use super::*;
    use crate::access::{AccessControl, ApiClient, Rights, StoreAuthorizer};
    use crate::tokens::Tokens;

    /// Reads `a` only.
    #[derive(Debug)]
    struct OnlyA;

    impl StoreAuthorizer for OnlyA {
        fn rights(&self, _: &ApiClient) -> Arc<Rights> {
            let read = Access::nothing().with_every_type(&["a"].into_iter().collect());
            Arc::new(Rights { read, ..Rights::nothing() })
        }
    }

    #[test]
    fn st54_an_error_names_only_keys_that_the_caller_may_read() {
        let access = AccessControl::nobody().with_authorizer(Arc::new(OnlyA));
        access.set_tokens(Tokens::parse("ci 0123456789abcdef").unwrap());
        let bearer = "Bearer 0123456789abcdef".parse().unwrap();
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, bearer)]);
        let caller = Arc::new(access).caller(&headers, &Extensions::new()).unwrap();
        let key = |name: &str| proto::Key { type_url: "t/T".into(), name: name.into(), when: String::new() };
        let violation =
            |why| proto::Violation { change: 0, key: Some(key("b")), message: "secret".into(), why };

        let overlap = |other: &str| {
            proto::violation::Why::Ambiguous(proto::AmbiguousVariants {
                other: Some(key(other)),
                witness: [("k".to_owned(), "v".to_owned())].into(),
                kind: "alias_taken".into(),
            })
        };
        let readable = violation(Some(overlap("a")));
        assert_eq!(shown(readable.clone(), &caller), readable);
        let hidden = format!("{:?}", shown(violation(Some(overlap("hidden"))), &caller));
        assert!(!hidden.contains("hidden\"") && !hidden.contains("secret") && hidden.contains("alias_taken"));

        let by = |name: &str| proto::Reference { source: Some(key(name)), ..Default::default() };
        let referred =
            proto::Referred { by: vec![by("hidden"), by("a")], count: 2, silent_regions: Vec::new() };
        let of_two = shown(violation(Some(proto::violation::Why::Referred(referred))), &caller);
        assert_eq!(of_two.message, "it is used by 2 records");
        let Some(proto::violation::Why::Referred(referred)) = of_two.why else { panic!("{of_two:?}") };
        assert_eq!((referred.by, referred.count), (vec![by("a")], 2));
    }
}
