//! What a proxy makes of variants, whatever its upstream does.

use std::time::Duration;

use super::fixture::World;
use crate::client::Protocol;
use crate::server::fixture::{Delta, Sotw, parameters, type_url};

const PROTOCOLS: [Protocol; 2] = [Protocol::Delta, Protocol::Sotw];

/// The variants of `X r` in the cache of the proxy.
fn held(world: &World) -> Vec<String> {
    let snapshot = world.proxy.cache().snapshot();
    let variants = snapshot.get(&type_url("X"), &"r".into());
    variants.into_iter().flat_map(|of| of.iter()).map(|variant| variant.constraints().to_string()).collect()
}

#[test]
fn t1_t42_variants_are_kept_by_name_and_constraints_and_each_locator_gets_its_own() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let mut leaves = ["r?env=a", "r?env=b", "r?"].map(|list| world.leaf("X", list));
        world.run();
        world.pass(Duration::from_millis(50));
        world.pass(Duration::from_millis(100));
        world.get("X v1 n1: r[env=a]=A r[env=b]=B r[!env]=C");
        assert_eq!(held(&world).len(), 3, "{protocol:?}");
        let got = leaves.each_mut().map(Delta::sent);
        assert_eq!(got, ["n1 X r[env=a]=A", "n1 X r[env=b]=B", "n1 X r[!env]=C"]);
        leaves.iter_mut().for_each(|leaf| _ = leaf.ack("X", "1"));
        // A change of one variant goes only to the clients that it matches.
        world.get("X v2 n2: r[env=b]=D");
        assert_eq!(leaves.each_mut().map(Delta::sent), ["", "n2 X r[env=b]=D", ""]);
    }
}

#[test]
fn t3_each_locator_of_a_stream_gets_the_one_variant_that_matches() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let mut leaf = world.leaf("X", "r?env=a&ver=1 r?env=a&ver=2 r?env=b");
        let mut state = world.sotw_leaf("X", "r?env=b r?env=a&ver=2");
        world.run();
        world.pass(Duration::from_millis(50));
        world.get("X v1 n1: r[env=a]=A r[env=b]=B r[env=c]=C");
        assert_eq!(leaf.sent(), "n1 X r[env=a]=A r[env=b]=B", "what nobody asked for is not kept (T41)");
        assert_eq!(state.sent(), "n1 X r[env=a]=A r[env=b]=B");
        assert_eq!(held(&world).len(), 2);
    }
}

#[test]
fn t20_of_variants_that_overlap_none_is_taken_and_what_was_there_stays() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let mut leaf = world.leaf("X", "r?env=a&ver=1 s?");
        world.run();
        world.get("X v1 n1: r[env=a]=A s[]=1");
        assert_eq!(leaf.sent(), "n1 X r[env=a]=A s[]=1");
        leaf.ack("X", "1");
        world.requested();
        // C4b: neither is taken, the rest is.
        world.get("X v2 n2: r[env=a,ver]=B r[ver=1]=C s[]=2");
        assert!(world.requested().starts_with('!'), "{protocol:?}: it is rejected");
        assert_eq!(leaf.sent(), "n2 X s[]=2");
        assert_eq!(held(&world), ["env=a"]);
        let mut late = world.leaf("X", "r?env=a&ver=1");
        assert_eq!(late.sent(), "n1 X r[env=a]=A");
    }
}

/// Order of operands and nesting are the upstream's, the canonical form is only the key (T21).
#[test]
fn t23_constraints_go_on_as_they_were_written() {
    use prost::Message;
    use xds_proto::envoy::service::discovery::v3::DynamicParameterConstraints as Wire;
    for protocol in PROTOCOLS {
        for written in ["ver=1,env=b || (env=a)", "!(!(zone=z)),env=a", "env=a || env=a"] {
            let written = written.replace(' ', "");
            let mut world = World::scripted(protocol);
            let mut leaf = world.leaf("X", "r?env=a&zone=z");
            world.run();
            world.get(&format!("X v1 n1: r[{written}]=A"));
            leaf.sent();
            let name = leaf.last.resources[0].resource_name.clone().unwrap();
            let sent = name.dynamic_parameter_constraints.unwrap();
            let constraints: crate::Constraints = written.parse().unwrap();
            let expected = Wire::decode(constraints.wire().clone()).unwrap();
            assert_eq!(sent, expected, "{protocol:?} {written}");
        }
    }
}

