use quickcheck::{Arbitrary, Gen, quickcheck};
use xds_core::matching::SetError;

use super::*;

/// A cluster with `when:`, or without it if `when` is empty.
fn cluster(name: &str, when: &str) -> String {
    resource("envoy.config.cluster.v3.Cluster", when, &format!("name: {name}"))
}

/// A route configuration with routes to the clusters.
fn routes(name: &str, when: &str, clusters: &[&str]) -> String {
    let route = |cluster: &&str| format!("{{match: {{prefix: /}}, route: {{cluster: {cluster}}}}}");
    let routes: Vec<_> = clusters.iter().map(route).collect();
    let hosts =
        format!("name: {name}\nvirtual_hosts: [{{name: v, domains: ['*'], routes: [{}]}}]", routes.join(","));
    resource("envoy.config.route.v3.RouteConfiguration", when, &hosts)
}

fn resource(message: &str, when: &str, rest: &str) -> String {
    let when = if when.is_empty() { String::new() } else { format!("when: '{when}'\n") };
    format!("---\n\"@type\": type.googleapis.com/{message}\n{when}{rest}\n")
}

fn contents(domains: &str, documents: &[String]) -> Contents {
    Contents::of_texts(&[("a.yaml", &documents.concat()), ("domains.yaml", domains)])
}

/// The line, kind and message of each warning, without the packages.
fn warnings(domains: &str, documents: &[String]) -> Vec<String> {
    let contents = contents(domains, documents);
    assert_eq!(contents.errors(), None);
    let shown = |warning: &Warning| {
        let text =
            warning.to_string().replace("envoy.config.cluster.v3.", "").replace("envoy.config.route.v3.", "");
        let text = text.replace("envoy.config.endpoint.v3.", "");
        format!("{} {}: {text}", warning.locations[0].line, warning.kind())
    };
    contents.warnings().iter().map(shown).collect()
}

#[test]
fn t18_gaps_are_judged_over_all_clients_unless_the_domains_say_which_there_are() {
    let two = [cluster("c", "env=prod,!version"), cluster("c", "env=test,version || env=test,!version")];
    assert_eq!(
        warnings("{}", &two),
        ["2 gap: Cluster \"c\": no variant for (env=\"prod\", version=\"other\"), (no env, any version), \
             (env=\"other\", any version)"]
    );
    assert_eq!(
        warnings("{env: [prod, test], version: {values: [v1], absent: true}}", &two),
        ["2 gap: Cluster \"c\": no variant for (env=\"prod\", version=\"v1\")"]
    );
    assert_eq!(warnings("{env: [prod, test], version: {absent: true}}", &two), [""; 0]);
    let warnings = contents("env: [qa]", &two).warnings();
    assert_eq!(
        warnings.iter().find(|warning| warning.kind() == "gap").unwrap().hint().unwrap(),
        "a variant with `when: 'env=qa,(version || !version)'` fills the first of these; or list in domains.yaml the \
         values that version can have"
    );
}

#[test]
fn t18_a_variant_that_no_client_gets_is_dead() {
    let two = [cluster("c", "env=prod"), cluster("c", "env!=prod")];
    assert_eq!(warnings("{}", &two), [""; 0]);
    assert_eq!(
        warnings("env: [prod]", &two),
        ["6 dead-variant: Cluster \"c\" [env!=prod]: no client that domains.yaml allows gets this variant"]
    );
}

#[test]
fn t12_a_key_that_all_name_and_none_depends_on_is_idle() {
    let idle = |when: &str| format!("{when},version || {when},!version");
    let all = [cluster("c", &idle("env=prod")), cluster("c", &idle("env!=prod"))];
    assert_eq!(
        warnings("{}", &all),
        ["2 idle-key: Cluster \"c\": no variant depends on the key \"version\", which all of them name"]
    );
    // One variant depends on the key, so the others must name it.
    let one = [
        cluster("c", "env=prod,version=v1"),
        cluster("c", "env=prod,version!=v1"),
        cluster("c", &idle("env!=prod")),
    ];
    assert_eq!(warnings("{}", &one), [""; 0]);
}

