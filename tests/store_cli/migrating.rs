//! `xds store migrate` and `xds store downgrade`.

use std::process::Child;
use std::time::Instant;

use super::*;

const NEW: &str = "xdstp://shop/envoy.config.cluster.v3.Cluster/shop-a";

/// A served store with the cluster `shop-a` and a plan, and its folder.
fn migrating(test: &str) -> Served {
    migrating_to(test, "{ name: \"xdstp://shop/envoy.config.cluster.v3.Cluster/{name}\" }")
}

/// The same with another new form.
fn migrating_to(test: &str, new: &str) -> Served {
    let stored = Stored::unserved(test);
    stored.write(
        "schemas.yaml",
        format!(
            "types: [{{ type: RDS, version: \"1.2\" }}]\n\
             plans:\n\
             - number: 1\n  \
               name: new-names\n  \
               from: {{ type: CDS, names: [\"shop-*\"] }}\n  \
               to: {new}\n"
        ),
    );
    let (data, schemas) = (stored.path("data"), stored.path("schemas.yaml"));
    let server = Running::start(&["serve", "--store", &data, "--schemas", &schemas]);
    stored.write("a.yaml", "'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: shop-a\n");
    stored.ok("put a.yaml --store data");
    Served { stored, server }
}

/// A client that subscribes to a cluster by its name.
fn watching(server: &Running, name: &str) -> Child {
    let mut xds = xds();
    xds.args(["watch", "--server", &server.address, "CDS", name]);
    xds.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Regression: F5 took all that such a client had, and nothing held it back.
#[test]
fn sv26_a_client_of_the_old_type_by_wildcard_closes_the_last_gate() {
    let Served { stored, server } = &migrating_to("migrate-wildcard", "{ type: acme.v2.Cluster }");
    for _ in 1..=4 {
        stored.ok("store migrate next 1 --store data");
    }
    let mut client = watching(server, "*");
    let start = Instant::now();
    while stored.run("store migrate check 1 --store data").status.code() != Some(4) {
        assert!(start.elapsed() < SOON, "waited in vain for the closed gate");
    }
    let (code, error) = stored.fails("store migrate next 1 --store data");
    assert!(code == 4 && error.contains("1 streams ask for the old form"), "{error}");
    client.kill().unwrap();
    client.wait().unwrap();
}

#[test]
fn sv14_sv26_plans_are_shown_and_moved_and_a_client_of_the_old_form_closes_the_last_gate() {
    let served = migrating("migrate");
    let Served { stored, server } = &served;
    assert_eq!(stored.ok("store migrate list --store data"), "  1 F0 (not begun) new-names\n");
    let steps = [
        "1 new-names: F0 (not begun) -> F1 (writes both forms)\n\
         1 new-names is in F1 (writes both forms): clients get the old form\n",
        "1 new-names: F1 (writes both forms) -> F2 (serves both forms)\n1 new-names is in F2 (serves both forms): ",
        "1 new-names: F2 (serves both forms) -> F3 (copies)\n1 new-names is in F3 (copies): clients get both forms\n",
        "1 new-names: F3 (copies) -> F4 (writes the new form)\n1 new-names is in F4 (writes the new form): ",
    ];
    for step in steps {
        let next = stored.ok("store migrate next 1 --store data");
        assert!(next.starts_with(step), "{next}");
    }
    // By this wildcard it gets the new form, too.
    let mut of_both = watching(server, "*");
    let mut client = watching(server, "shop-a");
    let start = Instant::now();
    let refused = loop {
        let check = stored.run("store migrate check new-names --store data");
        if check.status.code() == Some(4) {
            break String::from_utf8(check.stdout).unwrap();
        }
        assert!(start.elapsed() < SOON, "waited in vain for the closed gate");
    };
    assert!(refused.contains("closed: 1 streams ask for the old form\n"), "{refused}");
    let (code, error) = stored.fails("store migrate next new-names --store data");
    assert!(code == 4 && error.contains("1 streams ask for the old form"), "{error}");
    stored.ok("store migrate next new-names --store data --dry-run --force");
    client.kill().unwrap();
    client.wait().unwrap();
    let start = Instant::now();
    while stored.run("store migrate check new-names --store data").status.code() != Some(0) {
        assert!(start.elapsed() < SOON, "waited in vain for the open gate");
    }
    stored.ok("store migrate next new-names --store data");
    of_both.kill().unwrap();
    of_both.wait().unwrap();
    let plan = &stored.json("store migrate check --store data")[0]["plans"][0];
    assert!(plan["phase"] == 5 && plan["gates"] == Value::Array(Vec::new()), "{plan}");
    let names = stored.ok("list CDS --store data");
    assert!(names.contains(NEW) && !names.contains("Cluster shop-a"), "{names}");
    // SV27.
    let back = stored.ok("store migrate abort new-names --store data");
    assert!(back.contains("\n1 new-names is in F0 (not begun): clients get the old form\n"), "{back}");
    assert_eq!(back.matches(" -> ").count(), 5, "{back}");
    assert!(stored.ok("list CDS --store data").contains("Cluster shop-a"));
    let (code, error) = stored.fails("store migrate back new-names --store data");
    assert!(code == 4 && error.contains("in F0 (not begun) already"), "{error}");
    let (code, error) = stored.fails("store migrate next other --store data");
    assert!(code == 3 && error.contains("no plan other"), "{error}");
}

/// Regression: `abort` said that it was prevented, and not that it had gone back three phases before.
#[test]
fn sv27_an_abort_that_is_stopped_says_what_it_did_and_how_to_go_on() {
    let Served { stored, server: _server } = &migrating("migrate-stopped");
    for _ in 1..=4 {
        stored.ok("store migrate next 1 --store data");
    }
    let route = |cluster: &str| {
        let route = format!("{{ match: {{ prefix: / }}, route: {{ cluster: \"{cluster}\" }} }}");
        let host = format!("{{ name: all, domains: [\"*\"], routes: [{route}] }}");
        let routes = "'@type': type.googleapis.com/envoy.config.route.v3.RouteConfiguration\nname: web\n";
        stored.write("routes.yaml", format!("{routes}virtual_hosts: [{host}]\n"));
        stored.ok("put routes.yaml --store data");
    };
    route(NEW);
    stored.ok("store migrate next 1 --store data");
    let stopped = stored.run("store migrate abort new-names --store data");
    let [out, error] = [stopped.stdout, stopped.stderr].map(|text| String::from_utf8(text).unwrap());
    assert_eq!(stopped.status.code(), Some(4), "{out}{error}");
    let lines: Vec<_> = out.lines().collect();
    let passed = [
        "1 new-names: F5 (new form only) -> F4 (writes the new form)",
        "1 new-names: F4 (writes the new form) -> F3 (copies)",
        "1 new-names: F3 (copies) -> F2 (serves both forms)",
    ];
    assert_eq!(lines, passed, "{error}");
    assert!(error.starts_with("error: others still name "), "{error}");
    let end = "\n  new-names is in F2 (serves both forms): clients get both forms\n  \
               the step to F1 (writes both forms) is not done; once its cause is over, go on: xds store migrate abort new-names --store data\n";
    assert!(error.ends_with(end), "{error}");
    // For programs, and if nothing was passed.
    let again = stored.run("store migrate abort new-names --store data --format json");
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    let reached = &again["error"]["reached"];
    assert!(reached["phase"] == 2 && reached["passed"] == Value::Array(Vec::new()), "{again}");
    route("shop-a");
    let done = stored.json("store migrate abort new-names --store data");
    assert_eq!(done[0]["passed"], serde_json::json!([1, 0]), "{done:?}");
    assert_eq!(done[0]["clients_get"], "the old form");
}

#[test]
fn sv33_a_ceiling_is_set_unless_something_newer_is_stored_and_lifted() {
    let served = migrating("downgrade");
    let stored = &served.stored;
    stored.write(
        "routes.yaml",
        "'@type': type.googleapis.com/envoy.config.route.v3.RouteConfiguration\nname: web\n",
    );
    stored.ok("put routes.yaml --store data");
    let check = stored.run("store downgrade check RDS=1.1 --store data");
    let text = String::from_utf8(check.stdout).unwrap();
    assert!(check.status.code() == Some(4) && text.contains("1 need a newer version"), "{text}");
    stored.ok("delete RDS web --store data");
    let enabled = stored.ok("store downgrade enable RDS=1.1 --store data");
    assert!(enabled.contains("RouteConfiguration has the ceiling 1.1"), "{enabled}");
    stored.ok("put routes.yaml --store data");
    let cancelled = stored.ok("store downgrade cancel --store data");
    assert!(cancelled.contains("RouteConfiguration has no ceiling"), "{cancelled}");
    assert_eq!(stored.ok("store downgrade cancel --store data"), "no type has a ceiling\n");
    let (code, _) = stored.fails("store downgrade enable RDS --store data");
    assert_eq!(code, 2);
}

/// A client of a type of one's own: what it gets, as text.
fn got(served: &Served, what: &str) -> String {
    let descriptors = served.stored.path("acme.binpb");
    let command = format!("get --server {} --descriptors {descriptors} {what}", served.server.address);
    served.stored.ok(&command)
}

/// The plans of `examples/migrations/own-type`.
#[test]
fn sv10_sv13_sv25_sv31_a_type_of_ones_own_gets_another_type_and_then_another_meaning() {
    let example = fs::canonicalize("examples/migrations/own-type").unwrap();
    let path = |file: &str| example.join(file).display().to_string();
    let stored = Stored::unserved("own-type");
    let protos = ["v1.proto", "v2.proto"].map(|file| example.join(file));
    let set = protox::compile(protos, [&example]).unwrap();
    stored.write("acme.binpb", prost::Message::encode_to_vec(&set));
    let (data, descriptors) = (stored.path("data"), stored.path("acme.binpb"));
    let schemas = path("schemas.yaml");
    let options = ["serve", "--store", &data, "--schemas", &schemas, "--descriptors", &descriptors];
    let server = Running::start(&options);
    let served = Served { stored, server };
    let stored = &served.stored;
    let put = |file: &str| stored.ok(&format!("put {file} --store data --descriptors {descriptors}"));
    put(&path("things.yaml"));
    let next = |plan: &str| stored.ok(&format!("store migrate next {plan} --store data"));
    // SV13: the plans begin one after another.
    assert_eq!(stored.fails("store migrate next limit-v2 --store data").0, 4);
    next("thing-v2");
    next("thing-v2");
    assert!(got(&served, "acme.v1.Thing door").contains("color: red"));
    assert!(got(&served, "acme.v2.Thing door").contains("paint:\n    color: red"));
    // A write of either form is one of both.
    let wrapped = |when: &str, resource: &str| {
        let wrapper = "'@type': type.googleapis.com/envoy.service.discovery.v3.Resource\nname: door\n";
        format!("{wrapper}{when}resource: {{ '@type': type.googleapis.com/{resource} }}\n")
    };
    stored.write("new.yaml", wrapped("", "acme.v2.Thing, name: door, paint: { color: blue }"));
    put("new.yaml");
    assert!(got(&served, "acme.v1.Thing door").contains("color: blue"));
    for _ in 3..=5 {
        next("thing-v2");
    }
    assert!(got(&served, "acme.v2.Thing door").contains("color: blue"));
    let start = Instant::now();
    while stored.run("store migrate next limit-v2 --store data").status.code() != Some(0) {
        assert!(start.elapsed() < SOON, "waited in vain for the end of the first plan");
    }
    // SV31: both forms have one type and name; clients choose.
    next("limit-v2");
    let both = [got(&served, "acme.v1.Limit door"), got(&served, "acme.v1.Limit door xds.schema=2")];
    assert!(both.iter().all(|form| form.contains("requests: 60")), "{both:?}");
    for _ in 3..=5 {
        next("limit-v2");
    }
    stored.write("limit.yaml", wrapped("when: xds.schema=2\n", "acme.v1.Limit, name: door, requests: 1"));
    put("limit.yaml");
    assert!(got(&served, "acme.v1.Limit door xds.schema=2").contains("requests: 1"));
}
