//! `xds apply`, `diff`, `put`, `delete` and `quarantine`.

use super::*;

#[test]
fn st61_a_folder_is_one_commit_and_the_same_folder_is_unchanged() {
    let stored = Stored::served("apply");
    stored.write("config/a.yaml", cluster("a", 1));
    stored.write("config/b.yaml", [cluster("b", 1), variant("c", "env=prod", 1)].join("---\n"));
    let output = stored.ok("apply config --store data");
    let expected = "created    Cluster a\ncreated    Cluster b\ncreated    Cluster c [env=prod]\nconfig: 3 created; revision ";
    let revision = output.strip_prefix(expected).unwrap_or_else(|| panic!("{output}"));
    let again = stored.ok("apply config --store data");
    assert_eq!(again, format!("config: 3 unchanged; revision {revision}"));
    let got = stored.server.until_served(&["CDS", "a"]);
    assert!(got.1.contains("connect_timeout: 1s"), "{got:?}");

    stored.write("config/a.yaml", cluster("a", 2));
    let changed = stored.ok("apply config --store data --message why");
    assert!(
        changed.starts_with("updated    Cluster a\nconfig: 1 updated, 2 unchanged; revision "),
        "{changed}"
    );
}

#[test]
fn st61_an_empty_folder_is_refused_with_prune_unless_that_is_allowed() {
    let stored = Stored::served("prune");
    stored.write("config/a.yaml", [cluster("a", 1), cluster("b", 1)].join("---\n"));
    stored.ok("apply config --store data --owner shop --prune");
    stored.write("other/x.yaml", cluster("x", 1));
    stored.ok("apply other --store data");
    stored.write("config/a.yaml", cluster("a", 1));
    let output = stored.ok("apply config --store data --owner shop --prune");
    assert!(
        output.starts_with("deleted    Cluster b\nconfig: 1 deleted, 1 unchanged; revision "),
        "{output}"
    );

    fs::remove_file(stored.0.path("config/a.yaml")).unwrap();
    assert_eq!(stored.fails("apply config --store data --owner shop --prune").0, 2);
    let output = stored.ok("apply config --store data --owner shop --prune --allow-empty");
    assert!(output.starts_with("deleted    Cluster a\n"), "{output}");
    // The resource of nobody stays.
    assert!(stored.ok("list --store data").starts_with("+ Cluster x  "));
}

#[test]
fn st15_a_dry_run_and_a_diff_change_nothing() {
    let stored = Stored::served("dry-run");
    stored.write("config/a.yaml", [cluster("a", 1), cluster("b", 1)].join("---\n"));
    stored.ok("apply config --store data");
    assert_eq!(stored.ok("diff config --store data"), "");
    stored.write("config/a.yaml", [cluster("a", 2), cluster("b", 1), cluster("new", 1)].join("---\n"));
    let before = stored.ok("list --store data");
    let dry = stored.ok("apply config --store data --dry-run");
    assert!(dry.contains("config: dry run: 1 created, 1 updated, 1 unchanged; revision "), "{dry}");
    let diff = stored.run("diff config --store data");
    assert_eq!(diff.status.code(), Some(5));
    let expected = "\
--- Cluster a
+++ Cluster a  config/a.yaml:1
@@ -1,3 +1,3 @@
 \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster
 name: a
-connect_timeout: 1s
+connect_timeout: 2s
--- /dev/null
+++ Cluster new  config/a.yaml:9
@@ -0,0 +1,3 @@
+\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster
+name: new
+connect_timeout: 1s
";
    assert_eq!(String::from_utf8_lossy(&diff.stdout), expected);
    assert_eq!(stored.ok("list --store data"), before);
}

#[test]
fn a_split_commit_is_several_of_the_given_size() {
    let stored = Stored::served("split");
    let clusters: Vec<_> = (0..5).map(|number| cluster(&format!("c{number}"), 1)).collect();
    stored.write("config/a.yaml", clusters.join("---\n"));
    stored.ok("apply config --store data --split=2");
    let sizes: Vec<_> = stored
        .json("history --store data")
        .iter()
        .map(|commit| commit["changes"].as_array().unwrap().len())
        .collect();
    assert_eq!(sizes, [1, 2, 2]);
    // Pruning is part of it.
    stored.ok("apply config --store data --owner shop --split=2");
    stored.write("config/a.yaml", clusters[..1].join("---\n"));
    let output = stored.ok("apply config --store data --owner shop --prune --split=2");
    assert!(output.contains("config: 4 deleted, 1 unchanged; "), "{output}");
}

#[test]
fn a_refusal_names_the_file_and_the_line() {
    let stored = Stored::served("place");
    stored.write("one.yaml", variant("a", "env=prod", 1));
    stored.ok("put one.yaml --store data");
    stored.write("config/two.yaml", [cluster("b", 1), variant("a", "zone=x", 1)].join("---\n"));
    let (code, error) = stored.fails("apply config --store data");
    let expected = "error: config/two.yaml:5: Cluster a [zone=x] and [env=prod] both match env=prod,zone=x\n";
    assert_eq!((code, &*error), (4, expected));
    let output = stored.run("apply config --store data --format json");
    let object: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(object["error"]["code"], "FAILED_PRECONDITION");
    assert_eq!(object["error"]["violations"][0]["at"], "config/two.yaml:5");
    // Nothing of a refused commit is there.
    assert_eq!(stored.fails("list CDS b --store data").0, 3);
    stored.write("config/two.yaml", "nonsense\n");
    assert_eq!(stored.fails("apply config --store data").0, 2);
}

