//! References between resources (SG3, SG4, SG7, SG10).

use std::env;
use std::thread;
use std::time::Duration;

use super::*;

fn routes(name: &str, cluster: &str) -> String {
    format!(
        "\"@type\": type.googleapis.com/envoy.config.route.v3.RouteConfiguration\nname: {name}\nvirtual_hosts:\n- \
         name: v\n  domains: [\"*\"]\n  routes:\n  - match: {{ prefix: / }}\n    route: {{ cluster: {cluster} }}\n"
    )
}

fn listener(name: &str, routes: &str) -> String {
    format!(
        "\"@type\": type.googleapis.com/envoy.config.listener.v3.Listener\nname: {name}\naddress: {{ socket_address: \
         {{ address: 127.0.0.1, port_value: 8080 }} }}\nfilter_chains:\n- filters:\n  - name: \
         envoy.filters.network.http_connection_manager\n    typed_config:\n      \"@type\": \
         type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager\n      \
         stat_prefix: l\n      rds: {{ route_config_name: {routes}, config_source: {{ ads: {{}} }} }}\n"
    )
}

const FIELD: &str = "virtual_hosts.routes.route.cluster";

#[test]
fn sg4_sg10_a_cluster_in_use_is_not_deleted_and_refs_why_says_why() {
    let stored = Stored::served("refs-why");
    stored.write("all.yaml", [cluster("a", 1), routes("web", "a")].join("---\n"));
    stored.ok("put all.yaml --store data");
    let (code, error) = stored.fails("delete CDS a --store data");
    let expected = format!(
        "error: Cluster a is used by RouteConfiguration web ({FIELD}): remove that first, or use --drain\n"
    );
    assert_eq!((code, error), (4, expected));
    let expected = format!(
        "Cluster a\n  is used by RouteConfiguration web ({FIELD})\nits deletion is blocked by\n  \
         RouteConfiguration web, which names Cluster a ({FIELD})\n"
    );
    assert_eq!(stored.ok("refs why CDS a --store data"), expected);
    let shown = &stored.json("refs why CDS a --store data")[0];
    assert_eq!((&shown["blocked_by"][0]["field"], &shown["cycle"]), (&FIELD.into(), &false.into()));
    let web = stored.ok("refs why RDS web --store data");
    assert!(web.ends_with("nothing blocks its deletion\n"), "{web}");
    assert_eq!(stored.fails("refs why CDS none --store data").0, 3);
    // SG7.
    let waiting = stored.ok("delete CDS a --store data --drain");
    assert!(waiting.starts_with("deleting   Cluster a\n"), "{waiting}");
    assert!(waiting.ends_with(&format!("  waits for RouteConfiguration web ({FIELD})\n")), "{waiting}");
    assert!(stored.ok("list CDS a --store data").contains("Cluster a"));
    let (code, error) = stored.fails("put all.yaml --store data");
    assert!(code == 4 && error.contains("is being deleted: put it again after that"), "{error}");
    let output = stored.ok("delete RDS web --store data");
    assert!(output.starts_with("deleted    RouteConfiguration web\ndeleted    Cluster a\n"), "{output}");
}

