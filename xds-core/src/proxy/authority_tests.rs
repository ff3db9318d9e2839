//! Names of authorities, with servers for some of them or for none (C16, X15).

use super::ProxyConfig;
use super::fixture::World;
use crate::client::Protocol;

const LISTENER: &str = "xdstp://b/envoy.config.listener.v3.Listener";
const OTHER: &str = "xdstp://a/envoy.config.listener.v3.Listener/o";
const PROTOCOLS: [Protocol; 2] = [Protocol::Delta, Protocol::Sotw];

/// One server, which the proxy also uses as the server of this authority.
fn with_servers_for_a() -> ProxyConfig {
    ProxyConfig { authorities: ["a".to_owned()].into(), ..ProxyConfig::default() }
}

#[test]
fn x15_without_servers_for_authorities_the_upstream_serves_all_of_them() {
    for protocol in PROTOCOLS {
        let content = format!("X xdstp://b/X/d/a=1 xdstp://b/X/e=2; LDS {LISTENER}/c=1");
        let mut world = World::new(protocol, &content, ProxyConfig::default());
        let (mut named, mut glob) = (world.leaf("X", "xdstp://b/X/e"), world.leaf("X", "xdstp://b/X/d/*"));
        let mut sotw = world.sotw_leaf("X", "xdstp://b/X/e");
        let mut state = world.sotw_leaf("LDS", &format!("{LISTENER}/c"));
        world.run();
        assert_eq!([named.sent(), glob.sent()], ["n1 X xdstp://b/X/e=2", "n1 X xdstp://b/X/d/a=1"]);
        let expected = ["n1 X xdstp://b/X/e=2".to_owned(), format!("n1 LDS {LISTENER}/c=1")];
        assert_eq!([sotw.sent(), state.sent()], expected, "{protocol:?}");
    }
}

/// Regression: a full state (LDS, LDS) just lacked it, and a client took that for an absence.
#[test]
fn x15_an_authority_without_servers_beside_one_with_servers_is_an_error_and_no_absence() {
    for protocol in PROTOCOLS {
        let mut world = World::new(protocol, "X s=1; LDS s=1", with_servers_for_a());
        let (mut named, mut glob) = (world.leaf("X", "xdstp://b/X/e"), world.leaf("X", "xdstp://b/X/d/*"));
        let mut sotw = world.sotw_leaf("X", "xdstp://b/X/e");
        let mut state = world.sotw_leaf("LDS", &format!("{LISTENER}/c s"));
        let mut state_glob = world.sotw_leaf("LDS", &format!("{LISTENER}/d/*"));
        world.run();
        let errors = [r#"n1 X !"xdstp://b/X/e"(3)"#, r#"n1 X !"xdstp://b/X/d/*"(3)"#];
        assert_eq!([named.sent(), glob.sent()], errors);
        assert_eq!(sotw.sent(), errors[0], "{protocol:?}");
        assert_eq!(state.sent(), format!(r#"n1 LDS s=1 !"{LISTENER}/c"(3)"#), "{protocol:?}");
        assert_eq!(state_glob.sent(), format!(r#"n1 LDS !"{LISTENER}/d/*"(3)"#), "{protocol:?}");
    }
}

/// Regression: a wildcard got the resources that other clients subscribed to by name.
#[test]
fn c16_a_wildcard_does_not_stand_for_names_of_authorities_with_servers_of_their_own() {
    for protocol in PROTOCOLS {
        let content = format!("LDS c=1 {LISTENER}/d=1 {OTHER}=1");
        let mut world = World::new(protocol, &content, with_servers_for_a());
        let mut named = world.leaf("LDS", OTHER);
        let mut lists =
            ["", "*", "*?env=a"].map(|list| (world.leaf("LDS", list), world.sotw_leaf("LDS", list)));
        world.run();
        assert_eq!(named.sent(), format!("n1 LDS {OTHER}=1"));
        named.ack("LDS", "1");
        let by_name = format!("n1 LDS c=1 {LISTENER}/d=1");
        let located = format!("n1 LDS c[]=1 {LISTENER}/d[]=1");
        for (at, (delta, sotw)) in lists.iter_mut().enumerate() {
            let expected = if at < 2 { &by_name } else { &located };
            assert_eq!([delta.sent(), sotw.sent()], [expected.as_str(); 2], "{protocol:?} {at}");
            delta.ack("LDS", "1");
            sotw.ack("LDS", "1");
        }
        world.commit(&format!("LDS {OTHER}=2"));
        assert_eq!(named.sent(), format!("n2 LDS {OTHER}=2"));
        named.ack("LDS", "2");
        lists.iter_mut().for_each(|(delta, sotw)| assert_eq!([delta.sent(), sotw.sent()], ["", ""]));
        world.commit(&format!("LDS -{OTHER}"));
        for second in 0..30 {
            let time = std::time::Duration::from_secs(1);
            world.pass(time);
            for (delta, sotw) in &mut lists {
                delta.pass(time);
                sotw.pass(time);
                assert_eq!([delta.sent(), sotw.sent()], ["", ""], "{second}");
            }
        }
    }
}

#[test]
fn c16_d18_s22_a_name_beside_the_wildcard_comes_and_goes_with_who_lists_it() {
    for protocol in PROTOCOLS {
        let mut world = World::new(protocol, &format!("LDS c=1 {OTHER}=1"), with_servers_for_a());
        let (mut delta, mut sotw) = (world.leaf("LDS", &format!("* {OTHER}")), world.sotw_leaf("LDS", "*"));
        let mut located = world.leaf("LDS", &format!("*?env=a {OTHER}?env=a"));
        world.run();
        assert_eq!(delta.sent(), format!("n1 LDS c=1 {OTHER}=1"), "{protocol:?}");
        assert_eq!(located.sent(), format!("n1 LDS c[]=1 {OTHER}[]=1"));
        assert_eq!(sotw.sent(), "n1 LDS c=1");
        sotw.ask("LDS", &format!("* {OTHER}"), "1");
        world.run();
        assert_eq!(sotw.sent(), format!("n2 LDS c=1 {OTHER}=1"));
        delta.ack("LDS", "1");
        located.ack("LDS", "1");
        world.commit(&format!("LDS {OTHER}=2"));
        assert_eq!(
            [delta.sent(), located.sent()],
            [format!("n2 LDS {OTHER}=2"), format!("n2 LDS {OTHER}[]=2")]
        );
        delta.ack("LDS", "2");
        located.ack("LDS", "2");
        delta.ask("LDS", &format!("-{OTHER}"));
        located.ask("LDS", &format!("-{OTHER}?env=a"));
        sotw.ask("LDS", "*", "2");
        world.run();
        assert_eq!(
            [delta.sent(), located.sent()],
            [format!("n3 LDS -{OTHER}"), format!("n3 LDS -{OTHER}[]")]
        );
        assert_eq!(sotw.sent(), "n3 LDS c=1");
    }
}
