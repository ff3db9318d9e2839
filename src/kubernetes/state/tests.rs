use xds_core::{ResourceName, TypeUrl};
use xds_proto::type_url::{CLUSTER, CLUSTER_LOAD_ASSIGNMENT};

use super::super::contents::tests::{cluster, config_map, rules};
use super::super::endpoints::tests::slice;
use super::*;

/// The numbers of the watches.
const SLICES: usize = 0;
const MAPS: usize = 1;

fn state() -> State {
    let scope = |kind| WatchScope { kind, namespace: None };
    State::new(rules(&["system"]), vec![scope(Kind::EndpointSlice), scope(Kind::ConfigMap)])
}

fn of_slice(slice: EndpointSlice) -> Change {
    Change::Put(Object::Slice(Box::new(slice)))
}

/// A ConfigMap with these clusters.
fn map(namespace: &str, name: &str, clusters: &[&str]) -> Change {
    let file = clusters.iter().map(|name| cluster(name)).collect::<Vec<_>>().join("---\n");
    Change::Put(Object::ConfigMap(Box::new(config_map(namespace, name, &[("a.yaml", &file)]))))
}

/// A ConfigMap with a file of this text.
fn files(name: &str, text: &str) -> Change {
    Change::Put(Object::ConfigMap(Box::new(config_map("shop", name, &[("a.yaml", text)]))))
}

/// A cluster with an alias.
fn aliased(name: &str, alias: &str) -> String {
    format!(
        "'@type': type.googleapis.com/envoy.service.discovery.v3.Resource\nname: {name}\naliases: [{alias}]\n\
         resource: {{'@type': type.googleapis.com/envoy.config.cluster.v3.Cluster, name: {name}}}\n"
    )
}

fn revision(cache: &Cache) -> u64 {
    cache.snapshot().revision().to_string().parse().unwrap()
}

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn gone(kind: Kind, name: &str) -> Change {
    Change::Gone(ObjectName::new(kind, "shop", name))
}

/// A list of these objects.
fn list(state: &mut State, watch: usize, changes: Vec<Change>) {
    state.on(watch, Change::Listing);
    changes.into_iter().for_each(|change| state.on(watch, change));
    state.on(watch, Change::Listed);
}

fn names(cache: &Cache, type_url: &str) -> Vec<String> {
    let snapshot = cache.snapshot();
    let of_type = snapshot.of_type(&TypeUrl::from(type_url));
    let mut names: Vec<_> =
        of_type.into_iter().flat_map(|all| all.iter()).map(|(name, _)| name.as_str().to_owned()).collect();
    names.sort();
    names
}

fn problems(state: &State) -> Vec<String> {
    let all = state.problems().iter();
    all.flat_map(|(object, of)| of.iter().map(move |problem| format!("{object}: {problem}"))).collect()
}

/// A state with a service and two ConfigMaps, committed.
fn loaded() -> (State, std::sync::Arc<Cache>) {
    let (mut state, cache) = (state(), Cache::new());
    let web = slice("web-1", &["http=80"], &["10.0.0.1 a rs"]);
    list(&mut state, SLICES, vec![of_slice(web)]);
    assert!(!state.is_complete(), "the ConfigMaps are not known yet");
    list(&mut state, MAPS, vec![map("shop", "a", &["shop/a"]), map("shop", "b", &["shop/b"])]);
    assert!(state.is_complete());
    assert!(state.commit(&cache).has_changed);
    (state, cache)
}

#[test]
fn a_change_costs_what_it_changes() {
    let (mut state, cache) = loaded();
    assert_eq!(names(&cache, CLUSTER_LOAD_ASSIGNMENT), ["shop/web/http"]);
    assert_eq!(names(&cache, CLUSTER), ["shop/a", "shop/b"]);
    assert!(!state.has_changes());
    state.on(SLICES, of_slice(slice("web-1", &["http=80"], &["10.0.0.2 a rs"])));
    assert_eq!(state.commit(&cache), Committed { has_changed: true, translated: 1 });
    // The same again, as after a watch that was resumed.
    state.on(SLICES, of_slice(slice("web-1", &["http=80"], &["10.0.0.2 a rs"])));
    assert!(!state.has_changes());
}