#[test]
fn t10_the_empty_key_is_told() {
    let found = warnings("{}", &[cluster("c", "\"\"=x"), cluster("c", "\"\"!=x")]);
    assert_eq!(found, ["2 empty-key: Cluster \"c\": a `when:` has an empty key"]);
}

#[test]
fn a_name_that_the_folder_lacks_is_told_with_a_similar_one() {
    let contents =
        contents("{}", &[cluster("payments", ""), routes("r", "", &["payments", "payment", "xds"])]);
    let found: Vec<_> =
        contents.warnings().iter().map(|warning| (warning.to_string(), warning.hint())).collect();
    let names = |name| {
        format!(
            "envoy.config.route.v3.RouteConfiguration \"r\": names envoy.config.cluster.v3.Cluster \"{name}\", which is \
             not in this folder"
        )
    };
    let bootstrap = "no mistake if it is in the bootstrap of every client";
    assert_eq!(
        found,
        [
            (names("payment"), Some("did you mean \"payments\"?".into())),
            (names("xds"), Some(bootstrap.into()))
        ]
    );
}

#[test]
fn clients_that_get_a_route_but_not_its_cluster_are_told() {
    let documents = [
        routes("r", "env=prod", &["c", "for-all"]),
        routes("r", "env!=prod", &["c"]),
        cluster("c", "env=prod"),
        cluster("c", "env=test"),
        cluster("for-all", ""),
    ];
    let found = warnings("{}", &documents);
    assert_eq!(
        found[0],
        "7 uncovered-reference: RouteConfiguration \"r\" [env!=prod]: names Cluster \"c\", which has no variant for (no \
         env), (env=\"other\")"
    );
    assert!(found.len() == 2 && found[1].contains(" gap: Cluster"), "{found:#?}");
    assert_eq!(warnings("env: [prod, test]", &documents), [""; 0]);
}

#[test]
fn keys_make_no_difference_to_clients_whom_no_variant_is_for() {
    let documents =
        [routes("r", "env=test", &["c"]), routes("r", "env!=test", &[]), cluster("c", "env=prod,version=v1")];
    let found = warnings("{env: [prod, test], version: [v1]}", &documents);
    assert_eq!(
        found[0],
        "2 uncovered-reference: RouteConfiguration \"r\" [env=test]: names Cluster \"c\", which has no variant for \
         (env=\"test\", any version)"
    );
}

#[test]
fn s34_an_eds_cluster_names_its_assignment_where_the_source_is_ours() {
    let eds = |name: &str, rest: &str| {
        let config = format!("name: {name}\ntype: EDS\neds_cluster_config: {{eds_config: {rest}}}");
        resource("envoy.config.cluster.v3.Cluster", "", &config)
    };
    let other = "{api_config_source: {api_type: GRPC, grpc_services: [{envoy_grpc: {cluster_name: x}}]}}";
    let documents = [
        eds("own", "{ads: {}}"),
        eds("self", "{self: {}}, service_name: service"),
        eds("there", "{ads: {}}"),
        eds("elsewhere", other),
        resource("envoy.config.cluster.v3.Cluster", "", "name: static"),
        resource("envoy.config.endpoint.v3.ClusterLoadAssignment", "", "cluster_name: there"),
    ];
    assert_eq!(
        warnings("{}", &documents),
        [
            "2 missing-reference: Cluster \"own\": names ClusterLoadAssignment \"own\", which is not in this folder",
            "7 missing-reference: Cluster \"self\": names ClusterLoadAssignment \"service\", which is not in this folder",
        ]
    );
}