#[test]
fn t30b_a_removal_with_constraints_drops_that_variant_and_no_other() {
    let mut world = World::scripted(Protocol::Delta);
    let mut leaves = ["r?env=a&pod=1", "r?env=a&pod=2", "r?env=b"].map(|list| world.leaf("X", list));
    world.run();
    world.get("X v1 n1: r[env=a]=A r[env=b]=B");
    assert_eq!(world.requested(), "+r{env=a,pod=1} +r{env=b}");
    world.get("X v1 n2: r[env=b]=B");
    leaves.iter_mut().for_each(|leaf| {
        leaf.sent();
        leaf.ack("X", "1");
    });
    world.get("X v2 n3: -r[env=a]");
    assert_eq!(held(&world), ["env=b"]);
    // T43: only for the first it was an answer.
    assert_eq!(leaves.each_mut().map(Delta::sent), ["n2 X -r[env=a]", "", ""]);
    assert_eq!(world.requested(), "+r{env=a,pod=2}");
    world.get("X v2 n4: -r[env=a,pod=2]");
    assert_eq!(leaves.each_mut().map(Delta::sent), ["", "n2 X -r[env=a]", ""]);
    // Before resources, as one step.
    world.get("X v3 n5: -r[env=b] r[env=b,!ver]=C");
    assert_eq!(leaves[2].sent(), "n2 X r[env=b,!ver]=C -r[env=b]");
    // Of all variants at once.
    leaves[2].ack("X", "2");
    world.get("X v4 n6: -r");
    assert_eq!((leaves[2].sent(), held(&world).len()), ("n3 X -r[env=b,!ver]".into(), 0));
}

#[test]
fn t34_what_comes_for_a_locator_replaces_what_it_had_without_a_removal() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let mut own = world.leaf("X", "r?env=a&ver=1");
        world.run();
        world.get("X v1 n1: r[env=a]=A");
        let mut shared = world.leaf("X", "r?env=a&ver=2");
        let mut by_name = Sotw::new(world.proxy.cache());
        by_name.stream.on_node(parameters("env=a ver=1"));
        by_name.ask("X", "r", "");
        world.run();
        assert_eq!((own.sent(), shared.sent()), ("n1 X r[env=a]=A".into(), "n1 X r[env=a]=A".into()));
        assert_eq!(by_name.sent(), "n1 X r=A");
        [&mut own, &mut shared].into_iter().for_each(|leaf| _ = leaf.ack("X", "1"));
        by_name.ack("X", "1");
        world.requested();
        let outcome = world.get("X v2 n2: r[env=a,ver=1]=B");
        assert_eq!(outcome.response.unwrap().replaced, 1);
        assert_eq!(own.sent(), "n2 X r[env=a,ver=1]=B -r[env=a]", "{protocol:?}: T31, in one response");
        assert_eq!(by_name.sent(), "n2 X r=B", "T32: an update");
        assert_eq!(shared.sent(), "", "T43: not before its own answer");
        assert!(world.requested().contains("r{env=a,ver=2}"));
        world.get("X v3 n3: r[env=a,ver=1]=B r[env=a,ver=2]=C");
        assert_eq!(shared.sent(), "n2 X r[env=a,ver=2]=C -r[env=a]");
        assert_eq!((own.sent(), by_name.sent()), Default::default());
    }
}

#[test]
fn t44_names_go_up_as_locators_always_with_the_parameters_they_came_with() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let _leaf = world.leaf("X", "r? s?b=2&a=1");
        let mut by_name = Sotw::new(world.proxy.cache());
        by_name.stream.on_node(parameters("env=prod"));
        by_name.ask("X", "t", "");
        world.run();
        let sent = world.requested();
        for locator in ["r{}", "s{a=1,b=2}", "t{env=prod}"] {
            assert!(sent.contains(locator), "{protocol:?}: {sent}");
        }
    }
}

#[test]
fn t45_what_is_inside_is_opaque_and_a_rejection_below_goes_nowhere() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let mut leaves = ["c?pod=1", "c?pod=2"].map(|list| world.leaf("CDS", list));
        world.run();
        world.get("CDS v1 n1: c[]=A");
        world.requested();
        leaves.iter_mut().for_each(|leaf| assert_eq!(leaf.sent(), "n1 CDS c[]=A"));
        leaves[0].nack("CDS", "1");
        leaves[1].ack("CDS", "1");
        world.run();
        assert_eq!(world.requested(), "", "{protocol:?}");
        assert_eq!(leaves.each_mut().map(Delta::sent), ["", ""], "it is not sent that again");
        world.get("CDS v2 n2: c[]=B");
        assert_eq!(leaves.each_mut().map(Delta::sent), ["n2 CDS c[]=B", "n2 CDS c[]=B"]);
    }
}

