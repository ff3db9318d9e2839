//! `xds list`, `store status` and `store compact`.

use super::*;

#[test]
fn a_list_as_yaml_or_pb_is_a_folder_with_the_same_resources() {
    let stored = Stored::served("list");
    let wrapped = format!(
        "\"@type\": type.googleapis.com/envoy.service.discovery.v3.Resource\nname: w\nttl: 1.5s\naliases: [v]\n\
         cache_control: {{ do_not_cache: true }}\nresource:\n  \"@type\": {CLUSTER}\n  name: w\n"
    );
    let all = [cluster("a", 1), variant("b", "env in (x,y),!z", 1), wrapped].join("---\n");
    stored.write("config/a.yaml", all);
    stored.ok("apply config --store data");
    stored.write("copy/all.yaml", stored.ok("list --store data --format yaml"));
    assert!(stored.ok("apply copy --store data").starts_with("copy: 3 unchanged; "));
    assert_eq!(stored.ok("diff copy --store data"), "");
    stored.write("binary/all.pb", stored.run("list --store data --format pb").stdout);
    assert!(stored.ok("apply binary --store data").starts_with("binary: 3 unchanged; "));
}

#[test]
fn a_type_without_a_descriptor_has_no_yaml_but_a_pb_file() {
    let stored = Stored::served("unknown");
    // DiscoveryResponse { resources: [Any { type: "example.com/acme.Thing", .. }] } in a wrapper with
    // the name t.
    let any = [b"\x0a\x16example.com/acme.Thing\x12\x02\x08\x01".as_slice()].concat();
    let resource = [&[0x12, any.len() as u8], &any[..], b"\x1a\x01t"].concat();
    let wrapper = "type.googleapis.com/envoy.service.discovery.v3.Resource";
    let outer =
        [&[0x0a, wrapper.len() as u8], wrapper.as_bytes(), &[0x12, resource.len() as u8], &resource].concat();
    stored.write("config/t.pb", [&[0x12, outer.len() as u8], &outer[..]].concat());
    stored.ok("apply config --store data");
    let (code, error) = stored.fails("list --store data --format yaml");
    assert_eq!(code, 2);
    assert_eq!(error, "error: no descriptor for example.com/acme.Thing: use --descriptors, or --format pb\n");
    stored.write("copy/t.pb", stored.run("list --store data --format pb").stdout);
    assert!(stored.ok("apply copy --store data").starts_with("copy: 1 unchanged; "));
    assert_eq!(stored.json("list --store data")[0]["resource"]["@value"], "CAE=");
}

#[test]
fn a_name_that_does_not_exist_has_its_own_exit_code() {
    let stored = Stored::served("missing");
    stored.write("a.yaml", [cluster("a", 1), cluster("shop-1", 1), cluster("shop-2", 1)].join("---\n"));
    stored.ok("put a.yaml --store data --owner shop");
    let output = stored.run("list CDS a x --store data");
    assert_eq!((output.status.code(), stderr(&output)), (Some(3), "error: x does not exist\n".to_owned()));
    let text = String::from_utf8(output.stdout).unwrap();
    let revision = stored.revision("CDS a");
    assert_eq!(
        text,
        format!("+ Cluster a  revision {revision}  owner shop\n  name: a\n  connect_timeout: 1s\n")
    );
    assert_eq!(stored.ok("list CDS --match shop-* --store data").matches("+ Cluster shop-").count(), 2);
    assert_eq!(stored.ok("list --store data --owner other"), "");
    assert_eq!(stored.ok("list --store data --owner shop").lines().count(), 3);
    assert_eq!(stored.ok("list LDS --store data"), "");
}

#[test]
fn st28_a_watch_shows_what_is_there_and_then_each_change() {
    let mut stored = Stored::served("watch");
    stored.write("a.yaml", cluster("a", 1));
    stored.ok("put a.yaml --store data");
    let mut watch = xds();
    watch.current_dir(&stored.0.0).args("list --store data --watch --format json".split(' '));
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufReader::new(watch.stdout.take().unwrap());
    let mut events = std::io::BufRead::lines(lines).map(|line| {
        let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
        (event["event"].as_str().unwrap().to_owned(), event["name"].as_str().unwrap().to_owned())
    });
    let of = |event: &str, name: &str| Some((event.to_owned(), name.to_owned()));
    assert_eq!(events.next(), of("put", "a"));
    stored.write("b.yaml", cluster("b", 1));
    stored.ok("put b.yaml --store data");
    assert_eq!(events.next(), of("put", "b"));
    stored.ok("delete CDS a --store data");
    assert_eq!(events.next(), of("deleted", "a"));
    // It goes on when the server is started again, with another port and token.
    stored.restart();
    stored.write("c.yaml", cluster("c", 1));
    stored.ok("put c.yaml --store data");
    assert_eq!(events.next(), of("put", "c"));
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn the_status_has_the_revision_and_a_compaction_ends_the_history() {
    let stored = Stored::served("status");
    for seconds in 1..4 {
        stored.write("a.yaml", cluster("a", seconds));
        stored.ok("put a.yaml --store data");
    }
    let status = stored.ok("store status --store data --probe");
    assert!(status.starts_with("serving\nrevision     s"), "{status}");
    let status = &stored.json("store status --store data")[0];
    assert_eq!((&status["records"], &status["engine"]), (&1.into(), &"redb".into()));
    let commits = stored.json("history --store data");
    let second = commits[1]["revision"].as_str().unwrap();
    // Revisions of the last minutes are kept for pages of lists (ST26).
    let (code, kept) = stored.fails(&format!("store compact --to {second} --store data"));
    assert_eq!((code, kept.contains("the store keeps the next one for now")), (4, true), "{kept}");
    assert_eq!(stored.fails("store compact --to s0000-1 --store data").0, 2);
}