#[test]
fn references_are_found_in_whatever_a_listener_holds() {
    const LISTENER: &str = r#"
name: l
address: { socket_address: { address: 127.0.0.1, port_value: 80 } }
filter_chains:
- transport_socket:
    name: tls
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
      common_tls_context:
        tls_certificate_sds_secret_configs:
        - { name: certificate, sds_config: { ads: {} } }
        - { name: in-bootstrap }
  filters:
  - name: hcm
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      stat_prefix: s
      rds: { route_config_name: routes, config_source: { ads: {} } }
      http_filters:
      - name: filter
        config_discovery:
          config_source: { ads: {} }
          type_urls: [type.googleapis.com/envoy.extensions.filters.http.router.v3.Router]
- filter_chain_match: { destination_port: 1 }
  filters:
  - name: tcp
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
      stat_prefix: s
      weighted_clusters: { clusters: [{ name: tcp, weight: 1 }] }
"#;
    let scope = "name: s\nroute_configuration_name: scoped\nkey: {fragments: [{string_key: k}]}";
    let contents = contents(
        "{}",
        &[
            resource("envoy.config.listener.v3.Listener", "", LISTENER),
            resource("envoy.config.route.v3.ScopedRouteConfiguration", "", scope),
        ],
    );
    let warnings = contents.warnings();
    let mut found: Vec<_> = warnings.iter().map(|warning| warning.reference().unwrap().to_string()).collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "envoy.config.cluster.v3.Cluster \"tcp\"",
            "envoy.config.core.v3.TypedExtensionConfig \"filter\"",
            "envoy.config.route.v3.RouteConfiguration \"routes\"",
            "envoy.config.route.v3.RouteConfiguration \"scoped\"",
            "envoy.extensions.transport_sockets.tls.v3.Secret \"certificate\"",
        ]
    );
}

#[test]
fn t15_every_name_that_is_wrong_is_told_and_the_rest_is_judged() {
    let contents = contents(
        "{}",
        &[
            cluster("a", ""),
            cluster("a", "env=prod"),
            cluster("b", "env=prod"),
            cluster("b", "env=test,version=v1"),
            cluster("c", "env=prod,env=test"),
            cluster("d", "env=prod"),
            routes("r", "", &["a", "d"]),
        ],
    );
    let errors: Vec<_> = contents.errors().unwrap().iter().map(|error| error.at.unwrap().line).collect();
    assert_eq!(errors, [5, 13, 17]);
    let kinds: Vec<_> =
        contents.warnings().iter().map(|warning| (warning.locations[0].line, warning.kind())).collect();
    assert_eq!(kinds, [(21, "gap"), (25, "uncovered-reference")]);
}

/// A condition in a small world: two keys and two values.
#[derive(Debug, Clone)]
struct When(String);

impl Arbitrary for When {
    fn arbitrary(g: &mut Gen) -> Self {
        const LITERALS: [&str; 4] = ["k=x", "k!=x", "k", "!k"];
        let mut literal = |key: &str| g.choose(&LITERALS).expect("there are four").replace('k', key);
        let (a, b) = (literal("a"), literal("b"));
        Self(if *g.choose(&[true, true, false]).expect("there are three") {
            format!("{a},{b}")
        } else {
            format!("({a} || {b})")
        })
    }
}

/// The domains of the keys of the world. A key that can have any value is not in `domains.yaml`.
#[derive(Debug, Clone)]
struct World([Domain; 2]);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Domain {
    x: bool,
    other: bool,
    absent: bool,
}

impl Domain {
    const EVERYTHING: Self = Self { x: true, other: true, absent: true };

    fn has(self, value: Option<&str>) -> bool {
        match value {
            None => self.absent,
            // Any other value includes the listed ones.
            Some("x") => self.x || self.other,
            Some(_) => self.other,
        }
    }
}

impl Arbitrary for World {
    fn arbitrary(g: &mut Gen) -> Self {
        let mut domain = || {
            let (x, other, absent) = (bool::arbitrary(g), bool::arbitrary(g), bool::arbitrary(g));
            if x || other || absent { Domain { x, other, absent } } else { Domain::EVERYTHING }
        };
        Self([domain(), domain()])
    }
}

impl World {
    fn text(&self) -> String {
        let line = |(key, domain): (&str, &Domain)| {
            let Domain { x, other, absent } = domain;
            let values = if *x { "x" } else { "" };
            format!("{key}: {{values: [{values}], other: {other}, absent: {absent}}}\n")
        };
        let declared =
            ["a", "b"].into_iter().zip(&self.0).filter(|(_, domain)| **domain != Domain::EVERYTHING);
        declared.map(line).collect::<String>() + "c: [x]\n"
    }

    /// Whether such clients exist, for any values of the free keys.
    fn has(&self, point: &Parameters, free: &[Arc<str>]) -> bool {
        let has = |(key, domain): (&str, &Domain)| {
            free.iter().any(|free| **free == *key) || domain.has(point.get(key).map(|value| &**value))
        };
        ["a", "b"].into_iter().zip(&self.0).all(has)
    }
}

