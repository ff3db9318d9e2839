//! `xds serve --migrate startup`.

use super::*;

/// Two plans; the first one has no way down.
const PLANS: &str = "\
plans:
- number: 1
  name: thing-v2
  from: { type: acme.v1.Thing }
  to: { type: acme.v2.Thing }
  up: { fields: { color: paint.color } }
- number: 2
  name: new-names
  from: { type: CDS, names: [\"shop-*\"] }
  to: { name: \"new-{name}\" }
";

const OPTIONS: &str = "--store data --schemas schemas.yaml --descriptors acme.binpb";

/// A store with this many things, a cluster `shop-a`, and a route to it, after its server has ended.
fn stopped(test: &str, things: usize) -> Stored {
    let example = fs::canonicalize("examples/migrations/own-type").unwrap();
    let stored = Stored::unserved(test);
    let protos = ["v1.proto", "v2.proto"].map(|file| example.join(file));
    let set = protox::compile(protos, [&example]).unwrap();
    stored.write("acme.binpb", prost::Message::encode_to_vec(&set));
    stored.write("schemas.yaml", PLANS);
    let wrapped = |name: String| {
        format!(
            "- '@type': type.googleapis.com/envoy.service.discovery.v3.Resource\n  name: {name}\n  \
             resource: {{ '@type': type.googleapis.com/acme.v1.Thing, name: {name}, color: red }}\n"
        )
    };
    let things: String = (0..things).map(|number| wrapped(format!("thing-{number}"))).collect();
    stored.write("things.yaml", format!("resources:\n{things}"));
    stored.write(
        "web.yaml",
        "resources:\n- '@type': type.googleapis.com/envoy.config.cluster.v3.Cluster\n  name: shop-a\n\
         - '@type': type.googleapis.com/envoy.config.route.v3.RouteConfiguration\n  name: web\n  \
           virtual_hosts: [{ name: a, domains: ['*'], \
         routes: [{ match: { prefix: / }, route: { cluster: shop-a } }] }]\n",
    );
    let mut server = serve(&stored, &[]);
    stored.ok("put things.yaml web.yaml --store data --descriptors acme.binpb");
    let (code, error) = stored.fails("store migrate next thing-v2 --store data");
    assert!(code == 4 && error.contains("no way down"), "{error}");
    let check = stored.run("store migrate check thing-v2 --store data");
    let check = String::from_utf8(check.stdout).unwrap();
    assert!(check.contains("closed: it has no `down`: start the server with --migrate startup"), "{check}");
    server.terminate();
    assert!(server.ends_within(SOON).unwrap().success());
    stored
}

fn serve(stored: &Stored, more: &[&str]) -> Running {
    let paths = ["data", "schemas.yaml", "acme.binpb"].map(|file| stored.path(file));
    let [data, schemas, descriptors] = &paths;
    let options = ["serve", "--store", data, "--schemas", schemas, "--descriptors", descriptors];
    Running::start(&[&options, more].concat())
}

#[test]
fn sv32_a_server_runs_plans_to_their_end_before_it_listens_and_goes_on_after_a_closed_gate() {
    let stored = stopped("startup", 1);
    // The route keeps the old name of the cluster.
    let (code, error) = stored.fails(&format!("serve {OPTIONS} --migrate startup"));
    assert!(code == 4 && error.contains("the plan new-names cannot leave F4"), "{error}");
    assert!(
        error.contains("envoy.config.cluster.v3.Cluster shop-a") && error.contains("the next start"),
        "{error}"
    );
    // Nothing is lost.
    let mut server = serve(&stored, &[]);
    assert_eq!(
        stored.ok("store migrate list --store data"),
        "  1 F5 (new form only) thing-v2\n  2 F4 (writes the new form) new-names\n"
    );
    assert!(stored.ok("list CDS --store data").contains("new-shop-a"));
    assert!(server.get(&["CDS", "shop-a"]).1.contains("Cluster shop-a"));
    server.terminate();
    server.ends_within(SOON).unwrap();

    stored.write("schemas.yaml", format!("{PLANS}  rewrite_references: true\n"));
    for _ in 0..2 {
        let mut server = serve(&stored, &["--migrate", "startup"]);
        server.logs("all plans are done");
        let things = server.get(&["--descriptors", &stored.path("acme.binpb"), "acme.v2.Thing", "thing-0"]).1;
        assert!(things.contains("color: red"), "{things}");
        assert!(server.get(&["RDS", "web"]).1.contains("cluster: new-shop-a"));
        assert_eq!(
            stored.ok("store migrate list --store data"),
            "  1 F5 (new form only) thing-v2\n  2 F5 (new form only) new-names\n"
        );
        let (code, error) = stored.fails("store migrate back thing-v2 --store data");
        assert!(code == 4 && error.contains("no way down"), "{error}");
        server.terminate();
        assert!(server.ends_within(SOON).unwrap().success());
    }
}

#[test]
fn sv32_a_signal_ends_a_migration_and_the_next_start_goes_on() {
    let stored = stopped("startup-stopped", 3_000);
    let mut xds = xds();
    xds.current_dir(&stored.0.0).args(format!("serve {OPTIONS} --migrate startup").split(' '));
    let mut child = xds.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let log = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut log = std::io::BufRead::lines(log).map_while(Result::ok);
    log.find(|line| line.contains("plan 1 thing-v2 is in F3")).unwrap();
    let killed = std::process::Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(killed.success());
    assert!(log.any(|line| line.contains("stopped; the next start goes on")));
    let output = child.wait_with_output().unwrap();
    // ST57: the port was not open.
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");

    stored.write("schemas.yaml", format!("{PLANS}  rewrite_references: true\n"));
    let server = serve(&stored, &["--migrate", "startup"]);
    let things = server.get(&["--descriptors", &stored.path("acme.binpb"), "acme.v2.Thing", "thing-2999"]).1;
    assert!(things.contains("color: red"), "{things}");
}
