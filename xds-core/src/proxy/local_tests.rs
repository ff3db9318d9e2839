//! Subscriptions of the program: what they read of types that the origin serves, rejects and serves again.

use std::time::Duration;

use super::fixture::{Refusal, World, by_node};
use super::local::{LocalStream, LocalSubscription, SubscribeError};
use super::{ProxyConfig, Route};
use crate::client::{Protocol, ReadError, ReadRoute, WatchError};
use crate::parameters::Parameters;
use crate::payload::Raw;
use crate::server::StreamConfig;
use crate::server::fixture::{parameters, payload, type_url};

const PROTOCOLS: [Protocol; 2] = [Protocol::Delta, Protocol::Sotw];

struct Program {
    subscription: LocalSubscription,
    stream: LocalStream,
    type_name: &'static str,
}

impl Program {
    fn new(world: &World, type_name: &'static str, names: &str, text: &str) -> Self {
        let names = names.split(' ');
        let subscription = LocalSubscription::new(type_url(type_name), names, parameters(text)).unwrap();
        let (cache, config) = (world.proxy.cache(), StreamConfig::default());
        let stream = LocalStream::with(config, world.now, cache, subscription.clone()).unwrap();
        Self { subscription, stream, type_name }
    }

    /// The content of a name; `-` if it is absent, or the code of its error.
    fn read(&self, world: &World, name: &str) -> String {
        let guard = world.proxy.read::<Raw>(&self.subscription);
        match guard.route() {
            ReadRoute::Upstream(status) => format!("upstream {}", status.code),
            ReadRoute::Cache(resources) => match resources.get(name) {
                Ok(None) => "-".to_owned(),
                Ok(Some(found)) => {
                    let is_it = |content: &u8| {
                        payload(self.type_name, found.name().as_str(), &content.to_string()) == found.0
                    };
                    (0..10).find(is_it).expect("contents are digits").to_string()
                }
                Err(ReadError::Unknown { status, .. }) => status.code.to_string(),
                Err(error) => panic!("{error}"),
            },
        }
    }

    fn names(&self, world: &World) -> Vec<String> {
        let guard = world.proxy.read::<Raw>(&self.subscription);
        let ReadRoute::Cache(resources) = guard.route() else { panic!("it is served") };
        resources.iter().map(|found| found.unwrap().name().to_string()).collect()
    }

    fn is_answered(&self, world: &World) -> bool {
        world.proxy.is_answered(&self.subscription)
    }
}

fn settle(world: &mut World) {
    world.run();
    for _ in 0..10 {
        world.pass(Duration::from_secs(5));
    }
}

#[test]
fn a_program_reads_what_it_subscribed_to_with_its_parameters() {
    for protocol in PROTOCOLS {
        let mut world =
            World::new(protocol, "CDS c[env=a]=1 c[env=b]=2 d[env=a]=3 e[env=b]=4", ProxyConfig::default());
        let mut program = Program::new(&world, "CDS", "c d e", "env=a");
        assert!(!program.is_answered(&world));
        assert_eq!(program.read(&world, "c"), "upstream UNAVAILABLE");
        settle(&mut world);
        assert!(program.is_answered(&world), "{protocol:?}");
        assert_eq!(["c", "d", "e"].map(|name| program.read(&world, name)), ["1", "3", "-"], "{protocol:?}");
        assert_eq!(program.read(&world, "f"), "UNAVAILABLE", "it did not subscribe to f");
        assert_eq!(program.names(&world), ["c", "d"]);
        program.stream.work(world.now).unwrap();
        world.commit("CDS c[env=a]=5");
        assert_eq!(program.read(&world, "c"), "5");
        drop(program);
        settle(&mut world);
        world.pass(Duration::from_secs(3600));
        assert_eq!(world.proxy.load().downstream, 0, "{protocol:?}");
    }
}

#[test]
fn t43_a_program_shares_the_upstream_subscription_of_a_client() {
    let mut world = World::delta("CDS c[env=a]=1");
    let mut leaf = world.leaf("CDS", "c?env=a&pod=1");
    world.run();
    assert_eq!(leaf.sent(), "n1 CDS c[env=a]=1");
    let program = Program::new(&world, "CDS", "c", "env=a pod=2");
    world.run();
    assert_eq!((program.is_answered(&world), world.proxy.load().upstream), (true, 1));
    assert_eq!(program.read(&world, "c"), "1");
}

#[test]
fn a_program_with_a_wildcard_waits_for_all_of_it() {
    for protocol in PROTOCOLS {
        let mut world = World::new(protocol, "CDS c[env=a]=1 d[env=b]=2", ProxyConfig::default());
        let program = Program::new(&world, "CDS", "*", "env=a");
        let _other = world.leaf("CDS", "d?env=b");
        assert!(!program.is_answered(&world));
        settle(&mut world);
        assert!(program.is_answered(&world), "{protocol:?}");
        assert_eq!(program.names(&world), ["c"], "{protocol:?}: not the one for another client");
        assert_eq!(["c", "x"].map(|name| program.read(&world, name)), ["1", "UNAVAILABLE"]);
    }
}