/// The conditions that do not conflict with one before.
fn compatible(whens: &[When]) -> Vec<&str> {
    let mut kept: Vec<(Constraints, &str)> = Vec::new();
    for When(text) in whens {
        kept.push((text.parse().unwrap(), text));
        let set: Result<_, SetError<()>> =
            VariantSet::of(kept.iter().map(|(constraints, _)| (constraints, ())));
        if set.is_err() {
            kept.pop();
        }
    }
    kept.into_iter().map(|(_, text)| text).collect()
}

/// All parameters that the conditions of [`When`] can distinguish.
fn points() -> Vec<Parameters> {
    const OUTCOMES: [Option<&str>; 3] = [None, Some("x"), Some("other")];
    let point = |a: Option<&'static str>, b: Option<&'static str>| {
        a.map(|a| ("a", a)).into_iter().chain(b.map(|b| ("b", b))).collect()
    };
    OUTCOMES.into_iter().flat_map(|a| OUTCOMES.map(|b| point(a, b))).collect()
}

quickcheck! {
    fn t18_witnesses_are_matched_by_no_variant_and_stand_for_all_gaps(whens: Vec<When>, world: World) -> bool {
        let whens = compatible(&whens);
        if whens.is_empty() {
            return true;
        }
        let documents: Vec<_> = whens.iter().map(|when| cluster("c", when)).collect();
        let constraints: Vec<Constraints> = whens.iter().map(|when| when.parse().unwrap()).collect();
        let has_variant = |point: &Parameters| constraints.iter().any(|constraints| constraints.matches(point));
        let warnings = contents(&world.text(), &documents).warnings();
        let gaps: Vec<_> = warnings.iter().filter(|warning| warning.kind() == "gap").collect();
        let is_complete = points().iter().filter(|point| world.has(point, &[])).all(has_variant);
        let is_gap = |gap: &Uncovered| !has_variant(&gap.witness) && world.has(&gap.witness, &gap.free);
        gaps.is_empty() == is_complete
            && gaps.iter().flat_map(|gap| gap.witnesses()).all(is_gap)
            && warnings.iter().filter(|warning| warning.kind() == "dead-variant").all(|warning| {
                let Some(constraints) = &warning.constraints else { return false };
                !points().iter().any(|point| world.has(point, &[]) && constraints.matches(point))
            })
            // The suggested variant does not conflict with the others.
            && gaps.iter().all(|gap| {
                let Finding::Gap { gaps, filled_by, .. } = &gap.finding else { return false };
                let added = Constraints::from_formula(filled_by.clone()).unwrap();
                let set: Result<_, SetError<()>> =
                    VariantSet::of(constraints.iter().chain([&added]).map(|constraints| (constraints, ())));
                set.is_ok() && filled_by.matches(&gaps[0].witness)
            })
    }

    fn witnesses_of_references_get_the_referrer_and_nothing_of_what_it_names(
        referrer: When,
        whens: Vec<When>,
        world: World
    ) -> bool {
        let whens = compatible(&whens);
        let referrer_constraints: Constraints = referrer.0.parse().unwrap();
        if whens.is_empty() || Normal::of(referrer_constraints.formula()).unwrap().is_unsatisfiable() {
            return true;
        }
        let mut documents: Vec<_> = whens.iter().map(|when| cluster("c", when)).collect();
        documents.push(routes("r", &referrer.0, &["c"]));
        let constraints: Vec<Constraints> = whens.iter().map(|when| when.parse().unwrap()).collect();
        let is_gap = |point: &Parameters| {
            referrer_constraints.matches(point) && !constraints.iter().any(|constraints| constraints.matches(point))
        };
        let warnings = contents(&world.text(), &documents).warnings();
        let uncovered: Vec<_> = warnings.iter().filter(|warning| warning.kind() == "uncovered-reference").collect();
        uncovered.is_empty() != points().iter().any(|point| world.has(point, &[]) && is_gap(point))
            && uncovered
                .iter()
                .flat_map(|warning| warning.witnesses())
                .all(|gap| is_gap(&gap.witness) && world.has(&gap.witness, &gap.free))
    }
}

