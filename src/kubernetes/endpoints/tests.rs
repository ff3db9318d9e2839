use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use prost::Message as _;

use super::*;

/// A slice of the service `web`: ports as `name=number`, endpoints as `address zone conditions`, where
/// conditions are `r` (ready), `s` (serving) and `t` (terminating), and `?` if it has none.
pub(in crate::kubernetes) fn slice(name: &str, ports: &[&str], endpoints: &[&str]) -> EndpointSlice {
    let port = |text: &&str| {
        let (name, number) = text.split_once('=').unwrap();
        v1::EndpointPort {
            name: Some(name.into()),
            port: Some(number.parse().unwrap()),
            ..Default::default()
        }
    };
    let endpoint = |text: &&str| {
        let words: Vec<_> = text.split(' ').collect();
        let has = |letter| Some(words[2].contains(letter));
        let conditions = EndpointConditions { ready: has('r'), serving: has('s'), terminating: has('t') };
        v1::Endpoint {
            addresses: vec![words[0].into()],
            zone: (words[1] != "-").then(|| words[1].into()),
            conditions: (words[2] != "?").then_some(conditions),
            ..Default::default()
        }
    };
    EndpointSlice {
        address_type: if endpoints.iter().any(|text| text.contains(':')) { "IPv6" } else { "IPv4" }.into(),
        endpoints: endpoints.iter().map(endpoint).collect(),
        metadata: ObjectMeta {
            name: Some(name.into()),
            namespace: Some("shop".into()),
            labels: Some([(SERVICE_NAME.to_owned(), "web".to_owned())].into()),
            ..ObjectMeta::default()
        },
        ports: (!ports.is_empty()).then(|| ports.iter().map(port).collect()),
    }
}

/// The service of these slices.
fn service(slices: &[EndpointSlice]) -> Service {
    let mut service = Service::default();
    for slice in slices {
        let name = slice.metadata.name.as_deref().unwrap();
        service.put(name, Slice::of(slice).unwrap().unwrap());
    }
    service
}

/// As `NAME: ZONE*WEIGHT ADDRESS:PORT=HEALTH ..; ZONE..`.
fn shown(service: &mut Service) -> Vec<String> {
    let assignment = |resource: Resource| {
        let assignment = ClusterLoadAssignment::decode(resource.payload().clone()).unwrap();
        assert_eq!(resource.name().as_str(), assignment.cluster_name);
        let localities = assignment.endpoints.iter().map(|locality| {
            let zone = &locality.locality.as_ref().unwrap().zone;
            let weight = locality.load_balancing_weight.unwrap().value;
            let hosts = locality.lb_endpoints.iter().map(|host| {
                let Some(HostIdentifier::Endpoint(endpoint)) = &host.host_identifier else {
                    panic!("{host:?}")
                };
                let address = endpoint.address.as_ref().unwrap().address.as_ref();
                let Some(AddressKind::SocketAddress(socket)) = address else { panic!("{address:?}") };
                let Some(PortSpecifier::PortValue(port)) = socket.port_specifier else {
                    panic!("{socket:?}")
                };
                let health = HealthStatus::try_from(host.health_status).unwrap().as_str_name();
                format!(" {}:{port}={health}", socket.address)
            });
            format!(" {zone}*{weight}{}", hosts.collect::<String>())
        });
        format!("{}:{}", assignment.cluster_name, localities.collect::<Vec<_>>().join(";"))
    };
    service.assignments("shop", "web").unwrap().into_iter().map(assignment).collect()
}

#[test]
fn each_port_is_an_assignment_with_zones_as_localities() {
    let ports = ["http=8080", "=9090"];
    let one = slice("web-1", &ports, &["10.0.0.2 b rs", "10.0.0.1 a rs"]);
    let two = slice("web-2", &["http=8081"], &["10.0.0.3 a rs"]);
    assert_eq!(
        shown(&mut service(&[one, two])),
        [
            "shop/web: a*1 10.0.0.1:9090=HEALTHY; b*1 10.0.0.2:9090=HEALTHY",
            "shop/web/http: a*2 10.0.0.1:8080=HEALTHY 10.0.0.3:8081=HEALTHY; b*1 10.0.0.2:8080=HEALTHY",
        ]
    );
}

