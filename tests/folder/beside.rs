//! A folder beside another source of the same cache, such as Kubernetes.

use xds::folder::{Folder, Isolation};
use xds::{Cache, Resource};

use super::{CLUSTER, Scratch, cluster, errors, has, load, payload};

fn of_other(name: &str) -> Resource {
    Resource::new(CLUSTER, name, format!("\n\u{6}{name}")).unwrap()
}

const TAKEN: &str =
    r#"a.yaml:1:1: envoy.config.cluster.v3.Cluster "shared" is already in another source of this server"#;

/// If both had the variant, it would go when one of them removes it.
#[test]
fn a_variant_of_another_source_is_refused_and_comes_when_that_one_no_longer_has_it() {
    let (scratch, cache) = (Scratch::new("beside"), Cache::new());
    let mut other = cache.source("other");
    scratch.write("b.yaml", cluster("b", "first"));
    let mut folder = Folder::new(&scratch.0);
    load(&mut folder, &cache).unwrap();
    other.set([of_other("shared")]).unwrap();
    scratch.write("a.yaml", cluster("shared", "of the folder"));
    scratch.write("b.yaml", cluster("b", "second"));
    assert_eq!(errors(load(&mut folder, &cache)), [TAKEN]);
    assert!(has(&cache, "b", "first"), "the folder is one transaction");

    std::fs::remove_file(scratch.path("a.yaml")).unwrap();
    load(&mut folder, &cache).unwrap();
    assert!(has(&cache, "b", "second") && payload(&cache, "shared").is_some(), "the other source has it");

    scratch.write("a.yaml", cluster("shared", "of the folder"));
    assert_eq!(errors(load(&mut folder, &cache)), [TAKEN]);
    other.set([]).unwrap();
    load(&mut folder, &cache).unwrap();
    assert!(has(&cache, "shared", "of the folder"));
    // It is a variant of the folder now, so it may change.
    scratch.write("a.yaml", cluster("shared", "changed"));
    load(&mut folder, &cache).unwrap();
    assert!(has(&cache, "shared", "changed"));
}

#[test]
fn with_isolation_only_the_file_with_the_variant_waits() {
    let (scratch, cache) = (Scratch::new("beside-isolated"), Cache::new());
    let mut other = cache.source("other");
    scratch.write("b.yaml", cluster("b", "first"));
    let mut folder = Folder::new(&scratch.0).with_isolation(Isolation::File);
    load(&mut folder, &cache).unwrap();
    other.set([of_other("shared")]).unwrap();
    scratch.write("a.yaml", cluster("shared", "of the folder"));
    scratch.write("b.yaml", cluster("b", "second"));
    let isolated = load(&mut folder, &cache).unwrap().isolated.unwrap();
    assert_eq!(isolated.to_string(), TAKEN);
    assert!(has(&cache, "b", "second"));
    other.set([]).unwrap();
    assert!(load(&mut folder, &cache).unwrap().isolated.is_none());
    assert!(has(&cache, "shared", "of the folder"));
}