/// The cache finds references by field numbers, this module by descriptors. Both must find the
/// same.
#[test]
fn s33_the_cache_finds_the_same_references() {
    const LISTENER: &str = r#"
name: l
address: { socket_address: { address: 127.0.0.1, port_value: 80 } }
listener_filters:
- { name: found, config_discovery: { config_source: { ads: {} }, type_urls: [a/b] } }
access_log:
- name: log
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.TcpGrpcAccessLogConfig
    common_config: { log_name: l, grpc_service: { envoy_grpc: { cluster_name: log } } }
default_filter_chain:
  filters:
  - { name: network, config_discovery: { config_source: { ads: {} }, type_urls: [a/b] } }
filter_chains:
- transport_socket:
    name: tls
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
      session_ticket_keys_sds_secret_config: { name: keys, sds_config: { ads: {} } }
      common_tls_context:
        tls_certificate_sds_secret_configs: [{ name: certificate, sds_config: { ads: {} } }]
        combined_validation_context:
          default_validation_context: {}
          validation_context_sds_secret_config: { name: ca, sds_config: { ads: {} } }
  filters:
  - name: redis
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.redis_proxy.v3.RedisProxy
      stat_prefix: s
      settings: { op_timeout: 1s }
      prefix_routes: { routes: [{ prefix: p, cluster: redis }], catch_all_route: { cluster: all } }
- filter_chain_match: { destination_port: 1 }
  filters:
  - name: tcp
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
      stat_prefix: s
      weighted_clusters: { clusters: [{ name: tcp, weight: 1 }] }
- filter_chain_match: { destination_port: 2 }
  filters:
  - name: udp
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
      stat_prefix: s
      cluster: tcp2
- filter_chain_match: { destination_port: 3 }
  filters:
  - name: hcm
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      stat_prefix: s
      tracing:
        provider:
          name: zipkin
          typed_config:
            "@type": type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig
            grpc_service: { envoy_grpc: { cluster_name: traces } }
      rds: { route_config_name: routes, config_source: { ads: {} } }
      upgrade_configs:
      - upgrade_type: websocket
        filters:
        - { name: upgrade, config_discovery: { config_source: { ads: {} }, type_urls: [a/b] } }
      http_filters:
      - { name: filter, config_discovery: { config_source: { ads: {} }, type_urls: [a/b] } }
      - name: authz
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz
          http_service: { server_uri: { uri: u, cluster: authz, timeout: 1s } }
      - name: jwt
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication
          providers: { p: { remote_jwks: { http_uri: { uri: u, cluster: jwks, timeout: 1s } } } }
      - name: oauth
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.oauth2.v3.OAuth2
          config:
            token_endpoint: { uri: u, cluster: oauth, timeout: 1s }
            authorization_endpoint: e
            credentials:
              client_id: c
              token_secret: { name: token, sds_config: { ads: {} } }
              hmac_secret: { name: hmac, sds_config: { ads: {} } }
            redirect_uri: u
            redirect_path_matcher: { path: { exact: / } }
            signout_path: { path: { exact: / } }
      - name: limit
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
          domain: d
          rate_limit_service: { grpc_service: { envoy_grpc: { cluster_name: limit } } }
      - name: processor
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor
          grpc_service: { envoy_grpc: { cluster_name: processor } }
      - name: composite
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.common.matching.v3.ExtensionWithMatcher
          extension_config:
            name: composite
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.composite.v3.Composite
          xds_matcher:
            on_no_match:
              action:
                name: run
                typed_config:
                  "@type": type.googleapis.com/envoy.extensions.filters.http.composite.v3.ExecuteFilterAction
                  typed_config:
                    name: authz
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz
                      grpc_service: { envoy_grpc: { cluster_name: inner } }
      - name: router
        typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
"#;
    const ROUTES: &str = r#"
name: r
request_mirror_policies: [{ cluster: mirror }]
typed_per_filter_config:
  authz:
    "@type": type.googleapis.com/envoy.config.route.v3.FilterConfig
    config:
      "@type": type.googleapis.com/envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute
      check_settings: { grpc_service: { envoy_grpc: { cluster_name: per-route } } }
virtual_hosts:
- name: v
  domains: ['*']
  request_mirror_policies: [{ cluster: mirror-of-host }]
  routes:
  - match: { prefix: /a }
    route: { cluster: a, request_mirror_policies: [{ cluster: mirror-of-route }] }
  - match: { prefix: / }
    route: { weighted_clusters: { clusters: [{ name: b, weight: 1 }, { name: c, weight: 1 }] } }
- name: matched
  domains: [m]
  matcher:
    on_no_match:
      action:
        name: route
        typed_config:
          "@type": type.googleapis.com/envoy.config.route.v3.Route
          match: { prefix: / }
          route: { cluster: matched }
"#;
    const CLUSTER: &str = r#"
name: c
type: EDS
eds_cluster_config: { eds_config: { ads: {} }, service_name: service }
transport_socket_matches:
- name: match
  transport_socket:
    name: tls
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
      common_tls_context: { validation_context_sds_secret_config: { name: ca, sds_config: { ads: {} } } }
filters:
- { name: network, config_discovery: { config_source: { ads: {} }, type_urls: [a/b] } }
typed_extension_protocol_options:
  envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
    "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
    explicit_http_config: { http2_protocol_options: {} }
    http_filters:
    - { name: upstream, config_discovery: { config_source: { ads: {} }, type_urls: [a/b] } }
"#;
    const AGGREGATE: &str = r#"
name: aggregate
lb_policy: CLUSTER_PROVIDED
cluster_type:
  name: envoy.clusters.aggregate
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig
    clusters: [c, d]
"#;
    let scope = "name: s\nroute_configuration_name: scoped\nkey: {fragments: [{string_key: k}]}";
    let documents = [
        resource("envoy.config.listener.v3.Listener", "", LISTENER),
        resource("envoy.config.route.v3.RouteConfiguration", "", ROUTES),
        resource("envoy.config.route.v3.ScopedRouteConfiguration", "", scope),
        resource("envoy.config.cluster.v3.Cluster", "", CLUSTER),
        resource("envoy.config.cluster.v3.Cluster", "", AGGREGATE),
    ];
    let contents = contents("{}", &documents);
    assert_eq!(contents.errors(), None);
    let mut compared = 0;
    for type_url in contents.types() {
        for (name, set) in contents.names(type_url.as_str()) {
            for (_, located) in set.iter() {
                let expected = references::of(&located.resource, &contents.descriptors);
                let found: Vec<_> =
                    located.resource.references().map(|(of, name)| (of, name.as_str())).collect();
                let expected: Vec<_> = expected.iter().map(|of| (of.type_url, of.name.as_str())).collect();
                let mut sorted = found;
                sorted.sort_unstable();
                assert_eq!(sorted, expected, "{name:?}");
                compared += expected.len();
            }
        }
    }
    assert_eq!(compared, 37);
}