#[test]
fn t45_an_envelope_that_breaks_a_rule_is_rejected_and_the_last_good_copy_stays() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let mut leaf = world.leaf("CDS", "c? d? e?");
        world.run();
        world.get("CDS v1 n1: c[]=A d[]=1");
        assert_eq!(leaf.sent(), "n1 CDS c[]=A d[]=1");
        leaf.ack("CDS", "1");
        world.requested();
        // Twice the same name.
        world.get("CDS v2 n2: c[]=B d[]=2 e[]=3 e[]=4");
        assert!(world.requested().starts_with('!'), "{protocol:?}");
        assert_eq!(leaf.sent(), "n2 CDS c[]=B d[]=2 e[]=3");
        leaf.ack("CDS", "2");
        // Neither a resource, nor a heartbeat of a cached one.
        world.get("CDS v3 n3: c[] d[]=5 e[]=3");
        assert!(world.requested().starts_with('!'));
        assert_eq!(leaf.sent(), "n3 CDS d[]=5", "others go on");
        assert_eq!(world.leaf("CDS", "c?").sent(), "n1 CDS c[]=B");
    }
}

#[test]
fn t47_what_a_name_says_of_parameters_chooses_no_variant() {
    let name = "xdstp://a/X/r?env=a";
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let mut leaf = Delta::new(world.proxy.cache());
        let locator = crate::subscription::Locator { name: name.into(), parameters: parameters("env=b") };
        let locators = [locator].into_iter().collect();
        let subscribe = crate::subscription::Requested { locators, ..Default::default() };
        let type_url = type_url("X").as_str().into();
        leaf.send(crate::server::DeltaRequest { type_url, subscribe, ..Default::default() });
        world.run();
        assert!(world.requested().contains(&format!("{name}{{env=b}}")), "{protocol:?}: each in its place");
        world.get(&format!("X v1 n1: {name}[env=a]=A {name}[env=b]=B"));
        assert_eq!(leaf.sent(), format!("n1 X {name}[env=b]=B"));
    }
}

#[test]
fn v25_who_turns_to_locators_keeps_what_its_names_got() {
    let mut world = World::delta("X r[env=a]=A s[env=a]=S s[env=b]=T");
    let mut leaf = Delta::new(world.proxy.cache());
    leaf.stream.on_node(parameters("env=a pod=1"));
    leaf.ask("X", "r s");
    world.run();
    assert_eq!(leaf.sent(), "n1 X r=A s=S");
    leaf.ack("X", "1");
    leaf.ask("X", "s?env=b");
    world.run();
    assert_eq!(leaf.sent(), "n2 X r[env=a]=A s[env=a]=S s[env=b]=T", "T25b");
    leaf.ack("X", "2");
    world.commit("X r[env=a]=B");
    assert_eq!(leaf.sent(), "n3 X r[env=a]=B");
    assert_eq!(world.requested(), "+r{env=a,pod=1} +s{env=a,pod=1} +s{env=b}");
}

#[test]
fn d9_what_is_given_up_and_asked_for_in_one_batch_is_sent_again() {
    for protocol in PROTOCOLS {
        let mut world = World::new(protocol, "X r[env=a]=A", Default::default());
        let mut leaf = world.leaf("X", "r?env=a");
        world.run();
        assert_eq!(leaf.sent(), "n1 X r[env=a]=A");
        leaf.ack("X", "1");
        world.requested();
        leaf.ask("X", "-r?env=a");
        leaf.ask("X", "r?env=a");
        assert_eq!(leaf.sent(), "n2 X r[env=a]=A");
        leaf.ack("X", "2");
        // T33: other parameters, and the same variant.
        leaf.ask("X", "-r?env=a r?env=a&pod=2");
        assert_eq!(leaf.sent(), "n3 X r[env=a]=A");
        world.run();
        assert_eq!(world.requested(), "", "{protocol:?}: it is in the cache");
        leaf.ack("X", "3");
        world.commit("X r[env=a]=B");
        assert_eq!(leaf.sent(), "n4 X r[env=a]=B");
    }
}

#[test]
fn d23_what_names_itself_otherwise_is_not_passed_on() {
    for protocol in PROTOCOLS {
        let mut world = World::scripted(protocol);
        let mut state = world.sotw_leaf("CDS", "r s");
        world.run();
        let outcome = world.get("CDS v1 n1: r[]=A s[]=B~r");
        assert_eq!(outcome.response.unwrap().rejections.len(), 1);
        assert_eq!(
            state.sent(),
            r#"n1 CDS r=A !"s"(14)"#,
            "a payload is known by its own name: there would be two of one"
        );
    }
}