#[test]
fn conditions_are_the_health_and_only_healthy_endpoints_weigh() {
    let endpoints =
        ["10.0.0.1 a rs", "10.0.0.2 a st", "10.0.0.3 a t", "10.0.0.4 a -", "10.0.0.5 b ?", "10.0.0.6 b rst"];
    assert_eq!(
        shown(&mut service(&[slice("web-1", &["http=80"], &endpoints)])),
        [
            "shop/web/http: a*1 10.0.0.1:80=HEALTHY 10.0.0.2:80=DRAINING 10.0.0.3:80=UNHEALTHY 10.0.0.4:80=UNHEALTHY; \
          b*1 10.0.0.5:80=HEALTHY 10.0.0.6:80=DRAINING"
        ]
    );
}

#[test]
fn an_endpoint_in_two_slices_counts_once_with_its_best_health() {
    let old = slice("web-1", &["http=80"], &["10.0.0.1 a -"]);
    let new = slice("web-2", &["http=80"], &["10.0.0.1 b rs"]);
    let expected = ["shop/web/http: b*1 10.0.0.1:80=HEALTHY"];
    assert_eq!(shown(&mut service(&[old.clone(), new.clone()])), expected);
    assert_eq!(shown(&mut service(&[new, old])), expected);
}

#[test]
fn a_service_without_endpoints_keeps_its_ports_and_loses_those_that_others_replace() {
    let mut service = service(&[slice("web-1", &["http=80"], &["10.0.0.1 - rs"])]);
    assert_eq!(shown(&mut service), ["shop/web/http: *1 10.0.0.1:80=HEALTHY"]);
    // What the API server has for a service without pods.
    service.put("web-1", Slice::of(&slice("web-1", &[], &[])).unwrap().unwrap());
    assert_eq!(shown(&mut service), ["shop/web/http:"]);
    service.put("web-1", Slice::of(&slice("web-1", &["grpc=80"], &["10.0.0.1 - rs"])).unwrap().unwrap());
    assert_eq!(shown(&mut service), ["shop/web/grpc: *1 10.0.0.1:80=HEALTHY"]);
    service.remove("web-1");
    assert!(service.is_empty() && shown(&mut service).is_empty());
}

#[test]
fn of_two_families_the_endpoints_of_ipv4_are_served() {
    let six = slice("web-6", &["http=80"], &["fd00::0:1 a rs"]);
    assert_eq!(shown(&mut service(std::slice::from_ref(&six))), ["shop/web/http: a*1 fd00::1:80=HEALTHY"]);
    let four = slice("web-4", &["http=80"], &["10.0.0.1 a rs"]);
    assert_eq!(shown(&mut service(&[six, four])), ["shop/web/http: a*1 10.0.0.1:80=HEALTHY"]);
}

#[test]
fn what_is_wrong_with_a_slice_is_said() {
    let good = || slice("web-1", &["http=80"], &["10.0.0.1 a rs"]);
    let problem = |change: &dyn Fn(&mut EndpointSlice)| {
        let mut slice = good();
        change(&mut slice);
        Slice::of(&slice).unwrap_err().to_string()
    };
    assert_eq!(
        problem(&|slice| slice.address_type = "FQDN".into()),
        "the addresses are of type FQDN; Envoy and gRPC take IP addresses"
    );
    assert_eq!(problem(&|slice| slice.endpoints[0].addresses.clear()), "an endpoint has no address");
    let address = problem(&|slice| slice.endpoints[0].addresses = vec!["10.0.0".into()]);
    assert_eq!(address, "address \"10.0.0\": invalid IP address syntax");
    let port = problem(&|slice| slice.ports.as_mut().unwrap()[0].port = Some(65_536));
    assert_eq!(port, "port \"http\" has the number 65536; it must be from 1 to 65535");

    let mut of_no_service = good();
    of_no_service.metadata.labels = None;
    assert_eq!(Slice::of(&of_no_service), Ok(None));
    let mut without_addresses = good();
    for port in without_addresses.ports.as_mut().unwrap() {
        port.protocol = Some("SCTP".into());
    }
    assert_eq!(shown(&mut service(&[without_addresses])), [""; 0]);
}