/// An answer of the admin API.
fn admin(served: &Served, path: &str) -> Value {
    let admin = &served.server.admin;
    let head = format!("GET /api/store/{path} HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
    let answer = http(admin, &head);
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn sg10_the_admin_api_lists_deletions_in_progress_and_what_belongs_to_a_record() {
    let served = Stored::served("refs-admin");
    served.write("all.yaml", [cluster("a", 1), routes("web", "a")].join("---\n"));
    served.ok("put all.yaml --store data --owner shop");
    let record = admin(&served, "records/CDS/a");
    assert_eq!(
        (&record["record"]["owners"][0], &record["record"]["state"]),
        (&"shop".into(), &"LIVE".into())
    );
    let used = &record["referrers"][0];
    assert_eq!((&used["source"]["name"], &used["field"]), (&"web".into(), &FIELD.into()));
    assert_eq!((&record["referrer_count"], &record["blocked_by"][0]["blocks"]), (&1.into(), &true.into()));
    let web = admin(&served, "records/RDS/web");
    assert_eq!(
        (&web["targets"][0]["target"]["name"], &web["blocked_by"]),
        (&"a".into(), &Value::Array(vec![]))
    );
    let missing = admin(&served, "records/CDS/none");
    assert!(missing["error"].as_str().unwrap().contains("does not exist"), "{missing}");
    assert_eq!(admin(&served, "deletions"), serde_json::json!({ "total": 0, "rows": [] }));
    served.ok("delete CDS a --store data --owner shop --drain");
    let deletions = admin(&served, "deletions");
    let row = &deletions["rows"][0];
    assert_eq!(
        (&deletions["total"], &row["name"], &row["blocker_count"]),
        (&1.into(), &"a".into(), &1.into())
    );
    assert_eq!(row["blocked_by"][0]["name"], "web");
    let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    let since = u128::from(row["since_ms"].as_u64().unwrap());
    assert!((1..60_000).contains(&(at + 1 - since)), "{since} is not a moment before {at}");
    assert_eq!(admin(&served, "records/CDS/a")["record"]["state"], "DELETING");
    served.ok("delete RDS web --store data --owner shop");
    assert_eq!(admin(&served, "deletions")["total"], 0);
}

#[test]
fn sg17_sg18_what_is_put_with_an_owner_that_is_a_resource_goes_with_it() {
    let served = Stored::served("refs-owner-record");
    served.write(
        "own.yaml",
        [cluster("parent", 1), variant("two", "env=prod", 1), variant("two", "env!=prod", 1)].join("---\n"),
    );
    served.ok("put own.yaml --store data");
    served.write("child.yaml", cluster("child", 1));
    served.ok("put child.yaml --store data --owner-record CDS parent");
    let owners = &admin(&served, "records/CDS/child")["record"]["resource_owners"];
    assert_eq!((owners[0]["name"].as_str(), owners.as_array().unwrap().len()), (Some("parent"), 1));
    // A folder: the same content with further owners is a change, and then none.
    served.write("folder/child.yaml", cluster("child", 1));
    let apply =
        "apply folder --store data --owner-record CDS parent --owner-record CDS two --owner-when env=prod";
    let (code, error) = served.fails(apply);
    assert!(code == 3 && error.contains("Cluster parent [env=prod] does not exist"), "{error}");
    let apply =
        "apply folder --store data --owner-record CDS two --owner-when env=prod --owner-unset-on-delete";
    assert!(served.ok(apply).contains("1 updated"));
    assert!(served.ok(apply).contains("1 unchanged"));
    assert!(served.ok("apply folder --store data").contains("1 unchanged"));
    let (code, error) = served.fails("put child.yaml --store data --owner-record CDS two");
    assert!(code == 2 && error.contains("has several variants"), "{error}");
    let (code, error) = served.fails("put child.yaml --store data --owner-record CDS none");
    assert!(code == 3 && error.contains("Cluster none does not exist"), "{error}");
    // SG18: it goes with its last owner.
    served.ok("put child.yaml --store data --owner-record CDS parent");
    served.ok("delete CDS parent --store data");
    let start = std::time::Instant::now();
    while !served.ok("list CDS --store data").lines().all(|line| !line.contains("child")) {
        assert!(start.elapsed() < SOON, "waited in vain for the end of the resource");
    }
}

#[test]
fn sg3_a_missing_target_is_refused_or_allowed() {
    let stored = Stored::served("refs-missing");
    stored.write("config/web.yaml", routes("web", "static"));
    for command in ["put config/web.yaml --store data", "apply config --store data --owner shop"] {
        let (code, error) = stored.fails(command);
        let expected = format!(
            "({FIELD}), which does not exist: put it first, or in the same commit, list it as `external` in a \
             reference rule, or allow missing targets (--allow-missing)"
        );
        assert!(code == 4 && error.contains(&expected), "{error}");
    }
    let output = stored.run("apply config --store data --owner shop --allow-missing");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("warning: "), "{}", stderr(&output));
    // What was allowed is not judged again.
    stored.ok("put config/web.yaml --store data --owner shop");
}

fn rule(name: &str, fields: &str) -> String {
    format!(
        "\"@type\": type.googleapis.com/envoy.service.discovery.v3.Resource\nname: {name}\nresource:\n  \"@type\": \
         type.googleapis.com/xds.store.v1.ReferenceRule\n  type_url: \
         type.googleapis.com/envoy.config.route.v3.RouteConfiguration\n  target_type_url: \
         type.googleapis.com/envoy.config.cluster.v3.Cluster\n{fields}"
    )
}

#[test]
fn sg5_sg11_a_file_with_a_rule_changes_what_a_deletion_does() {
    let stored = Stored::served("reference-rules");
    stored.write(
        "bad.yaml",
        rule("routes", "  field: virtual_hosts.cluster\n  on_delete: ON_DELETE_CASCADE\n"),
    );
    let (code, error) = stored.fails("put bad.yaml --store data");
    assert!(code != 0 && error.contains("this server knows no text field"), "{error}");
    let fields = format!("  field: {FIELD}\n  on_delete: ON_DELETE_CASCADE\n  external: [static]\n");
    stored.write("rule.yaml", rule("routes", &fields));
    let output = stored.run("put rule.yaml --store data");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("which listeners that name them can block"), "{}", stderr(&output));
    stored.write("all.yaml", [cluster("a", 1), routes("web", "a"), routes("x", "static")].join("---\n"));
    stored.ok("put all.yaml --store data");
    let shown = stored.ok("list xds.store.v1.ReferenceRule --store data --format yaml");
    assert!(shown.contains(FIELD) && shown.contains("static"), "{shown}");
    let output = stored.ok("delete CDS a --store data");
    assert!(output.starts_with("deleted    Cluster a\ndeleted    RouteConfiguration web\n"), "{output}");
    assert!(stored.ok("list RDS x --store data").contains("RouteConfiguration x"));
}

