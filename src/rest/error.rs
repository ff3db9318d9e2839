//! Why a poll is not answered, as HTTP says it.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use xds_core::server::StreamError;
use xds_core::{ResourceName, TypeUrl, shortened};
use xds_server::skim::SkimError;

use super::json::JsonError;

/// Why a poll is not answered. The client keeps what it has in every case.
#[derive(Debug, thiserror::Error)]
pub(super) enum PollError {
    #[error("the body is no DiscoveryRequest in JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the body is no DiscoveryRequest: {0}")]
    Skim(#[from] SkimError),
    #[error("the body did not arrive: {0}")]
    Body(String),
    /// G9.
    #[error("the body exceeds the limit of {limit} bytes")]
    BodyTooLarge { limit: usize },
    /// G9.
    #[error("the body did not come within {limit:?}")]
    BodyTooLate { limit: Duration },
    /// Clients do not take their answers.
    #[error("answers that wait for their clients exceed the limit of {limit} bytes: ask again")]
    Busy { limit: usize },
    /// What would end a stream.
    #[error(transparent)]
    Request(#[from] StreamError),
    #[error("{0}")]
    Denied(String),
    #[error("what this client may read has changed: ask again")]
    OtherAccess,
    #[error("web pages are not answered: the request has an Origin")]
    WebPage,
    /// G8, G12: an answer without resources would say that the client is to delete what it has.
    #[error("no resource of all that the request names can exist, or be read by this client")]
    NothingLeft,
    /// G13.
    #[error("no source has said yet what exists")]
    NotSynced,
    #[error("{} {name:?} cannot be sent as JSON: {error}", type_url.message_name())]
    Resource { type_url: TypeUrl, name: ResourceName, error: JsonError },
    #[error("all the {} asked for exceed the limit of {limit} bytes of one answer", type_url.message_name())]
    AnswerTooLarge { type_url: TypeUrl, limit: usize },
    #[error("the answer was given up: {0}")]
    GivenUp(#[from] tokio::task::JoinError),
}

impl PollError {
    /// What is wrong, for the client and the log: as much of it as may quote the client.
    pub(super) fn text(&self) -> String {
        shortened(&self.to_string(), TEXT_LIMIT_BYTES).into_owned()
    }

    pub(super) fn status(&self) -> StatusCode {
        self.codes().0
    }

    /// The one place where an error becomes a status of HTTP and a code of gRPC.
    fn codes(&self) -> (StatusCode, i32) {
        match self {
            Self::Json(_) | Self::Skim(_) | Self::Body(_) | Self::NothingLeft => {
                (StatusCode::BAD_REQUEST, INVALID_ARGUMENT)
            }
            // Not 429, which asks for the same once more.
            Self::BodyTooLarge { .. }
            | Self::Request(
                StreamError::TooManyNames { .. }
                | StreamError::TooManyParameters { .. }
                | StreamError::TooManyTypes { .. },
            ) => (StatusCode::PAYLOAD_TOO_LARGE, RESOURCE_EXHAUSTED),
            Self::BodyTooLate { .. } => (StatusCode::REQUEST_TIMEOUT, DEADLINE_EXCEEDED),
            Self::NotSynced
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

/// Of what is wrong with a request.
const TEXT_LIMIT_BYTES: usize = 1024;

const RETRY_AFTER_SECONDS: &str = "1";

/// Codes of `google.rpc.Code`.
const INVALID_ARGUMENT: i32 = 3;
const DEADLINE_EXCEEDED: i32 = 4;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const INTERNAL: i32 = 13;
const UNAVAILABLE: i32 = 14;