#[test]
fn a_misspelt_key_of_domains_yaml_is_told_with_its_line_and_the_similar_key() {
    let two = [cluster("c", "env=prod"), cluster("c", "env!=prod")];
    let found = contents("region: [eu]\nevn: [prod, test]\n", &two).warnings();
    let found: Vec<_> = found.iter().filter(|warning| warning.kind() == "unused-domain").collect();
    let [warning] = found[..] else { panic!("{found:?}") };
    assert_eq!(warning.locations[0].to_string(), "domains.yaml:2");
    assert_eq!(
        warning.to_string(),
        "envoy.config.cluster.v3.Cluster \"c\": names the key \"env\", which domains.yaml does not have; no `when:` names its \
         key \"evn\""
    );
    assert_eq!(warning.hint().unwrap(), "did you mean \"env\" in domains.yaml?");
    // Two of them are two warnings, each with its key.
    let found = contents("evn: [prod]\nen: [test]\n", &two).warnings();
    let keys: Vec<_> =
        found.iter().filter(|it| it.kind() == "unused-domain").filter_map(Warning::key).collect();
    assert_eq!(keys.len(), 2);
    assert_ne!(keys[0], keys[1]);
    // A key that no `when:` names yet is no mistake, and neither is a key beside a similar one.
    assert_eq!(warnings("{env: [prod, test], evn: [a], zone: {other: true}}", &two), [""; 0]);
}
