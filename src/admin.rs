//! What people and their programs look at: an HTTP port apart from the one for clients.
//!
//! It answers GET and HEAD alone and changes nothing. Whoever reaches it may read all of it, so it is for the loopback
//! interface, or for what stands behind something that asks who is there. [`serve`] refuses requests that a web page of
//! somebody else could have sent: see [`HostNames`].

use std::collections::BTreeSet;
use std::convert::Infallible;

use axum::Router;
use tokio::net::TcpListener;

mod guard;
mod listener;

/// The names under which the port may be asked for, beside IP addresses and `localhost`.
///
/// A page of another site may let its own name point to this machine and then read answers as if they were its own (DNS
/// rebinding). It cannot choose what stands in `Host`, so names that nobody told of are refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostNames(BTreeSet<String>);

impl<S: Into<String>> FromIterator<S> for HostNames {
    fn from_iter<I: IntoIterator<Item = S>>(names: I) -> Self {
        Self(names.into_iter().map(|name| name.into().to_ascii_lowercase()).collect())
    }
}

/// Serves these routes over HTTP/1.1 until it is dropped, with all its connections.
///
/// At the same time there are 512 connections at most; further ones wait. A client has 10 s to say what it wants.
pub async fn serve(listener: TcpListener, routes: Router, names: HostNames) -> Infallible {
    listener::serve(listener, guard::guarded(routes, names)).await
}
