//! Answers as JSON, in pages, and errors.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use xds_core::{Constraints, Parameters, printable_lines, shortened};

/// The answer to a request of the API.
pub(super) type JsonAnswer = Result<JsonBody, ApiError>;

/// The JSON body of an answer.
#[derive(Debug)]
pub(super) struct JsonBody(pub(super) Value);

/// An error: `{"error": ".."}`.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    text: String,
}

impl ApiError {
    pub(super) fn bad(text: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, text: text.into() }
    }

    pub(super) fn missing(text: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, text: text.into() }
    }

    pub(super) fn busy(text: impl Into<String>) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, text: text.into() }
    }
}

impl IntoResponse for JsonBody {
    fn into_response(self) -> Response {
        (
            [(header::CONTENT_TYPE, "application/json")],
            printable_lines(&format!("{:#}\n", self.0)).into_owned(),
        )
            .into_response()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        // The text may quote the request.
        let text = shortened(&self.text, TEXT_LIMIT_BYTES);
        (self.status, JsonBody(json!({ "error": text }))).into_response()
    }
}

/// One page of rows. A page number after the last page gives the last page.
pub(super) fn paged<T>(all: &[T], page: usize, mut row: impl FnMut(&T) -> Value) -> Map<String, Value> {
    let pages = all.len().div_ceil(PAGE_ROWS).max(1);
    let page = page.clamp(1, pages);
    let rows = all.iter().skip((page - 1) * PAGE_ROWS).take(PAGE_ROWS);
    let rows: Vec<_> = rows.map(&mut row).collect();
    let numbers = [("total", all.len()), ("page", page), ("pages", pages)];
    let numbers = numbers.into_iter().map(|(key, number)| (key.to_owned(), number.into()));
    numbers.chain([("rows".to_owned(), rows.into())]).collect()
}

/// Milliseconds since 1970, in UTC.
pub(super) fn at_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis().try_into().unwrap_or(u64::MAX)
}

pub(super) fn parameters(parameters: &Parameters) -> Value {
    parameters.iter().map(|(key, value)| (key.to_string(), Value::from(&**value))).collect()
}

/// The condition of a variant; `null` for a variant without constraints.
pub(super) fn when(constraints: &Constraints) -> Option<String> {
    (!constraints.is_unconstrained()).then(|| constraints.to_string())
}

/// The longest error message.
const TEXT_LIMIT_BYTES: usize = 1024;

/// Rows of a page. No list in an answer is longer.
pub(super) const PAGE_ROWS: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_past_the_last_one_is_the_last_one() {
        let all: Vec<_> = (0..120).collect();
        let of = |page| {
            let paged = paged(&all, page, |number| json!(number));
            (paged["page"].clone(), paged["rows"].as_array().unwrap().len(), paged["rows"][0].clone())
        };
        assert_eq!(of(0), (json!(1), PAGE_ROWS, json!(0)));
        assert_eq!(of(3), (json!(3), 20, json!(100)));
        assert_eq!(of(usize::MAX), (json!(3), 20, json!(100)));
        assert_eq!(paged(&[(); 0], 1, |()| json!(null))["pages"], json!(1));
    }
}
