use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use prost::Message as _;

use super::*;

/// A slice of the service `web`: ports as `name=number`, endpoints as `address zone conditions pod`, where
/// conditions are `r` (ready), `s` (serving) and `t` (terminating), and `?` if it has none. Without the
/// pod the endpoint has no target; `web-0@2` is the second pod with the name `web-0`.
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
            target_ref: words.get(3).map(|pod| target(pod)),
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

fn target(pod: &str) -> ObjectReference {
    let (name, uid) = pod.split_once('@').unwrap_or((pod, "1"));
    ObjectReference {
        kind: Some("Pod".into()),
        namespace: Some("shop".into()),
        name: Some(name.into()),
        uid: Some(format!("uid-of-{name}-{uid}")),
        ..ObjectReference::default()
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

/// What happens; the slice that is put, or removed without endpoints; the hosts that are served then.
type Step<'a> = (&'a str, &'a str, Option<&'a [&'a str]>, &'a [&'a str]);

/// An IPv6 service becomes dual stack pod by pod, and IPv6 only again. An empty IPv4 slice beside the
/// full IPv6 slice once emptied the assignment, and later pods with IPv6 only were lost.
#[test]
fn a_service_that_becomes_dual_stack_keeps_every_pod() {
    let [one, two, three, four] =
        ["10.0.0.1 a rs p1", "10.0.0.2 a rs p2", "10.0.0.3 a rs p3", "10.0.0.4 a rs p4"];
    let [six_1, six_2, six_3, six_4] =
        ["fd00::1 a rs p1", "fd00::2 a rs p2", "fd00::3 a rs p3", "fd00::4 a rs p4"];
    let old: &[&str] = &[six_1, six_2, six_3];
    let steps: &[Step<'_>] = &[
        ("IPv6 only", "six", Some(old), &["fd00::1", "fd00::2", "fd00::3"]),
        ("an empty IPv4 slice", "four", Some(&[]), &["fd00::1", "fd00::2", "fd00::3"]),
        ("IPv4 fills", "four", Some(&[one]), &["10.0.0.1", "fd00::2", "fd00::3"]),
        ("pod by pod", "four", Some(&[one, two]), &["10.0.0.1", "10.0.0.2", "fd00::3"]),
        ("in several slices", "four-2", Some(&[four]), &["10.0.0.1", "10.0.0.2", "10.0.0.4", "fd00::3"]),
        ("a new pod", "six", Some(&[six_1, six_3, six_4]), &["10.0.0.1", "10.0.0.2", "10.0.0.4", "fd00::3"]),
        ("an IPv6-only pod", "four", Some(&[one]), &["10.0.0.1", "10.0.0.4", "fd00::3"]),
        ("is replaced", "six", Some(&[six_1, six_4]), &["10.0.0.1", "10.0.0.4"]),
        ("IPv6 without pods", "six", Some(&[]), &["10.0.0.1", "10.0.0.4"]),
        ("IPv6 with pods", "six", Some(&[six_1, six_4]), &["10.0.0.1", "10.0.0.4"]),
        ("one IPv4 slice goes", "four-2", None, &["10.0.0.1", "fd00::4"]),
        ("the other is empty", "four", Some(&[]), &["fd00::1", "fd00::4"]),
        ("IPv6 only again", "four", None, &["fd00::1", "fd00::4"]),
        ("no pods", "six", Some(&[]), &[]),
        ("IPv4 only", "four", Some(&[one, two, three]), &["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
    ];
    let mut service = Service::default();
    for (step, name, endpoints, expected) in steps {
        match endpoints {
            Some(endpoints) => {
                // A slice without endpoints has no ports.
                let ports: &[&str] = if endpoints.is_empty() { &[] } else { &["http=80"] };
                service.put(name, Slice::of(&slice(name, ports, endpoints)).unwrap().unwrap());
            }
            None => service.remove(name),
        }
        let hosts: String = expected.iter().map(|host| format!(" {host}:80=HEALTHY")).collect();
        let zone = if hosts.is_empty() { String::new() } else { format!(" a*{}{hosts}", expected.len()) };
        assert_eq!(shown(&mut service), [format!("shop/web/http:{zone}")], "{step}");
    }
}

#[test]
fn the_family_is_chosen_for_each_pod() {
    let cases: &[(&str, &[&str], &[&str], &str)] = &[
        (
            "the flags and the zone are those of the address that is served",
            &["10.0.0.1 a - p1", "10.0.0.2 a st p2", "10.0.0.3 b rs p3"],
            &["fd00::1 b rs p1", "fd00::2 a rs p2", "fd00::3 b t p3", "fd00::4 b st p4"],
            " a*1 10.0.0.1:80=UNHEALTHY 10.0.0.2:80=DRAINING; b*1 10.0.0.3:80=HEALTHY fd00::4:80=DRAINING",
        ),
        (
            "without a target nobody knows which addresses are of one pod",
            &["10.0.0.1 a rs"],
            &["fd00::1 a rs", "fd00::2 a rs p1"],
            " a*3 10.0.0.1:80=HEALTHY fd00::1:80=HEALTHY fd00::2:80=HEALTHY",
        ),
        (
            "a pod that replaces another one of its name is another pod",
            &["10.0.0.1 a rs web-0@2"],
            &["fd00::1 a t web-0@1"],
            " a*1 10.0.0.1:80=HEALTHY fd00::1:80=UNHEALTHY",
        ),
        (
            "several addresses of a pod in one family stay",
            &["10.0.0.1 a rs p1", "10.0.0.2 a rs p1"],
            &["fd00::1 a rs p1", "fd00::2 a rs p2", "fd00::3 a rs p2"],
            " a*4 10.0.0.1:80=HEALTHY 10.0.0.2:80=HEALTHY fd00::2:80=HEALTHY fd00::3:80=HEALTHY",
        ),
    ];
    for (case, four, six, expected) in cases {
        let (four, six) = (slice("web-4", &["http=80"], four), slice("web-6", &["http=80"], six));
        let expected = [format!("shop/web/http:{expected}")];
        assert_eq!(shown(&mut service(&[four.clone(), six.clone()])), expected, "{case}");
        assert_eq!(shown(&mut service(&[six, four])), expected, "{case}");
    }
}

#[test]
fn a_port_that_the_slices_of_one_family_do_not_have_yet_takes_the_other_family() {
    let four = slice("web-4", &["http=80"], &["10.0.0.1 a rs p1"]);
    let six = slice("web-6", &["http=80", "grpc=81"], &["fd00::1 a rs p1"]);
    assert_eq!(
        shown(&mut service(&[four, six])),
        ["shop/web/grpc: a*1 fd00::1:81=HEALTHY", "shop/web/http: a*1 10.0.0.1:80=HEALTHY"]
    );
    // A headless service without ports has none in its slices either.
    let headless = |name, endpoint| slice(name, &[], &[endpoint]);
    let slices = [headless("web-4", "10.0.0.1 a rs p1"), headless("web-6", "fd00::1 a rs p1")];
    assert_eq!(shown(&mut service(&slices)), [""; 0]);
}

#[test]
fn a_target_without_a_name_and_a_uid_is_none() {
    let of = |reference: ObjectReference| target_of(&reference);
    assert_eq!(of(ObjectReference { kind: Some("Pod".into()), ..ObjectReference::default() }), None);
    assert_eq!(
        of(ObjectReference { uid: Some(String::new()), ..target("p1") }).unwrap().0,
        "Pod/shop/p1/".into()
    );
    assert_ne!(of(target("p1@1")), of(target("p1@2")));
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
