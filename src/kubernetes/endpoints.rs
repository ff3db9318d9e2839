//! EndpointSlices as assignments: one for each port of a service.
//!
//! | Kubernetes | assignment |
//! | --- | --- |
//! | service `web` in namespace `shop`, port `http` | `shop/web/http`; `shop/web` for the port without a name |
//! | zone | locality, with its healthy endpoints as weight, so that each endpoint gets the same share |
//! | ready | `HEALTHY` |
//! | serving, but terminating | `DRAINING` |
//! | neither | `UNHEALTHY` |
//! | a pod with addresses of IPv4 and of IPv6 | its addresses of IPv4, with their zone and health |

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use envoy_types::pb::envoy::config::core::v3::address::Address as AddressKind;
use envoy_types::pb::envoy::config::core::v3::socket_address::{PortSpecifier, Protocol};
use envoy_types::pb::envoy::config::core::v3::{Address, HealthStatus, Locality, SocketAddress};
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints,
};
use envoy_types::pb::google::protobuf::UInt32Value;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::{self, EndpointConditions, EndpointSlice};
use xds_core::{Resource, ResourceError};

use super::object::Problem;

/// What an EndpointSlice says about its service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) service: Box<str>,
    ports: Vec<Port>,
    endpoints: Vec<Host>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Port {
    /// Empty for the only port of a service.
    name: Box<str>,
    number: u16,
    is_udp: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Host {
    address: IpAddr,
    zone: Box<str>,
    health: Health,
    /// `None` if the slice does not say whose address it is.
    target: Option<Target>,
}

/// The pod that an endpoint belongs to, as `KIND/NAMESPACE/NAME/UID`. Endpoints of one target with
/// different addresses are ways to the same process. A pod that replaces another one of its name has
/// another UID.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Target(Box<str>);

/// In this order: the first one counts if several slices have an endpoint, as they may while it
/// moves from one to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Health {
    Healthy,
    Draining,
    Unhealthy,
}

impl Slice {
    /// `None` for a slice that belongs to no service.
    pub(super) fn of(slice: &EndpointSlice) -> Result<Option<Self>, Problem> {
        let labels = slice.metadata.labels.as_ref();
        let Some(service) =
            labels.and_then(|labels| labels.get(SERVICE_NAME)).filter(|name| !name.is_empty())
        else {
            return Ok(None);
        };
        if !matches!(&*slice.address_type, "IPv4" | "IPv6") {
            return Err(Problem::AddressType { address_type: slice.address_type.as_str().into() });
        }
        let ports = slice.ports.iter().flatten().filter_map(|port| port_of(port).transpose());
        Ok(Some(Self {
            service: service.as_str().into(),
            ports: ports.collect::<Result<_, _>>()?,
            endpoints: slice.endpoints.iter().map(host_of).collect::<Result<_, _>>()?,
        }))
    }
}

/// `None` for a port that Envoy has no addresses for: of SCTP, and one without a number, which means
/// all ports.
fn port_of(port: &v1::EndpointPort) -> Result<Option<Port>, Problem> {
    let name = port.name.as_deref().unwrap_or_default();
    let is_udp = match port.protocol.as_deref() {
        None | Some("" | "TCP") => false,
        Some("UDP") => true,
        Some(_) => return Ok(None),
    };
    let Some(number) = port.port else { return Ok(None) };
    let valid = u16::try_from(number).ok().filter(|&number| number > 0);
    let number = valid.ok_or_else(|| Problem::Port { name: name.into(), number })?;
    Ok(Some(Port { name: name.into(), number, is_udp }))
}

fn host_of(endpoint: &v1::Endpoint) -> Result<Host, Problem> {
    // All addresses of an endpoint are interchangeable, so one is enough.
    let address = endpoint.addresses.first().ok_or(Problem::NoAddress)?;
    let parsed = address.parse();
    let address = parsed.map_err(|error| Problem::Address { address: address.as_str().into(), error })?;
    let zone = endpoint.zone.as_deref().unwrap_or_default().into();
    let health = endpoint.conditions.as_ref().map_or(Health::Healthy, health_of);
    let target = endpoint.target_ref.as_ref().and_then(target_of);
    Ok(Host { address, zone, health, target })
}

/// `None` for a reference that names no object.
fn target_of(reference: &ObjectReference) -> Option<Target> {
    let ObjectReference { kind, namespace, name, uid, .. } = reference;
    let [kind, namespace, name, uid] =
        [kind, namespace, name, uid].map(|field| field.as_deref().unwrap_or_default());
    let is_identity = !(name.is_empty() && uid.is_empty());
    is_identity.then(|| Target(format!("{kind}/{namespace}/{name}/{uid}").into()))
}

/// A condition that is not there counts as the API says: ready, serving if ready, not terminating.
fn health_of(conditions: &EndpointConditions) -> Health {
    let is_ready = conditions.ready.unwrap_or(true);
    match (is_ready, conditions.serving.unwrap_or(is_ready), conditions.terminating.unwrap_or(false)) {
        (true, _, false) => Health::Healthy,
        (_, true, true) => Health::Draining,
        _ => Health::Unhealthy,
    }
}