#[test]
fn what_a_list_lacks_is_gone_once_the_list_is_complete() {
    let (mut state, cache) = loaded();
    let everything = [names(&cache, CLUSTER), names(&cache, CLUSTER_LOAD_ASSIGNMENT)];
    // A list that breaks off, and begins again.
    state.on(MAPS, Change::Listing);
    state.on(MAPS, map("shop", "a", &["shop/a"]));
    state.commit(&cache);
    state.on(MAPS, Change::Listing);
    state.on(MAPS, map("shop", "b", &["shop/b", "shop/new"]));
    state.commit(&cache);
    assert_eq!(names(&cache, CLUSTER), ["shop/a", "shop/b", "shop/new"], "nothing was removed yet");
    state.on(MAPS, Change::Listed);
    state.commit(&cache);
    assert_eq!(names(&cache, CLUSTER), ["shop/b", "shop/new"]);
    assert_eq!(names(&cache, CLUSTER_LOAD_ASSIGNMENT), everything[1], "another watch");
    list(&mut state, SLICES, vec![]);
    state.commit(&cache);
    assert_eq!(names(&cache, CLUSTER_LOAD_ASSIGNMENT), [""; 0]);
}

#[test]
fn a_bad_object_keeps_its_last_good_content_and_stops_no_other() {
    let (mut state, cache) = loaded();
    state.on(MAPS, map("shop", "a", &["pay/a"]));
    state.on(MAPS, map("shop", "b", &["shop/b2"]));
    let mut bad = slice("web-1", &["http=80"], &["10.0.0.9 a rs"]);
    bad.address_type = "FQDN".into();
    state.on(SLICES, of_slice(bad));
    state.commit(&cache);
    assert_eq!(names(&cache, CLUSTER), ["shop/a", "shop/b2"]);
    assert_eq!(names(&cache, CLUSTER_LOAD_ASSIGNMENT), ["shop/web/http"]);
    let found = problems(&state);
    assert!(found.len() == 2 && found[0].starts_with("EndpointSlice shop/web-1: "), "{found:?}");
    assert!(found[1].starts_with("ConfigMap shop/a: ") && found[1].contains("\"pay/a\""), "{found:?}");
    // Good again, and gone.
    state.on(MAPS, map("shop", "a", &["shop/a2"]));
    state.on(SLICES, gone(Kind::EndpointSlice, "web-1"));
    state.commit(&cache);
    assert_eq!(names(&cache, CLUSTER), ["shop/a2", "shop/b2"]);
    assert_eq!(names(&cache, CLUSTER_LOAD_ASSIGNMENT), [""; 0]);
    assert_eq!(problems(&state), [""; 0]);
}

#[test]
fn a_name_belongs_to_one_object_and_the_next_one_waits_for_it() {
    let (mut state, cache) = loaded();
    state.on(MAPS, map("system", "c", &["shop/b", "c"]));
    state.commit(&cache);
    assert_eq!(names(&cache, CLUSTER), ["shop/a", "shop/b"], "an object is accepted as a whole");
    let taken =
        "ConfigMap system/c: envoy.config.cluster.v3.Cluster \"shop/b\" is already in ConfigMap shop/b";
    assert_eq!(problems(&state), [taken]);
    // It frees the name, and takes one that another one frees at the same time.
    state.on(MAPS, map("shop", "b", &["shop/a"]));
    state.on(MAPS, map("shop", "a", &["shop/z"]));
    state.commit(&cache);
    assert_eq!(
        (names(&cache, CLUSTER), problems(&state)),
        (["c", "shop/a", "shop/b", "shop/z"].map(String::from).to_vec(), Vec::new())
    );
    state.on(MAPS, gone(Kind::ConfigMap, "b"));
    state.commit(&cache);
    assert_eq!(names(&cache, CLUSTER), ["c", "shop/b", "shop/z"]);
}

#[test]
fn a_name_of_another_source_is_not_taken_from_it() {
    let (mut state, cache) = loaded();
    let mut folder = cache.source("folder");
    let resource = |name: &str| Resource::new(CLUSTER, name, format!("\n\u{5}{name}")).unwrap();
    folder.set([resource("share")]).unwrap();
    state.on(MAPS, map("system", "c", &["share"]));
    state.commit(&cache);
    let taken = "ConfigMap system/c: envoy.config.cluster.v3.Cluster \"share\" is already in another source";
    assert_eq!(problems(&state), [taken]);
    folder.set([]).unwrap();
    assert!(state.has_changes(), "it waits");
    state.commit(&cache);
    assert_eq!(problems(&state), [""; 0]);
    assert!(cache.snapshot().get(&CLUSTER.into(), &ResourceName::from("share")).is_some());
}

