//! `xds history` and `xds rollback`.

use super::*;

/// A store in which a cluster had the timeouts 1 s, 2 s and 3 s.
fn with_history(test: &str) -> Served {
    let stored = Stored::served(test);
    for (seconds, message) in [(1, "one"), (2, "two"), (3, "three")] {
        stored.write("a.yaml", cluster("a", seconds));
        stored.ok(&format!("put a.yaml --store data --owner shop --message {message}"));
    }
    stored
}

/// Store revision, message and record revision of each commit of the cluster.
fn commits(stored: &Served) -> Vec<[String; 3]> {
    let commits = stored.json("history CDS a --store data");
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let of = |commit: &Value| {
        let after = text(&commit["changes"][0]["revision_after"]);
        [text(&commit["revision"]), text(&commit["message"]), after]
    };
    commits.iter().map(of).collect()
}

#[test]
fn st34_the_history_says_who_changed_what_and_how() {
    let stored = with_history("history");
    let commits = commits(&stored);
    assert_eq!(commits.iter().map(|commit| &*commit[1]).collect::<Vec<_>>(), ["three", "two", "one"]);
    let text = stored.ok("history CDS a --store data --limit 1");
    let lines: Vec<_> = text.lines().collect();
    assert!(
        lines[0].starts_with(&commits[0][0]) && lines[0].ends_with("  local  owner shop  three"),
        "{text}"
    );
    assert_eq!(lines[1], format!("  updated    Cluster a  revision {}", commits[0][2]));
    assert_eq!(lines[5..7], ["    -connect_timeout: 2s", "    +connect_timeout: 3s"]);
    assert_eq!(lines[7], "older commits: use a larger --limit");
    assert_eq!(stored.json("history --store data").len(), 3);
    let missing = (3, "error: Cluster x has no history\n".to_owned());
    assert_eq!(stored.fails("history CDS x --store data"), missing);
    assert_eq!(stored.fails("history CDS --store data").0, 2);
}

#[test]
fn st35_old_content_is_a_new_generation() {
    let stored = with_history("rollback");
    let commits = commits(&stored);
    let output = stored.ok(&format!("rollback CDS a --to {} --store data --owner shop", commits[2][2]));
    assert!(output.starts_with("updated    Cluster a\nrollback: 1 updated; revision "), "{output}");
    assert!(stored.ok("list CDS a --store data").contains("connect_timeout: 1s"));
    assert_eq!(stored.json("list CDS a --store data")[0]["generation"], 4);
    let unknown = "0".repeat(32);
    assert_eq!(stored.fails(&format!("rollback CDS a --to {unknown} --store data")).0, 3);
    // Also after it was deleted.
    stored.ok("delete CDS a --store data --owner shop");
    stored.ok(&format!("rollback CDS a --to {} --store data", commits[1][2]));
    assert!(stored.ok("list CDS a --store data").contains("connect_timeout: 2s"));
    assert_eq!(stored.fails("rollback CDS a --store data").0, 2);
}

#[test]
fn st69_a_commit_is_undone_whole_unless_its_resources_changed_later() {
    let stored = with_history("undo");
    stored.write("b.yaml", [cluster("a", 9), cluster("b", 9)].join("---\n"));
    stored.ok("put b.yaml --store data --owner shop");
    let undone = commits(&stored)[0][0].clone();
    stored.write("b.yaml", cluster("b", 10));
    stored.ok("put b.yaml --store data --owner shop");
    let (code, error) = stored.fails(&format!("rollback --commit {undone} --store data"));
    let expected =
        "error: Cluster b was changed after that commit\n  hint: --force undoes the commit all the same\n";
    assert_eq!((code, &*error), (4, expected));
    let output = stored.ok(&format!("rollback --commit {undone} --store data --force"));
    assert!(output.starts_with("updated    Cluster a\ndeleted    Cluster b\n"), "{output}");
    assert!(stored.ok("list CDS a --store data").contains("connect_timeout: 3s"));
    assert_eq!(stored.fails("rollback --commit s0000-1 --store data").0, 3);
}

#[test]
fn st35_a_rollback_keeps_the_lease_and_the_owners_that_are_there() {
    let stored = Stored::served("rollback-lease");
    for seconds in [1, 2] {
        stored.write("a.yaml", cluster("a", seconds));
        stored.ok("put a.yaml --store data --owner shop --lease 1h");
    }
    let first = commits(&stored)[1][2].clone();
    stored.ok(&format!("rollback CDS a --to {first} --store data"));
    let record = stored.json("list CDS a --store data").remove(0);
    assert_eq!(record["resource"]["connect_timeout"], "1s");
    assert_eq!((&record["lease"], &record["owners"]), (&"3600s".into(), &serde_json::json!(["shop"])));
    let newest = commits(&stored)[0][0].clone();
    stored.ok(&format!("rollback --commit {newest} --store data"));
    let record = stored.json("list CDS a --store data").remove(0);
    assert_eq!(record["resource"]["connect_timeout"], "2s");
    assert_eq!((&record["lease"], &record["owners"]), (&"3600s".into(), &serde_json::json!(["shop"])));
}

#[test]
fn st69_what_a_commit_deleted_comes_back_with_the_owner_of_that_commit() {
    let stored = Stored::served("undo-owner");
    stored.write("config/a.yaml", [cluster("a", 1), cluster("b", 1)].join("---\n"));
    stored.ok("apply config --store data --owner shop --prune");
    stored.write("config/a.yaml", cluster("a", 1));
    stored.ok("apply config --store data --owner shop --prune");
    let newest = stored.json("history --store data").remove(0);
    let undo = format!("rollback --commit {} --store data", newest["revision"].as_str().unwrap());
    assert!(stored.ok(&undo).starts_with("created    Cluster b\n"));
    assert_eq!(stored.json("list CDS b --store data")[0]["owners"], serde_json::json!(["shop"]));
    // So the folder of the owner prunes it again.
    let output = stored.ok("apply config --store data --owner shop --prune");
    assert!(output.starts_with("deleted    Cluster b\n"), "{output}");
    // An option overrides it.
    let newest = stored.json("history --store data").remove(0);
    let undo = format!("rollback --commit {} --store data", newest["revision"].as_str().unwrap());
    stored.ok(&format!("{undo} --owner desk"));
    assert_eq!(stored.json("list CDS b --store data")[0]["owners"], serde_json::json!(["desk"]));
    // One resource comes back with the owner as which that content was written.
    stored.ok("delete CDS b --store data --owner desk");
    let commits = stored.json("history CDS b --store data");
    let first = commits.last().unwrap()["changes"][0]["revision_after"].as_str().unwrap().to_owned();
    stored.ok(&format!("rollback CDS b --to {first} --store data"));
    assert_eq!(stored.json("list CDS b --store data")[0]["owners"], serde_json::json!(["shop"]));
}
