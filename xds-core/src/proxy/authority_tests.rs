//! Names of authorities, with servers for some of them or for none (C16, X15).

use super::ProxyConfig;
use super::fixture::World;
use crate::client::Protocol;

const CLUSTER: &str = "xdstp://b/envoy.config.cluster.v3.Cluster";
const PROTOCOLS: [Protocol; 2] = [Protocol::Delta, Protocol::Sotw];

#[test]
fn x15_without_servers_for_authorities_the_upstream_serves_all_of_them() {
    for protocol in PROTOCOLS {
        let content = format!("X xdstp://b/X/d/a=1 xdstp://b/X/e=2; CDS {CLUSTER}/c=static");
        let mut world = World::new(protocol, &content, ProxyConfig::default());
        let (mut named, mut glob) = (world.leaf("X", "xdstp://b/X/e"), world.leaf("X", "xdstp://b/X/d/*"));
        let mut sotw = world.sotw_leaf("X", "xdstp://b/X/e");
        let mut state = world.sotw_leaf("CDS", &format!("{CLUSTER}/c"));
        world.run();
        assert_eq!([named.sent(), glob.sent()], ["n1 X xdstp://b/X/e=2", "n1 X xdstp://b/X/d/a=1"]);
        let expected = ["n1 X xdstp://b/X/e=2".to_owned(), format!("n1 CDS {CLUSTER}/c=static")];
        assert_eq!([sotw.sent(), state.sent()], expected, "{protocol:?}");
    }
}

/// Regression: a full state (LDS, CDS) just lacked it, and a client took that for an absence.
#[test]
fn x15_an_authority_without_servers_beside_one_with_servers_is_an_error_and_no_absence() {
    for protocol in PROTOCOLS {
        let mut world = World::new(protocol, "X s=1; CDS s=1", ProxyConfig::default());
        world.authorities = vec!["a"];
        let (mut named, mut glob) = (world.leaf("X", "xdstp://b/X/e"), world.leaf("X", "xdstp://b/X/d/*"));
        let mut sotw = world.sotw_leaf("X", "xdstp://b/X/e");
        let mut state = world.sotw_leaf("CDS", &format!("{CLUSTER}/c s"));
        let mut state_glob = world.sotw_leaf("CDS", &format!("{CLUSTER}/d/*"));
        world.run();
        let errors = [r#"n1 X !"xdstp://b/X/e"(3)"#, r#"n1 X !"xdstp://b/X/d/*"(3)"#];
        assert_eq!([named.sent(), glob.sent()], errors);
        assert_eq!(sotw.sent(), errors[0], "{protocol:?}");
        assert_eq!(state.sent(), format!(r#"n1 CDS s=1 !"{CLUSTER}/c"(3)"#), "{protocol:?}");
        assert_eq!(state_glob.sent(), format!(r#"n1 CDS !"{CLUSTER}/d/*"(3)"#), "{protocol:?}");
    }
}
