//! Variants: `when:` beside `@type`, and conflicts between variants.

use std::fs;

use xds::folder::Folder;
use xds::{Cache, TypeUrl};

use super::{CLUSTER, Scratch, cluster, count, errors, has, load, revision};

/// A file with one cluster for the clients whose parameters match.
fn variant(name: &str, when: &str, stat_name: &str) -> String {
    format!("{}when: {when}\n", cluster(name, stat_name))
}

#[test]
fn t3_documents_of_one_name_with_different_constraints_are_its_variants() {
    let scratch = Scratch::new("variants");
    scratch.write("prod.yaml", variant("a", "env=prod", "for-prod"));
    let wrapped = format!(
        "\"@type\": type.googleapis.com/envoy.service.discovery.v3.Resource\nname: a\nwhen: env!=prod\n\
         resource: {{\"@type\": {CLUSTER}, name: a, alt_stat_name: for-others}}\n"
    );
    scratch.write("others.yaml", wrapped);
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    let loaded = load(&mut folder, &cache).unwrap();
    assert_eq!((loaded.resources, count(&cache)), (2, 1));
    let snapshot = cache.snapshot();
    let variants = snapshot.get(&TypeUrl::from(CLUSTER), &"a".into()).unwrap();
    let of = |env: &str| {
        let variant = variants.resolve(&[("env", env)].into_iter().collect()).unwrap();
        String::from_utf8_lossy(variant.payload()).into_owned()
    };
    assert!(of("prod").contains("for-prod") && of("test").contains("for-others"));
}

#[test]
fn t15_variants_that_overlap_are_refused_with_both_places_and_a_later_fix_is_taken() {
    let scratch = Scratch::new("overlap");
    scratch.write("a.yaml", variant("a", "env=prod", "s"));
    scratch.write("b.yaml", format!("# a comment\n{}", variant("a", "env!=test", "s")));
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    let found = errors(load(&mut folder, &cache));
    assert_eq!(
        found,
        [
            r#"b.yaml:2:1: envoy.config.cluster.v3.Cluster "a": [env=prod] and [env!=test] both match env="prod"; the first is in a.yaml, line 1"#
        ]
    );
    assert_eq!(revision(&cache), 0);
    scratch.write("b.yaml", variant("a", "env!=prod", "s"));
    assert_eq!(load(&mut folder, &cache).unwrap().resources, 2);
    // Once more, now with a last good state.
    scratch.write("b.yaml", variant("a", "env!=prod,version", "s"));
    let found = errors(load(&mut folder, &cache));
    assert_eq!(
        found,
        [
            r#"b.yaml:1:1: envoy.config.cluster.v3.Cluster "a": [env=prod] and [env!=prod,version] must name the same keys; only the first has [], only the second ["version"]; the first is in a.yaml, line 1; add `,(version || !version)` to the first: that names the missing keys and does not restrict it"#
        ]
    );
    assert_eq!(load(&mut folder, &cache).unwrap_err().len(), 1, "a refused change is not forgotten");
    assert_eq!(revision(&cache), 1);
    scratch.write("b.yaml", variant("a", "env=test", "s"));
    assert_eq!(load(&mut folder, &cache).unwrap().commit.changed, 1);
}

#[test]
fn t22_one_variant_in_two_spellings_is_a_duplicate() {
    let scratch = Scratch::new("spellings");
    scratch.write("a.yaml", variant("a", "env=prod,version=v1", "s"));
    scratch.write("b.yaml", variant("a", "version=v1,env=prod", "s"));
    let found = errors(load(&mut Folder::new(&scratch.0), &Cache::new()));
    assert_eq!(
        found,
        [
            r#"b.yaml:1:1: envoy.config.cluster.v3.Cluster "a" [version=v1,env=prod] is also in a.yaml, line 1"#
        ]
    );
}

#[test]
fn a_mistake_in_when_is_reported_with_its_place() {
    let scratch = Scratch::new("when");
    scratch.write("a.yaml", variant("a", "env=prod && version", "s"));
    scratch.write("b.yaml", variant("b", "[env]", "s"));
    scratch.write(
        "c.yaml",
        format!(
            "{}transport_socket: {{name: x, typed_config: {{\"@type\": {CLUSTER}, when: a}}}}\n",
            cluster("c", "s")
        ),
    );
    let found = errors(load(&mut Folder::new(&scratch.0), &Cache::new()));
    assert!(found[0].starts_with(r#"a.yaml:4:7: envoy.config.cluster.v3.Cluster "a": when: "#), "{found:?}");
    assert!(found[0].contains("column 10"), "{found:?}");
    assert!(
        found[1].contains("expected a string such as") && found[1].ends_with("found a list"),
        "{found:?}"
    );
    // Only a resource of the folder can have `when:`, not a message within it.
    assert!(found[2].contains("no field `when`"), "{found:?}");
}

#[test]
fn t15_what_is_for_everyone_overlaps_and_the_message_says_how_to_mean_all_others() {
    let scratch = Scratch::new("default");
    scratch.write("a.yaml", cluster("a", "s"));
    scratch.write("b.yaml", variant("a", "env=prod,beta", "s"));
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    let found = errors(load(&mut folder, &cache));
    let (_, advice) = found[0].split_once("give it `when: ").unwrap();
    scratch.write("a.yaml", variant("a", advice.trim_end_matches('`'), "s"));
    assert_eq!(load(&mut folder, &cache).unwrap().resources, 2);
}

#[test]
fn t15_variants_of_one_file_and_of_a_file_that_did_not_change_are_found_too() {
    let scratch = Scratch::new("places");
    scratch
        .write("a.yaml", format!("{}---\n{}", variant("a", "env=prod", "s"), variant("a", "env=test", "s")));
    scratch.write("b.yaml", cluster("b", "s"));
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    load(&mut folder, &cache).unwrap();
    scratch.write("b.yaml", format!("{}---\n{}", cluster("b", "t"), variant("a", "env!=prod", "s")));
    let found = errors(load(&mut folder, &cache));
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("b.yaml:5:1: ") != found[0].contains("a.yaml:6:1: "), "{found:?}");
    assert!(found[0].contains("in b.yaml, line 5") != found[0].contains("in a.yaml, line 6"), "{found:?}");
    assert!(has(&cache, "b", "s"), "all or nothing");
    // Without the other variant there is no overlap, and the pending change of b.yaml comes in.
    scratch.write("a.yaml", variant("a", "env=prod", "s"));
    assert_eq!(load(&mut folder, &cache).unwrap().commit.changed, 2);
    assert!(has(&cache, "b", "t"));
    // A refused change leaves the index equal to the cache, so undoing it is no change.
    scratch.write("b.yaml", variant("a", "env", "s"));
    assert_eq!(errors(load(&mut folder, &cache)).len(), 1);
    fs::remove_file(scratch.path("a.yaml")).unwrap();
    assert_eq!(load(&mut folder, &cache).unwrap().resources, 1);
    let snapshot = cache.snapshot();
    assert_eq!(snapshot.get(&CLUSTER.into(), &"a".into()).unwrap().len(), 1);
    assert!(snapshot.get(&CLUSTER.into(), &"b".into()).is_none());
}
