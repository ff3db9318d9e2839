//! The page: one file without anything to load beside it.

use std::hash::{BuildHasher, RandomState};

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// Its script and its style are the only ones that run, by a number that nobody can guess; they
/// cannot make HTML of text.
pub(super) async fn page() -> Response {
    // Seeded by the system for each.
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