#[test]
fn g4b_a_type_that_ends_the_main_stream_is_read_from_its_side_stream() {
    for protocol in PROTOCOLS {
        let mut world = World::new(protocol, "CDS c=1; Y y[env=a]=1", ProxyConfig::default());
        world.refused.insert("Y", Refusal::AmongOthers);
        let clusters = world.leaf("CDS", "c");
        let program = Program::new(&world, "Y", "y z", "env=a");
        settle(&mut world);
        assert!(program.is_answered(&world), "{protocol:?}");
        assert_eq!([program.read(&world, "y"), program.read(&world, "z")], ["1", "-"], "{protocol:?}");
        world.commit("Y y[env=a]=2");
        assert_eq!(program.read(&world, "y"), "2");
        assert_eq!(program.names(&world), ["y"]);
        // A newer server: the type is on the main stream again, and is readable all the time.
        world.refused.clear();
        world.lose();
        world.pass(Duration::from_secs(30));
        world.is_up = true;
        for _ in 0..60 {
            world.pass(Duration::from_secs(1));
            assert_eq!(program.read(&world, "y"), "2", "{protocol:?}");
        }
        assert_eq!(world.routes(), [Route::SHARED], "{protocol:?}");
        drop(clusters);
    }
}

#[test]
fn g4_nothing_of_a_type_that_is_rejected_everywhere_is_read_from_what_came_before() {
    for refusal in [Refusal::Always, Refusal::ByErrors] {
        let mut world = World::new(Protocol::Delta, "CDS c=1; Y y=1", ProxyConfig::default());
        let _clusters = world.leaf("CDS", "c");
        let program = Program::new(&world, "Y", "y", "");
        settle(&mut world);
        assert_eq!(program.read(&world, "y"), "1");
        world.lose();
        world.refused.insert("Y", refusal);
        world.is_up = true;
        settle(&mut world);
        assert_eq!(program.read(&world, "y"), "upstream UNIMPLEMENTED", "{refusal:?}");
        assert!(program.is_answered(&world));
        let late = Program::new(&world, "Y", "y z", "");
        settle(&mut world);
        assert!(late.is_answered(&world), "{refusal:?}");
        assert_eq!([late.read(&world, "y"), late.read(&world, "z")], ["upstream UNIMPLEMENTED"; 2]);
    }
}

#[test]
fn by_node_a_program_reads_the_stream_of_its_node() {
    let content = "CDS c[env=a]=1 c[env=b]=2";
    let mut world = World::new(Protocol::Delta, content, by_node(&["env"]));
    let programs = ["env=a", "env=b"].map(|text| Program::new(&world, "CDS", "c", text));
    settle(&mut world);
    assert_eq!(programs.each_ref().map(|program| program.read(&world, "c")), ["1", "2"]);
}

/// T43c: the upstream does not say which clients the resource is for.
#[test]
fn t43c_a_program_reads_what_came_for_its_parameters_alone() {
    let mut world = World::new(Protocol::Sotw, "CDS c=1", ProxyConfig::default());
    let program = Program::new(&world, "CDS", "c", "env=a");
    settle(&mut world);
    assert!(program.is_answered(&world));
    assert_eq!((program.read(&world, "c"), program.names(&world)), ("1".into(), vec!["c".into()]));
}

#[test]
fn x6_w2_bad_names_and_parameters_are_named() {
    let subscribe = |name: &str, parameters| LocalSubscription::new(type_url("CDS"), [name], parameters);
    let error = subscribe("a\n", Parameters::new()).unwrap_err();
    assert!(matches!(&error, SubscribeError::Invalid(WatchError::Name { name, .. }) if name == "a\n"));
    assert!(error.to_string().contains("\"a\\n\" cannot be watched"), "{error}");
    let error = subscribe("a", [("b\u{1}", "c")].into_iter().collect()).unwrap_err();
    assert!(error.to_string().contains("\"b\\u{1}\""), "{error}");
    let none = LocalSubscription::new(type_url("CDS"), [], Parameters::new());
    assert_eq!(none.unwrap_err(), SubscribeError::NoNames);
    // G9: the limits of streams.
    let world = World::delta("");
    let many = LocalSubscription::new(type_url("CDS"), ["a", "b"], Parameters::new()).unwrap();
    let config = StreamConfig { names_limit: 1, ..StreamConfig::default() };
    let error = LocalStream::with(config, world.now, world.proxy.cache(), many).unwrap_err();
    assert!(error.to_string().contains("exceed the limit of 1"), "{error}");
}