/// All slices of a service.
#[derive(Debug, Default)]
pub(super) struct Service {
    slices: BTreeMap<Box<str>, Slice>,
    /// The names of its ports. While it has no endpoints its slices have no ports, and clients
    /// must get an empty assignment, not none.
    ports: BTreeSet<Box<str>>,
}

impl Service {
    /// Returns whether this changed anything.
    pub(super) fn put(&mut self, slice_name: &str, slice: Slice) -> bool {
        if self.slices.get(slice_name) == Some(&slice) {
            return false;
        }
        self.slices.insert(slice_name.into(), slice);
        true
    }

    pub(super) fn remove(&mut self, slice_name: &str) {
        self.slices.remove(slice_name);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    /// The assignments of the service; none without slices. They depend on the slices alone, not on their order.
    ///
    /// The slices of the two families come, fill and go on their own, so the family is chosen for each
    /// pod and port: IPv4 if the pod has it, else IPv6. Both would be the pod twice. An endpoint
    /// without a target is kept as it is.
    pub(super) fn assignments(
        &mut self,
        namespace: &str,
        name: &str,
    ) -> Result<Vec<Resource>, ResourceError> {
        if self.slices.is_empty() {
            return Ok(Vec::new());
        }
        let ports = self.slices.values().flat_map(|slice| &slice.ports);
        let ports: BTreeSet<_> = ports.map(|port| port.name.clone()).collect();
        if !ports.is_empty() {
            self.ports = ports;
        }
        let of_port = |port: &str| {
            let name = match port {
                "" => format!("{namespace}/{name}"),
                port => format!("{namespace}/{name}/{port}"),
            };
            Resource::of(&assignment(name, &self.slices, port))
        };
        self.ports.iter().map(|port| of_port(port)).collect()
    }
}

fn assignment(
    cluster_name: String,
    slices: &BTreeMap<Box<str>, Slice>,
    port_name: &str,
) -> ClusterLoadAssignment {
    let of_port = |slice| hosts_of(slice, port_name);
    let with_ipv4: BTreeSet<&Target> = slices
        .values()
        .flat_map(of_port)
        .filter(|(_, host)| host.address.is_ipv4())
        .filter_map(|(_, host)| host.target.as_ref())
        .collect();
    // The health and zone of each address.
    let mut hosts = BTreeMap::<(IpAddr, u16, bool), (Health, &str)>::new();
    for (port, Host { address, zone, health, target }) in slices.values().flat_map(of_port) {
        let has_ipv4 = target.as_ref().is_some_and(|target| with_ipv4.contains(target));
        if address.is_ipv6() && has_ipv4 {
            continue;
        }
        let found = (*health, &**zone);
        let best = hosts.entry((*address, port.number, port.is_udp)).or_insert(found);
        *best = found.min(*best);
    }
    let mut zones = BTreeMap::<&str, (u32, Vec<LbEndpoint>)>::new();
    for ((address, port, is_udp), (health, zone)) in hosts {
        let (healthy, endpoints) = zones.entry(zone).or_default();
        *healthy += u32::from(health == Health::Healthy);
        endpoints.push(endpoint(address, port, is_udp, health));
    }
    let locality = |(zone, (healthy, lb_endpoints)): (&str, (u32, _))| LocalityLbEndpoints {
        locality: Some(Locality { zone: zone.to_owned(), ..Locality::default() }),
        lb_endpoints,
        // gRPC drops a locality without a weight.
        load_balancing_weight: Some(UInt32Value { value: healthy.max(1) }),
        ..LocalityLbEndpoints::default()
    };
    let endpoints = zones.into_iter().map(locality).collect();
    ClusterLoadAssignment { cluster_name, endpoints, ..ClusterLoadAssignment::default() }
}

/// The endpoints of a slice that has the port, each with the port.
fn hosts_of<'a>(slice: &'a Slice, port_name: &str) -> impl Iterator<Item = (&'a Port, &'a Host)> + use<'a> {
    let port = slice.ports.iter().find(|port| &*port.name == port_name);
    port.into_iter().flat_map(|port| slice.endpoints.iter().map(move |host| (port, host)))
}

fn endpoint(address: IpAddr, port: u16, is_udp: bool, health: Health) -> LbEndpoint {
    let protocol = if is_udp { Protocol::Udp } else { Protocol::Tcp };
    let socket_address = SocketAddress {
        protocol: protocol.into(),
        address: address.to_string(),
        port_specifier: Some(PortSpecifier::PortValue(port.into())),
        ..SocketAddress::default()
    };
    let address = Some(Address { address: Some(AddressKind::SocketAddress(socket_address)) });
    let health_status = match health {
        Health::Healthy => HealthStatus::Healthy,
        Health::Draining => HealthStatus::Draining,
        Health::Unhealthy => HealthStatus::Unhealthy,
    };
    LbEndpoint {
        health_status: health_status.into(),
        host_identifier: Some(HostIdentifier::Endpoint(Endpoint { address, ..Endpoint::default() })),
        ..LbEndpoint::default()
    }
}

/// The label of a slice with the name of its service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

#[cfg(test)]
pub(super) mod tests;
