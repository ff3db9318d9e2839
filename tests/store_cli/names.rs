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
