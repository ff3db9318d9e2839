//! Reads of the cache of a client, and which server decides on them.

use super::fallback_tests::of_authorities;
use super::fixture::{Fixture, url};
use super::health::Status;
use super::*;
use crate::payload::Raw;
use crate::wire::fields;

const SERVER: (Protocol, ErrorPolicy) =
    (Protocol::Sotw, ErrorPolicy { fail_on_data_errors: false, resource_timer_is_transient_error: false });

/// The content of a resource, `-` if it is absent, or the code to use instead.
fn read(f: &Fixture, type_name: &str, name: &str) -> String {
    let guard = f.client.read::<Raw>(url(type_name), None);
    shown(guard.route(), name)
}

fn shown(route: ReadRoute<'_, Raw>, name: &str) -> String {
    match route {
        ReadRoute::Upstream(status) => status.code.to_string(),
        ReadRoute::Cache(resources) => match resources.get(name) {
            Ok(None) => "-".to_owned(),
            Ok(Some(found)) => {
                String::from_utf8(fields::text(&found.0, 2).expect("it has content").to_vec()).expect("text")
            }
            Err(ReadError::OtherAuthority { authority, .. }) => format!("of {authority:?}"),
            Err(error) => error.to_string(),
        },
    }
}

/// The stream of a server ends with UNIMPLEMENTED.
fn refuse(f: &mut Fixture, server: usize) {
    let status = Status { code: Code::UNIMPLEMENTED, message: "not here".into() };
    f.client.on_end(f.now, server, StreamEnd { status: Some(status), reason: "not here", jitter: 0 });
}

#[test]
fn g13_a_type_is_read_only_after_its_first_response() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut f = Fixture::new(protocol);
        assert_eq!(read(&f, "CDS", "a"), "UNAVAILABLE", "nobody watches it");
        f.watch("CDS", "a");
        f.watch("CDS", "b");
        f.watch("EDS", "a");
        f.sent(0);
        f.get("CDS v1 n1: a=1");
        assert_eq!([read(&f, "CDS", "a"), read(&f, "CDS", "b")], ["1", "-"], "{protocol:?}");
        assert_eq!(read(&f, "EDS", "a"), "UNAVAILABLE");
        // C5: silence makes the watched name absent, but says nothing about the type.
        f.pass(15);
        assert_eq!(read(&f, "EDS", "a"), "UNAVAILABLE");
        // An outage removes nothing.
        f.lose(0);
        assert_eq!(read(&f, "CDS", "a"), "1");
        f.connect(0);
        assert_eq!(read(&f, "CDS", "a"), "1", "stale");
    }
}

#[test]
fn g4_g4b_nothing_of_a_rejected_type_is_read_from_what_came_before() {
    for by_end in [true, false] {
        let mut f = Fixture::new(Protocol::Delta);
        f.watch("CDS", "a");
        f.watch("EDS", "a");
        f.sent(0);
        f.get("CDS v1 n1: a=1");
        f.get("EDS v1 n2: a=2");
        f.end(0);
        f.connect(0);
        assert_eq!(read(&f, "EDS", "a"), "2", "stale");
        f.get("CDS v1 n1: a=1");
        if by_end {
            refuse(&mut f, 0);
        } else {
            f.get("EDS v1 n2: a!12");
        }
        let guard = f.client.read::<Raw>(url("EDS"), None);
        let ReadRoute::Upstream(status) = guard.route() else { panic!("{by_end}: it is rejected") };
        assert_eq!(status.code, Code::UNIMPLEMENTED);
        if by_end {
            assert_eq!(&*status.message, "not here", "unchanged");
        }
        assert!(f.client.cache().snapshot().get(&url("EDS"), &"a".into()).is_some(), "it is still there");
        assert_eq!(read(&f, "CDS", "a"), "1", "others have nothing to do with it");
    }
}

#[test]
fn c15_the_last_server_in_use_decides_when_it_has_answered() {
    let mut f = Fixture::of(&[SERVER, SERVER]);
    f.watch("CDS", "a");
    f.connect(0);
    f.get("CDS v1 n1: a=1");
    f.lose(0);
    f.watch("CDS", "b");
    assert_eq!(f.wanted(), [0, 1]);
    f.connect(1);
    assert_eq!(read(&f, "CDS", "a"), "1", "of the server before it");
    refuse(&mut f, 1);
    assert_eq!(read(&f, "CDS", "a"), "UNIMPLEMENTED");
    // P4.6: the first server is back.
    f.connect(0);
    f.get("CDS v2 n1: a=2 b=2");
    assert_eq!(f.wanted(), [0]);
    assert_eq!(read(&f, "CDS", "a"), "2");
}

#[test]
fn c16_names_of_an_authority_are_read_with_its_servers_and_parameters() {
    let mut f = of_authorities();
    let [one, two, three] = ["one", "two", "three"]
        .map(|authority| format!("xdstp://{authority}/envoy.config.endpoint.v3.ClusterLoadAssignment/a"));
    let of_one = f.watch("EDS", &one);
    f.watch("EDS", &two);
    f.connect(0);
    f.get(&format!("EDS v1 n1: {one}=1"));
    assert_eq!(f.view(of_one), "1");
    let guard = f.client.read::<Raw>(url("EDS"), None);
    assert_eq!(shown(guard.route_of("one"), &one), "1");
    assert_eq!(shown(guard.route_of("one"), &two), "of \"two\"");
    assert_eq!(shown(guard.route_of("one"), "old"), "of \"\"");
    assert_eq!(shown(guard.route_of("two"), &two), "UNAVAILABLE", "its server has not answered");
    assert_eq!(shown(guard.route_of("three"), &three), "UNAVAILABLE", "X15");
    assert_eq!(shown(guard.route(), &one), "of \"one\"");
    let ReadRoute::Cache(resources) = guard.route() else { panic!("they share a server") };
    assert_eq!(resources.iter().count(), 0, "old-style names");
}

/// A type that the servers of one authority refuse is served for the names of the others.
#[test]
fn g4b_c16_a_type_is_refused_for_the_names_of_one_authority() {
    for by_end in [true, false] {
        let server = |name: &str, protocol| ServerConfig { name: name.into(), protocol, errors: SERVER.1 };
        let mut config = ClientConfig::new(Bytes::new(), server("one", Protocol::Delta));
        config.servers.push(server("two", Protocol::Delta));
        let two = AuthorityConfig { servers: vec![1], ..AuthorityConfig::default() };
        config.authorities.insert("two".to_owned(), two);
        let mut f = Fixture::of_config(config);
        let own = "xdstp://two/envoy.config.endpoint.v3.ClusterLoadAssignment/a";
        let watches = [f.watch("EDS", "a"), f.watch("EDS", own)];
        f.connect(0);
        f.connect(1);
        f.get("EDS v1 n1: a=1");
        if by_end {
            refuse(&mut f, 1);
        } else {
            f.get_from(1, &format!("EDS v1 n1: {own}!12"));
        }
        let guard = f.client.read::<Raw>(url("EDS"), None);
        assert_eq!([shown(guard.route(), "a"), shown(guard.route_of("two"), own)], ["1", "UNIMPLEMENTED"]);
        // A server that refuses all that it is asked for has failed (C15): nobody else is told.
        assert_eq!(f.view(watches[0]), "1", "{by_end}");
        f.get("EDS v2 n2: a=2");
        assert_eq!(read(&f, "EDS", "a"), "2");
    }
}