/// `XDS_DEPENDENTS=10000` sets how many.
#[test]
fn sg8_sg10_a_drain_of_many_dependents_goes_on_after_each_kill_and_names_what_blocks_it() {
    let dependents = env::var("XDS_DEPENDENTS").map_or(2_000, |dependents| dependents.parse().unwrap());
    let stored = Stored::unserved("refs-drain-killed");
    let data = stored.path("data");
    let mut server = Running::start(&["serve", "--store", &data]);
    let fields = format!("  field: {FIELD}\n  on_delete: ON_DELETE_CASCADE\n");
    stored.write("rule.yaml", rule("routes", &fields));
    stored.write("a.yaml", cluster("a", 1));
    let all = |from: usize| (from..from + dependents / 2).map(|number| routes(&format!("r{number}"), "a"));
    stored.write("half.yaml", all(0).collect::<Vec<_>>().join("---\n"));
    stored.write("rest.yaml", all(dependents / 2).collect::<Vec<_>>().join("---\n"));
    stored.write("listener.yaml", listener("l", "r7"));
    for file in ["rule", "a", "half", "rest", "listener"] {
        stored.ok(&format!("put {file}.yaml --store data"));
    }
    stored.ok("delete CDS a --drain --store data");
    // The rule, the cluster, the routes that the listener names, and the listener stay.
    let left = |server: &Running| server.metric(LIVE).unwrap() as usize - 4;
    let mut killed_at = Vec::new();
    let mut pause = 5;
    while left(&server) > 0 {
        // Up to some steps, and not always at the same place of one.
        pause = pause * 7919 % 577;
        thread::sleep(Duration::from_millis(pause));
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        server = Running::start(&["serve", "--store", &data]);
        killed_at.push(left(&server));
    }
    println!("killed with so many left: {killed_at:?}");
    assert!(killed_at.is_sorted_by(|before, after| before >= after), "{killed_at:?}");
    assert!(killed_at.iter().filter(|left| (1..dependents - 1).contains(left)).count() > 1, "{killed_at:?}");
    let why = stored.ok("refs why CDS a --store data");
    assert!(why.contains("RouteConfiguration r7, which names Cluster a"), "{why}");
    assert!(why.contains("Listener l, which names RouteConfiguration r7"), "{why}");
    stored.ok("delete LDS l --store data");
    server.until_metric(LIVE, 1.0);
    drop(server);
    stored.ok("store check data");
}

const LIVE: &str = "xds_store_records{state=\"live\"}";
