//! The page: one file that loads nothing else.

use std::hash::{BuildHasher, RandomState};

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// The policy allows only the page's own script and style, by a nonce that nobody can guess, and
/// the script cannot turn text into HTML.
pub(super) async fn page() -> Response {
    // Each `RandomState` has other keys, seeded by the system.
    let random = || RandomState::new().hash_one(PAGE.len());
    let nonce = format!("{:016x}{:016x}", random(), random());
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    );
    let head =
        [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, &*policy)];
    (head, PAGE.replace("NONCE", &nonce)).into_response()
}

const PAGE: &str = include_str!("page.html");