#[test]
fn st9_a_put_with_a_condition_is_refused_where_it_does_not_hold() {
    let stored = Stored::served("put");
    stored.write("a.yaml", cluster("a", 1));
    let created = stored.ok("put a.yaml --store data --create");
    assert!(created.starts_with("created    Cluster a\n1 resource: 1 created; revision "), "{created}");
    let first = stored.revision("CDS a");
    let exists = format!("error: a.yaml:1: Cluster a exists already, with revision {first}\n");
    assert_eq!(stored.fails("put a.yaml --store data --create"), (4, exists));

    let output = stored.run_with(&format!("put - --store data --if-revision {first}"), &cluster("a", 2));
    assert!(output.status.success(), "{}", stderr(&output));
    let second = stored.revision("CDS a");
    let changed = format!("error: a.yaml:1: Cluster a was changed: its revision is {second} now\n");
    assert_eq!(stored.fails(&format!("put a.yaml --store data --if-revision {first}")), (4, changed));
    let (code, error) = stored.fails(&format!("delete CDS a --store data --if-revision {first}"));
    assert_eq!((code, error), (4, format!("error: Cluster a was changed: its revision is {second} now\n")));

    stored.write("b.yaml", cluster("b", 1));
    let gone = "error: b.yaml:1: Cluster b does not exist\n".to_owned();
    assert_eq!(stored.fails(&format!("put b.yaml --store data --if-revision {first}")), (4, gone));
    let (code, error) = stored.fails(&format!("put a.yaml b.yaml --store data --if-revision {first}"));
    assert_eq!((code, error), (2, "error: --if-revision is for one resource; the files have 2\n".to_owned()));
    assert_eq!(stored.fails("put missing.yaml --store data").0, 1);
    assert_eq!(stored.fails("put b.yaml --store data --lease 1s").0, 2);
    let (code, error) = stored.fails("put b.yaml --store data --take-over");
    assert_eq!((code, error.contains("--owner <NAME>")), (2, true), "{error}");
    stored.ok("put b.yaml --store data --lease 1h");
    assert_eq!(stored.json("list CDS b --store data")[0]["lease"], "3600s");
}

#[test]
fn st13_the_deletion_of_what_does_not_exist_has_its_own_exit_code() {
    let stored = Stored::served("delete");
    stored
        .write("a.yaml", [cluster("a", 1), variant("b", "env=x", 1), variant("b", "env=y", 1)].join("---\n"));
    stored.ok("put a.yaml --store data");
    assert!(
        stored.ok("delete cds a --store data").starts_with("deleted    Cluster a\nCluster a: 1 deleted; ")
    );
    let missing = (3, "error: Cluster a does not exist\n".to_owned());
    assert_eq!(stored.fails("delete CDS a --store data"), missing);
    let (code, error) = stored.fails("delete CDS b --store data");
    let expected = "error: Cluster b has several variants: add one of --when \"env=x\", --when \"env=y\"\n";
    assert_eq!((code, &*error), (2, expected));
    stored.ok("delete CDS b --when env=x --store data");
    // Only one is left.
    stored.ok("delete CDS b --store data");
    assert_eq!(stored.ok("list --store data"), "");
    assert_eq!(stored.fails("delete Nonsense a --store data").0, 2);
}

#[test]
fn what_is_quarantined_stays_so_until_its_content_changes() {
    let stored = Stored::served("quarantine");
    let server = &stored.server;
    stored.write("config/a.yaml", cluster("a", 1));
    stored.ok("apply config --store data --owner shop --prune");
    stored.write("config/a.yaml", cluster("a", 2));
    stored.ok("apply config --store data --owner shop --prune");
    let output = stored.ok("quarantine CDS a --store data --reason bad");
    assert!(output.starts_with("quarantined Cluster a\n"), "{output}");
    let served = || server.until_served(&["CDS", "a"]).1;
    while !served().contains("connect_timeout: 1s") {}
    for options in ["--owner shop", "--owner shop --prune", "--owner desk", "--owner desk --prune"] {
        let output = stored.run(&format!("apply config --store data {options}"));
        let expected = "warning: Cluster a stays quarantined until its content changes: bad\n";
        assert_eq!(stderr(&output), expected);
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("config: 1 unchanged; "));
    }
    assert!(stored.ok("list CDS a --store data").contains("  quarantined: bad\n"));
    stored.write("config/a.yaml", cluster("a", 3));
    stored.ok("apply config --store data --owner shop --prune");
    while !served().contains("connect_timeout: 3s") {}
    assert_eq!(stored.fails("quarantine CDS x --store data --reason bad").0, 3);
}

#[test]
fn sr45_a_client_gets_the_reason_of_a_quarantine_without_older_content_after_a_restart_too() {
    let stored = Stored::unserved("reason");
    let start = || Running::start(&["serve", "--store", &stored.path("data")]);
    let server = start();
    stored.write("a.yaml", cluster("a", 1));
    stored.ok("put a.yaml --store data");
    stored.ok("quarantine CDS a --store data --reason too-slow");
    let error =
        |server: &Running| stored.fails(&format!("get --timeout 1 --server {} CDS a", server.address)).1;
    assert!(error(&server).contains("too-slow"), "{}", error(&server));
    drop(server);
    let server = start();
    assert!(error(&server).contains("too-slow"), "{}", error(&server));
}
