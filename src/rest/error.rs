//! Why a poll is refused, with its HTTP status.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use xds_core::server::StreamError;
use xds_core::{ResourceName, TypeUrl, shortened};
use xds_server::skim::SkimError;

use super::json::JsonError;

/// Why a poll is refused. The client keeps its resources in every case.
#[derive(Debug, thiserror::Error)]
pub(super) enum PollError {
    #[error("the body is not a DiscoveryRequest in JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the body is not a DiscoveryRequest: {0}")]
    Skim(#[from] SkimError),
    #[error("the body did not arrive: {0}")]
    Body(String),
    /// G9.
    #[error("the body exceeds the limit of {limit} bytes")]
    BodyTooLarge { limit: usize },
    /// G9.
    #[error("the body did not arrive within {limit:?}")]
    BodyTooLate { limit: Duration },
    /// Clients do not read their answers.
    #[error("answers that clients have not read exceed the limit of {limit} bytes: poll again later")]
    Busy { limit: usize },
    /// An error that ends a stream.
    #[error(transparent)]
    Request(#[from] StreamError),
    #[error("{0}")]
    Denied(String),
    #[error("the rights of this client have changed: poll again")]
    OtherAccess,
    #[error("requests of web pages are refused: the request has an Origin header")]
    WebPage,
    /// G8, G12: the client would take an answer without resources as an order to delete its
    /// resources.
    #[error("no requested name is valid and readable for this client")]
    NothingLeft,
    /// G13.
    #[error("no source has committed yet: poll again later")]
    NotSynced,
    /// The server takes no new streams.
    #[error("{0}")]
    Refused(String),
    #[error("{} {name:?} cannot be sent as JSON: {error}", type_url.message_name())]
    Resource { type_url: TypeUrl, name: ResourceName, error: JsonError },
    #[error("the requested {} exceed the limit of {limit} bytes of one answer", type_url.message_name())]
    AnswerTooLarge { type_url: TypeUrl, limit: usize },
    #[error("the conversion of the answer failed: {0}")]
    GivenUp(#[from] tokio::task::JoinError),
}

impl PollError {
    /// The message for the client and the log. It may quote the request, so its length is limited.
    pub(super) fn text(&self) -> String {
        shortened(&self.to_string(), TEXT_LIMIT_BYTES).into_owned()
    }

    pub(super) fn status(&self) -> StatusCode {
        self.codes().0
    }

    /// The HTTP status and the gRPC code of the error.
    fn codes(&self) -> (StatusCode, i32) {
        match self {
            Self::Json(_) | Self::Skim(_) | Self::Body(_) | Self::NothingLeft => {
                (StatusCode::BAD_REQUEST, INVALID_ARGUMENT)
            }
            // Not 429, which means: send the same request again later.
            Self::BodyTooLarge { .. }
            | Self::Request(
                StreamError::TooManyNames { .. }
                | StreamError::TooManyParameters { .. }
                | StreamError::TooManyTypes { .. },
            ) => (StatusCode::PAYLOAD_TOO_LARGE, RESOURCE_EXHAUSTED),
            Self::BodyTooLate { .. } => (StatusCode::REQUEST_TIMEOUT, DEADLINE_EXCEEDED),
            Self::NotSynced
            | Self::Refused(_)
            | Self::Busy { .. }
            | Self::OtherAccess
            | Self::Request(StreamError::FellBehind { .. }) => (StatusCode::SERVICE_UNAVAILABLE, UNAVAILABLE),
            Self::Denied(_) | Self::WebPage => (StatusCode::FORBIDDEN, PERMISSION_DENIED),
            Self::Request(_) => (StatusCode::BAD_REQUEST, INVALID_ARGUMENT),
            Self::Resource { .. } | Self::AnswerTooLarge { .. } | Self::GivenUp(_) => {
                (StatusCode::INTERNAL_SERVER_ERROR, INTERNAL)
            }
        }
    }
}

impl IntoResponse for PollError {
    fn into_response(self) -> Response {
        let (status, code) = self.codes();
        let body = json!({ "code": code, "message": self.text() }).to_string();
        let mut response = (status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
        }
        response
    }
}

/// The longest error message.
const TEXT_LIMIT_BYTES: usize = 1024;

const RETRY_AFTER_SECONDS: &str = "1";

/// Codes of `google.rpc.Code`.
const INVALID_ARGUMENT: i32 = 3;
const DEADLINE_EXCEEDED: i32 = 4;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const INTERNAL: i32 = 13;
const UNAVAILABLE: i32 = 14;
