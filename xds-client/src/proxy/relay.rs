//! What connects the client of a route with its machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use xds_core::client::health::Status;
use xds_core::client::{self as machine, Client as ClientMachine, Effects};
use xds_core::proxy::Route;
use xds_core::{ClientOutcome, Delivery, TypeUrl};
use xds_proto::service::SERVICES;

use super::ProxyHub;
use crate::owner::{Event as ClientEvent, Owner};

/// Gives the client of one route its machine, which the proxy owns.
pub(super) struct Relay {
    pub(super) route: Route,
    pub(super) shared: Arc<ProxyHub>,
    /// The next stream is opened on the service of its type, not on the aggregated one.
    pub(super) asks_own_service: AtomicBool,
}

impl Owner for Relay {
    fn start(&self) -> Instant {
        self.shared.start
    }

    fn read(&self, look: &mut dyn FnMut(&ClientMachine)) {
        if let Some(machine) = self.shared.lock().machine.client(&self.route) {
            look(machine);
        }
    }

    fn change(&self, event: &mut ClientEvent<'_>) -> Option<Effects> {
        self.shared
            .change(&self.route, |machine, now| machine.change(now, &self.route, |client| event(client, now)))
    }

    fn end(&self, server: usize, status: Option<Status>, event: &mut ClientEvent<'_>) -> Option<Effects> {
        // A server that refuses a type on the aggregated service may have a service for the type,
        // and vice versa. The next server is tried on the aggregated service first.
        if self.route.side_stream_type().is_some() {
            let is_refused = status.as_ref().is_some_and(Status::may_mean_a_type);
            let asked_it = self.asks_own_service.load(Ordering::Relaxed);
            self.asks_own_service.store(is_refused && !asked_it, Ordering::Relaxed);
        }
        self.shared.change(&self.route, |machine, now| {
            machine.on_stream_end(now, &self.route, server, status);
            machine.change(now, &self.route, |client| event(client, now))
        })
    }

    fn path(&self, protocol: machine::Protocol) -> Option<String> {
        let type_url = self.route.side_stream_type()?;
        let asks_own_service = self.asks_own_service.load(Ordering::Relaxed);
        let path = own_service(type_url, protocol).filter(|_| asks_own_service);
        self.shared.lock().machine.on_own_service(&self.route, path.is_some());
        path
    }

    fn try_first(&self, server: usize, frame: &Bytes) -> Option<Delivery> {
        // Most proxies have no trials.
        if self.shared.config.canaries == 0 {
            return None;
        }
        self.shared.lock().machine.try_first(&self.route, server, frame)
    }

    fn canary_timeout(&self) -> Duration {
        self.shared.config.canary_timeout
    }

    fn conclude(&self, results: &[ClientOutcome], event: &mut ClientEvent<'_>) -> Option<Effects> {
        self.shared
            .change(&self.route, |machine, now| machine.conclude(now, results, |client| event(client, now)))
    }

    fn abandon(&self) {
        self.shared.lock().machine.abandon();
    }
}

/// The path of the service of a type; `None` if the type has none for this protocol.
fn own_service(type_url: &TypeUrl, protocol: machine::Protocol) -> Option<String> {
    let service = SERVICES.iter().find(|service| service.type_url == type_url.as_str())?;
    let method = match protocol {
        machine::Protocol::Sotw => service.sotw,
        machine::Protocol::Delta => service.delta,
    };
    Some(format!("/{}/{}", service.service, method?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the streams of types outside of the table counted as streams of their own service.
    #[test]
    fn g4b_only_a_type_with_a_method_has_a_service_of_its_own() {
        let of = |type_url: &str, protocol| own_service(&type_url.into(), protocol);
        let hosts = "type.googleapis.com/envoy.config.route.v3.VirtualHost";
        assert_eq!(of("type.googleapis.com/acme.Thing", machine::Protocol::Delta), None);
        assert_eq!(of(hosts, machine::Protocol::Sotw), None);
        let path = "/envoy.service.route.v3.VirtualHostDiscoveryService/DeltaVirtualHosts";
        assert_eq!(of(hosts, machine::Protocol::Delta).as_deref(), Some(path));
    }
}
