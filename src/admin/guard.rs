//! Which requests the port accepts.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Method, StatusCode, Version, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};

use super::{HostNames, activity};

/// What the checks need.
#[derive(Debug, Clone)]
struct Guard {
    names: Arc<HostNames>,
    /// What requests of gRPC get.
    grpc: Option<Router>,
}

/// Adds checks to the routes: only GET and HEAD, or gRPC; and only these host names.
pub(super) fn guarded(routes: Router, grpc: Option<Router>, names: HostNames) -> Router {
    // Add the fallback before the layer: a layer covers only the routes that were added before it.
    let routes = routes.fallback(async || (StatusCode::NOT_FOUND, "nothing is served at this path\n"));
    routes.layer(from_fn_with_state(Guard { names: Arc::new(names), grpc }, guard))
}

async fn guard(State(Guard { names, grpc }): State<Guard>, request: Request, next: Next) -> Response {
    let grpc = grpc.filter(|_| is_grpc(&request));
    let refusal = refusal(&request, &names, grpc.is_some());
    let mut response = match (refusal, grpc) {
        (Some(refusal), _) => refusal,
        (None, Some(grpc)) => return activity::of_grpc(grpc, request).await,
        (None, None) => next.run(request).await,
    };
    let headers = response.headers_mut();
    // Only the page of this port may use the answers: other pages may neither frame nor load them.
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(NOTHING));
    response
}

/// Whether a request is one of gRPC. A web page cannot send this content type to another site
/// without asking first, which this port does not answer. gRPC-Web is something else.
pub(super) fn is_grpc(request: &Request) -> bool {
    let content_type = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = content_type.and_then(|content_type| content_type.strip_prefix(b"application/grpc"));
    *request.method() == Method::POST
        && rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

fn refusal(request: &Request, names: &HostNames, is_grpc: bool) -> Option<Response> {
    if is_grpc && request.version() != Version::HTTP_2 {
        return Some((StatusCode::HTTP_VERSION_NOT_SUPPORTED, "gRPC needs HTTP/2\n").into_response());
    }
    if !is_grpc && !matches!(*request.method(), Method::GET | Method::HEAD) {
        let allow = [(header::ALLOW, "GET, HEAD")];
        return Some((StatusCode::METHOD_NOT_ALLOWED, allow, "only GET and HEAD\n").into_response());
    }
    // A page of another site cannot read the answers, but its requests could keep the port busy.
    // Links from other sites are allowed.
    let header = |name: &str| request.headers().get(name).map(HeaderValue::as_bytes);
    let is_foreign =
        matches!(header("sec-fetch-site"), Some(site) if site != b"same-origin" && site != b"none");
    if is_foreign && (is_grpc || header("sec-fetch-mode") != Some(b"navigate")) {
        return Some(
            (StatusCode::FORBIDDEN, "requests of pages from other sites are refused\n").into_response(),
        );
    }
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = hosts.next();
    // A proxy in between might use one of them, and this server the other.
    if hosts.next().is_some() {
        return Some((StatusCode::BAD_REQUEST, "a request must have one Host header\n").into_response());
    }
    // Browsers always send `Host`. A request without it is not from a browser: for example HTTP/1.0
    // of a load balancer that checks the health.
    let is_known = host.is_none_or(|host| host.to_str().is_ok_and(|host| names.allow(host)));
    // If the request has an absolute URI, as proxies get it, the URI counts (RFC 9112, 3.2.2).
    let is_known = is_known && request.uri().authority().is_none_or(|of| names.allow(of.as_str()));
    let text = "unknown host name (protection against DNS rebinding): use an IP address or localhost, or \
                add the name with --admin-host\n";
    (!is_known).then(|| (StatusCode::FORBIDDEN, text).into_response())
}

impl HostNames {
    /// Whether this `Host` header is accepted.
    fn allow(&self, host: &str) -> bool {
        // RFC 9110, 7.2: a `Host` has no user.
        let authority = host.parse::<Authority>().ok().filter(|_| !host.contains('@'));
        let Some(authority) = authority else { return false };
        let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
        let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&name);
        address.parse::<IpAddr>().is_ok() || name == "localhost" || self.0.contains(&name)
    }
}

/// The content security policy of answers that are not the page.
const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_nobody_told_of_are_refused() {
        let names: HostNames = ["Admin.example"].into_iter().collect();
        let allowed =
            ["127.0.0.1:1", "127.0.0.1", "[::1]:18001", "LOCALHOST:1", "localhost.", "admin.EXAMPLE:80"];
        for host in allowed {
            assert!(names.allow(host), "{host}");
        }
        let refused =
            ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:1", "a b", "x@y z"];
        for host in refused.into_iter().chain(["a@localhost", "a:b@127.0.0.1:1"]) {
            assert!(!names.allow(host), "{host}");
        }
    }
}
