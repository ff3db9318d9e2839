//! NAME is a whole name, also with `*`; `--match` takes a pattern.

use super::*;

/// `NAME` was a pattern for some commands: `xds delete SDS 'ab*'` deleted `abc`.
#[test]
fn a_name_with_a_star_is_a_name() {
    let stored = Stored::served("star");
    stored.write("a.yaml", [cluster("abc", 1), cluster("other", 1)].join("---\n"));
    stored.ok("put a.yaml --store data");
    let of_abc = stored.revision("CDS abc");
    let before = stored.ok("list --store data");
    for command in [
        "delete CDS ab*",
        "delete CDS *",
        "delete CDS ab* --when env=prod",
        "quarantine CDS ab* --reason bad",
        "history CDS ab*",
        "refs why CDS ab*",
        &format!("rollback CDS ab* --to {of_abc}"),
        "list CDS ab*",
        "put a.yaml --owner-record CDS ab*",
    ] {
        let (code, error) = stored.fails(&format!("{command} --store data"));
        assert_eq!(code, 3, "{command}: {error}");
        assert!(error.contains("\n  hint: NAME is a whole name."), "{command}: {error}");
    }
    let (_, error) = stored.fails("delete CDS ab* --store data");
    let expected = "error: Cluster ab* does not exist\n  hint: NAME is a whole name. For names that begin like it: \
                    --match 'ab*'\n";
    assert_eq!(error, expected);
    assert_eq!(stored.ok("list --store data"), before);

    // A record with such a name is found by it, and alone.
    stored.write(
        "star.yaml",
        [cluster("ab*", 1), cluster("xdstp://a/envoy.config.cluster.v3.Cluster/b*", 1)].join("---\n"),
    );
    stored.ok("put star.yaml --store data");
    assert!(stored.ok("list CDS ab* --store data").starts_with("+ Cluster ab*  "));
    let listed = stored.json("list CDS ab* --store data");
    let [listed] = &listed[..] else { panic!("{listed:?}") };
    let revision = listed["revision"].as_str().unwrap();
    assert!(stored.ok("refs why CDS ab* --store data").starts_with("Cluster ab*\n"));
    assert_eq!(stored.json("history CDS ab* --store data").len(), 1);
    let output = stored.ok("quarantine CDS ab* --store data --reason bad");
    assert!(output.starts_with("quarantined Cluster ab*\n"), "{output}");
    let output = stored.ok(&format!("rollback CDS ab* --to {revision} --store data"));
    assert!(output.starts_with("updated    Cluster ab*\n"), "{output}");
    for name in ["ab*", "xdstp://a/envoy.config.cluster.v3.Cluster/b*"] {
        let output = stored.ok(&format!("delete CDS {name} --store data"));
        assert!(output.starts_with(&format!("deleted    Cluster {name}\n")), "{output}");
    }
    assert_eq!(stored.ok("list --store data"), before);
}

#[test]
fn a_pattern_shows_what_it_selects_and_changes_it_with_yes() {
    let stored = Stored::served("match");
    let all = [
        cluster("shop-1", 1),
        variant("shop-2", "env=prod", 1),
        variant("shop-2", "env=test", 1),
        cluster("web", 1),
    ];
    stored.write("a.yaml", all.join("---\n"));
    stored.ok("put a.yaml --store data");
    let before = stored.ok("list --store data");
    assert_eq!(stored.json("list --match shop-* --store data").len(), 3);
    assert_eq!(stored.json("list CDS web --match shop-1* --store data").len(), 2);

    let shown = stored.ok("delete CDS --match shop-* --store data");
    let lines: Vec<_> = shown.lines().collect();
    let labels = ["Cluster shop-1", "Cluster shop-2 [env=prod]", "Cluster shop-2 [env=test]"];
    assert_eq!(lines[..3], labels.map(|label| format!("deleted    {label}")));
    assert!(lines[3].starts_with("3 resources: dry run: 3 deleted; revision "), "{shown}");
    assert_eq!(lines[4..], ["nothing is changed: add --yes to change these"]);
    let shown = stored.ok("quarantine CDS --match shop-* --reason bad --store data");
    assert!(shown.contains("3 resources: dry run: 3 quarantined; revision "), "{shown}");
    assert_eq!(stored.json("delete CDS --match shop-* --store data")[0]["dry_run"], true);
    let shown = stored.ok("delete CDS --match shop-* --dry-run --yes --store data");
    assert!(shown.contains("dry run: 3 deleted"), "{shown}");
    assert_eq!(stored.ok("list --store data"), before);

    let done = stored.ok("quarantine CDS --match shop-1* --reason bad --yes --store data");
    assert!(done.starts_with("quarantined Cluster shop-1\n1 resource: 1 quarantined; revision "), "{done}");
    let done = stored.ok("delete CDS --match shop-* --yes --store data");
    assert!(done.contains("\n3 resources: 3 deleted; revision ") && !done.contains("--yes"), "{done}");
    assert_eq!(stored.ok("list --store data").lines().count(), 1);
    let (code, error) = stored.fails("delete CDS --match shop-* --yes --store data");
    assert_eq!((code, &*error), (3, "error: no Cluster matches shop-*\n"));

    for wrong in [
        "web --match s*",
        "--match web",
        "--match s*b",
        "web --yes",
        "--match s* --when a=b",
        "",
        "--match s* --if-revision x",
    ] {
        let (code, error) = stored.fails(&format!("delete CDS {wrong} --store data").replace("  ", " "));
        assert_eq!(code, 2, "{wrong}: {error}");
    }
}