#[test]
fn what_the_cache_refuses_stops_no_other_object() {
    let (mut state, cache) = loaded();
    state.on(MAPS, files("x", &aliased("shop/x", "shop/other")));
    state.on(MAPS, files("y", &aliased("shop/y", "shop/other")));
    state.on(MAPS, map("shop", "a", &["shop/a2"]));
    state.commit(&cache);
    let taken =
        "ConfigMap shop/y: envoy.config.cluster.v3.Cluster \"shop/other\" is already in ConfigMap shop/x";
    assert_eq!(problems(&state), [taken]);
    assert_eq!(names(&cache, CLUSTER), ["shop/a2", "shop/b", "shop/x"]);
    // The alias is free when its owner goes.
    state.on(MAPS, gone(Kind::ConfigMap, "x"));
    state.commit(&cache);
    assert_eq!(
        (names(&cache, CLUSTER), problems(&state).len()),
        (strings(&["shop/a2", "shop/b", "shop/y"]), 0)
    );
}

/// An object that the cache refuses must not make a commit of each other one: a name that moves
/// between two of them would be gone in between.
#[test]
fn a_name_moves_in_one_commit_also_beside_an_object_that_is_refused() {
    let (mut state, cache) = loaded();
    let before = revision(&cache);
    let both = aliased("shop/x", "shop/other") + "---\n" + &aliased("shop/y", "shop/other");
    state.on(MAPS, files("bad", &both));
    state.on(MAPS, map("shop", "b", &["shop/a", "shop/b"]));
    state.on(MAPS, map("shop", "a", &["shop/new"]));
    state.commit(&cache);
    let found = problems(&state);
    assert!(found.len() == 1 && found[0].starts_with("ConfigMap shop/bad: "), "{found:?}");
    assert_eq!(names(&cache, CLUSTER), ["shop/a", "shop/b", "shop/new"]);
    assert_eq!(revision(&cache), before + 1);
    assert!(!state.has_changes(), "only a change of the object can mend it");
}

#[test]
fn what_waits_for_another_source_comes_when_that_one_no_longer_has_it() {
    let (mut state, cache) = loaded();
    let mut folder = cache.source("folder");
    let text = aliased("other", "shop/x");
    let wrapped = crate::folder::Contents::of_files(
        [("a.yaml".into(), text.into_bytes())].into(),
        std::sync::Arc::new(crate::folder::Descriptors::envoy()),
        xds_core::PAYLOAD_LIMIT_BYTES,
    );
    let (_, variants) = wrapped.names(CLUSTER).next().unwrap();
    folder.set([variants.iter().next().unwrap().1.resource.clone()]).unwrap();
    state.on(MAPS, map("shop", "x", &["shop/x"]));
    state.commit(&cache);
    let found = problems(&state);
    assert!(found.len() == 1 && found[0].starts_with("ConfigMap shop/x: "), "{found:?}");
    folder.set([]).unwrap();
    assert!(state.has_changes(), "it waits");
    state.commit(&cache);
    assert_eq!(
        (names(&cache, CLUSTER), problems(&state).len()),
        (strings(&["shop/a", "shop/b", "shop/x"]), 0)
    );
}

#[test]
fn a_slice_that_moves_to_another_service_leaves_the_first_one() {
    let (mut state, cache) = loaded();
    let mut moved = slice("web-1", &["http=80"], &["10.0.0.1 a rs"]);
    moved.metadata.labels = Some([("kubernetes.io/service-name".to_owned(), "api".to_owned())].into());
    state.on(SLICES, of_slice(moved));
    state.commit(&cache);
    assert_eq!(names(&cache, CLUSTER_LOAD_ASSIGNMENT), ["shop/api/http"]);
}

#[test]
fn a_watch_of_one_namespace_says_nothing_about_others() {
    let scope = |namespace: &str| WatchScope { kind: Kind::ConfigMap, namespace: Some(namespace.into()) };
    let mut state = State::new(rules(&[]), vec![scope("shop"), scope("pay")]);
    let cache = Cache::new();
    list(&mut state, 0, vec![map("shop", "a", &["shop/a"])]);
    list(&mut state, 1, vec![map("pay", "a", &["pay/a"])]);
    state.commit(&cache);
    list(&mut state, 1, vec![]);
    state.commit(&cache);
    assert_eq!(names(&cache, CLUSTER), ["shop/a"]);
}
