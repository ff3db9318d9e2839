//! A folder of files as a source: what it loads, what it refuses, and how it follows changes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(feature = "folder")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xds::folder::{Folder, FolderErrors, Loaded, Problem};
use xds::{Cache, Resource, TypeUrl};

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

/// A directory of one test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        let path =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("folder-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    fn write(&self, file: &str, content: impl AsRef<[u8]>) {
        let path = self.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// A file with one cluster.
fn cluster(name: &str, stat_name: &str) -> String {
    format!("\"@type\": {CLUSTER}\nname: {name}\nalt_stat_name: {stat_name}\n")
}

fn load(folder: &mut Folder, cache: &Cache) -> Result<Loaded, FolderErrors> {
    folder.load(cache, |_| {})
}

fn errors(result: Result<Loaded, FolderErrors>) -> Vec<String> {
    result.unwrap_err().iter().map(ToString::to_string).collect()
}

/// The payload of a cluster as text, which is enough to find its name and stat name in.
fn payload(cache: &Cache, name: &str) -> Option<String> {
    let snapshot = cache.snapshot();
    let variants = snapshot.get(&TypeUrl::from(CLUSTER), &name.into())?;
    Some(String::from_utf8_lossy(variants.iter().next()?.payload()).into_owned())
}

fn has(cache: &Cache, name: &str, stat_name: &str) -> bool {
    payload(cache, name).is_some_and(|payload| payload.contains(stat_name))
}

fn count(cache: &Cache) -> usize {
    cache.snapshot().counts().map(|(_, count)| count).sum()
}

fn revision(cache: &Cache) -> u64 {
    cache.snapshot().revision().to_string().parse().unwrap()
}

#[test]
fn files_of_all_kinds_are_found_at_any_depth_and_hidden_ones_are_not() {
    let scratch = Scratch::new("kinds");
    scratch.write("a.yaml", cluster("a", "s"));
    scratch.write("deep/er/b.yml", cluster("b", "s"));
    scratch.write("deep/c.json", format!("{{\"@type\": \"{CLUSTER}\", \"name\": \"c\"}}"));
    scratch.write("notes.txt", "not a resource");
    scratch.write(".hidden.yaml", cluster("hidden", "s"));
    scratch.write(".git/x.yaml", cluster("hidden", "s"));
    symlink("deep/er", scratch.path("a-link")).unwrap();
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    // The link shows the same resource under a second path.
    let twice = errors(load(&mut folder, &cache));
    assert_eq!(
        twice,
        [r#"deep/er/b.yml:1:1: envoy.config.cluster.v3.Cluster "b" is also in a-link/b.yml, line 1"#]
    );
    fs::remove_file(scratch.path("a-link")).unwrap();
    symlink("..", scratch.path("deep/loop")).unwrap();
    let loaded = load(&mut folder, &cache).unwrap();
    assert_eq!((loaded.files, loaded.resources, loaded.commit.changed), (3, 3, 3));
}

#[test]
fn contents_are_refused_for_what_a_load_is_refused_for() {
    let variant = |when: &str| format!("---\n{}when: '{when}'\n", cluster("v", "s"));
    let folders: [&[String]; 9] = [
        &[cluster("a", "s"), cluster("b", "s")],
        &[cluster("a", "s"), cluster("a", "t")],
        &[variant("env=prod"), variant("env=test"), variant("env!=prod,env!=test")],
        &[variant("env=prod"), variant("env!=test")],
        &[variant("env=prod"), variant("zone=a")],
        &[variant("env=prod"), variant("env=prod")],
        &[variant("env=prod,!env")],
        &[cluster("a", "s") + "nme: x\n", cluster("b", "s")],
        &[],
    ];
    for (number, documents) in folders.into_iter().enumerate() {
        let scratch = Scratch::new(&format!("contents-{number}"));
        fs::create_dir_all(&scratch.0).unwrap();
        for (file, document) in documents.iter().enumerate() {
            scratch.write(&format!("{file}.yaml"), document);
        }
        let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
        let contents = folder.contents(|_| {});
        match load(&mut folder, &cache) {
            Ok(loaded) => {
                assert_eq!(contents.errors(), None);
                assert_eq!((contents.files(), contents.resources()), (loaded.files, loaded.resources));
            }
            Err(errors) => assert_eq!(contents.errors(), Some(errors)),
        }
    }
}

#[test]
fn errors_of_all_files_are_reported_at_once_and_the_last_good_state_stays() {
    let scratch = Scratch::new("errors");
    scratch.write("a.yaml", cluster("a", "first"));
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    load(&mut folder, &cache).unwrap();
    scratch.write("a.yaml", cluster("a", "second"));
    scratch.write("b.yaml", format!("{}nme: x\n", cluster("b", "s")));
    scratch.write("c.json", "{");
    scratch.write("d.yaml", cluster("a", "third"));
    let found = errors(load(&mut folder, &cache));
    assert_eq!(found.len(), 3, "{found:#?}");
    assert!(
        found[0].starts_with(r#"b.yaml:4:1: envoy.config.cluster.v3.Cluster "b": no field `nme`"#),
        "{found:#?}"
    );
    assert!(found[1].starts_with("c.json:1:1: EOF"), "{found:#?}");
    assert!(
        found[2].starts_with("d.yaml:1:1: ") && found[2].ends_with("is also in a.yaml, line 1"),
        "{found:#?}"
    );
    assert!(has(&cache, "a", "first"));
    scratch.write("b.yaml", cluster("b", "s"));
    fs::remove_file(scratch.path("c.json")).unwrap();
    fs::remove_file(scratch.path("d.yaml")).unwrap();
    // Mending the rest brings in the good change of a.yaml as well.
    assert_eq!(load(&mut folder, &cache).unwrap().commit.changed, 2);
    assert!(has(&cache, "a", "second"));
}

#[test]
fn only_changed_files_are_read_again() {
    let scratch = Scratch::new("stamps");
    for number in 0..100 {
        scratch.write(&format!("{number}.yaml"), cluster(&format!("c{number}"), "s"));
    }
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    let mut seen = Vec::new();
    let loaded = folder.load(&cache, |progress| seen.push((progress.files_read, progress.files))).unwrap();
    assert_eq!(loaded.files_read, 100);
    assert_eq!(seen, (1..=100).map(|number| (number, 100)).collect::<Vec<_>>());
    assert_eq!(load(&mut folder, &cache).unwrap().files_read, 0);
    scratch.write("7.yaml", cluster("c7", "other"));
    fs::remove_file(scratch.path("8.yaml")).unwrap();
    let loaded = load(&mut folder, &cache).unwrap();
    assert_eq!((loaded.files_read, loaded.commit.changed, loaded.resources), (2, 2, 99));
}

#[test]
fn a_folder_without_resources_is_refused_at_the_start_and_later() {
    let scratch = Scratch::new("empty");
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    let problem =
        |result: Result<Loaded, FolderErrors>| result.unwrap_err().iter().next().unwrap().problem.clone();
    assert_eq!(problem(load(&mut folder, &cache)), Problem::NoResources);
    scratch.write("a.yaml", cluster("a", "s"));
    load(&mut folder, &cache).unwrap();
    scratch.write("a.yaml", "resources: []");
    assert_eq!(problem(load(&mut folder, &cache)), Problem::NoResources);
    assert!(has(&cache, "a", "s"));
    let mut relaxed = Folder::new(&scratch.0).allow_empty();
    assert_eq!(load(&mut relaxed, &Cache::new()).unwrap().resources, 0);
}

#[test]
fn what_cannot_be_read_is_the_environments_fault() {
    let scratch = Scratch::new("unreadable");
    let missing = load(&mut Folder::new(scratch.path("missing")), &Cache::new()).unwrap_err();
    assert!(missing.are_environment());
    symlink("nowhere", scratch.path("a.yaml")).unwrap();
    let dangling = load(&mut Folder::new(&scratch.0), &Cache::new()).unwrap_err();
    assert_eq!(dangling.to_string(), "a.yaml: cannot be read: entity not found");
    assert!(dangling.are_environment());
    scratch.write("b.yaml", "a: [");
    assert!(!load(&mut Folder::new(&scratch.0), &Cache::new()).unwrap_err().are_environment());
}

/// Runs this very test again, in processes of their own, whose hash maps have other seeds.
#[test]
fn d22_maps_give_one_version_in_20_processes() {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    if std::env::var_os("XDS_PRINT_VERSION").is_some() {
        let scratch = Scratch::new("maps");
        fs::copy(golden.join("maps.yaml"), scratch.path("maps.yaml")).unwrap();
        let cache = Cache::new();
        load(&mut Folder::new(&scratch.0), &cache).unwrap();
        let snapshot = cache.snapshot();
        let variants = snapshot.get(&CLUSTER.into(), &"maps".into()).unwrap();
        println!("version {}", variants.iter().next().unwrap().version());
        return;
    }
    let expected = fs::read_to_string(golden.join("maps.version")).unwrap();
    for _ in 0..20 {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "d22_maps_give_one_version_in_20_processes", "--nocapture"])
            .env("XDS_PRINT_VERSION", "1")
            .output()
            .unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        let (_, version) = output.split_once("version ").expect("the process prints a version");
        assert_eq!(version.split_whitespace().next(), expected.split_whitespace().next());
    }
}

/// A loaded folder that is being watched.
struct Watched {
    cache: Arc<Cache>,
    task: tokio::task::JoinHandle<()>,
}

impl Watched {
    async fn start(scratch: &Scratch) -> Self {
        let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
        scratch.write("started.yaml", cluster("started", "no"));
        load(&mut folder, &cache).unwrap();
        let watch = folder.watch(Arc::clone(&cache));
        let task = tokio::spawn(async move {
            watch.await;
        });
        let watched = Self { cache, task };
        // The first thing the watch does is to compare everything, once it listens: wait for a
        // change that was made before.
        scratch.write("started.yaml", cluster("started", "yes"));
        watched.until(|cache| has(cache, "started", "yes")).await;
        watched
    }

    /// Waits until the cache is as told; how long that took.
    async fn until(&self, condition: impl Fn(&Cache) -> bool) -> Duration {
        let started_at = Instant::now();
        while !condition(&self.cache) {
            assert!(started_at.elapsed() < Duration::from_secs(20), "the change never came");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        started_at.elapsed()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn a_write_in_place_a_rename_and_a_removal_are_followed() {
    let scratch = Scratch::new("live");
    scratch.write("sub/a.yaml", cluster("a", "first"));
    let watched = Watched::start(&scratch).await;
    scratch.write("sub/a.yaml", cluster("a", "second"));
    let took = watched.until(|cache| has(cache, "a", "second")).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    scratch.write(".new", cluster("a", "third"));
    fs::rename(scratch.path(".new"), scratch.path("sub/a.yaml")).unwrap();
    watched.until(|cache| has(cache, "a", "third")).await;
    fs::rename(scratch.path("sub/a.yaml"), scratch.path("b.yaml")).unwrap();
    scratch.write("b2.yaml", cluster("b", "s"));
    watched.until(|cache| has(cache, "b", "s")).await;
    assert!(has(&watched.cache, "a", "third"));
    fs::remove_file(scratch.path("b.yaml")).unwrap();
    watched.until(|cache| payload(cache, "a").is_none()).await;
}

#[tokio::test]
async fn directories_that_come_move_and_go_are_followed() {
    let scratch = Scratch::new("directories");
    let watched = Watched::start(&scratch).await;
    scratch.write("one/two/a.yaml", cluster("a", "first"));
    watched.until(|cache| has(cache, "a", "first")).await;
    fs::rename(scratch.path("one"), scratch.path("other")).unwrap();
    scratch.write("other/two/a.yaml", cluster("a", "second"));
    watched.until(|cache| has(cache, "a", "second")).await;
    fs::remove_dir_all(scratch.path("other")).unwrap();
    watched.until(|cache| payload(cache, "a").is_none()).await;
}

#[tokio::test]
async fn the_data_link_of_a_kubernetes_volume_is_followed() {
    let scratch = Scratch::new("kubernetes");
    scratch.write("..2024_1/a.yaml", cluster("a", "first"));
    scratch.write("..2024_1/gone.yaml", cluster("gone", "first"));
    symlink("..2024_1", scratch.path("..data")).unwrap();
    symlink("..data/a.yaml", scratch.path("a.yaml")).unwrap();
    symlink("..data/gone.yaml", scratch.path("gone.yaml")).unwrap();
    let watched = Watched::start(&scratch).await;
    let before = revision(&watched.cache);
    scratch.write("..2024_2/a.yaml", cluster("a", "second"));
    scratch.write("..2024_2/gone.yaml", cluster("gone", "second"));
    symlink("..2024_2", scratch.path("..data_tmp")).unwrap();
    fs::rename(scratch.path("..data_tmp"), scratch.path("..data")).unwrap();
    fs::remove_dir_all(scratch.path("..2024_1")).unwrap();
    watched.until(|cache| has(cache, "a", "second")).await;
    assert!(has(&watched.cache, "gone", "second"));
    assert_eq!(revision(&watched.cache), before + 1);
}

#[tokio::test]
async fn a_burst_of_1000_files_is_few_commits() {
    let scratch = Scratch::new("burst");
    let watched = Watched::start(&scratch).await;
    let before = revision(&watched.cache);
    for number in 0..1000 {
        scratch.write(&format!("{number}.yaml"), cluster(&format!("c{number}"), "s"));
    }
    watched.until(|cache| count(cache) == 1001).await;
    let commits = revision(&watched.cache) - before;
    assert!(commits <= 10, "{commits} commits");
}

#[tokio::test]
async fn what_a_broken_file_held_back_comes_when_it_is_mended() {
    let scratch = Scratch::new("held");
    scratch.write("a.yaml", cluster("a", "first"));
    let watched = Watched::start(&scratch).await;
    let before = revision(&watched.cache);
    // Both are one change, as a rename brings them in together.
    scratch.write(".next/bad.yaml", "resources: 5");
    scratch.write(".next/b.yaml", cluster("b", "s"));
    fs::rename(scratch.path(".next"), scratch.path("next")).unwrap();
    scratch.write("a.yaml", cluster("a", "second"));
    scratch.write("next/bad.yaml", "resources: []");
    watched.until(|cache| has(cache, "b", "s") && has(cache, "a", "second")).await;
    assert!(revision(&watched.cache) <= before + 2);
}

#[tokio::test]
async fn a_folder_that_vanishes_keeps_its_resources_and_is_followed_when_it_is_back() {
    let scratch = Scratch::new("vanish");
    scratch.write("in/a.yaml", cluster("a", "first"));
    let inner = Scratch(scratch.path("in"));
    let watched = Watched::start(&inner).await;
    fs::rename(&inner.0, scratch.path("away")).unwrap();
    inner.write("a.yaml", cluster("a", "second"));
    watched.until(|cache| has(cache, "a", "second")).await;
    fs::remove_dir_all(&inner.0).unwrap();
    inner.write("a.yaml", cluster("a", "third"));
    watched.until(|cache| has(cache, "a", "third")).await;
    inner.write("a.yaml", cluster("a", "fourth"));
    watched.until(|cache| has(cache, "a", "fourth")).await;
}

/// The same for the clients whose parameters match.
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
    // Once more, with a good state to keep.
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
    // Only a resource of the folder has variants, not a message within one.
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
    // The overlap goes with the other variant, and what was held back comes.
    scratch.write("a.yaml", variant("a", "env=prod", "s"));
    assert_eq!(load(&mut folder, &cache).unwrap().commit.changed, 2);
    assert!(has(&cache, "b", "t"));
    // A refused change leaves the index as the cache is, so that taking it back is no change.
    scratch.write("b.yaml", variant("a", "env", "s"));
    assert_eq!(errors(load(&mut folder, &cache)).len(), 1);
    fs::remove_file(scratch.path("a.yaml")).unwrap();
    assert_eq!(load(&mut folder, &cache).unwrap().resources, 1);
    let snapshot = cache.snapshot();
    assert_eq!(snapshot.get(&CLUSTER.into(), &"a".into()).unwrap().len(), 1);
    assert!(snapshot.get(&CLUSTER.into(), &"b".into()).is_none());
}

/// A wrapper around cluster `a`, with these fields.
fn wrapper(fields: &str) -> String {
    format!(
        "\"@type\": type.googleapis.com/envoy.service.discovery.v3.Resource\nname: a\n{fields}\n\
         resource: {{\"@type\": {CLUSTER}, name: a}}\n"
    )
}

#[test]
fn s38_d24_what_a_wrapper_says_beside_the_name_goes_with_the_resource() {
    let scratch = Scratch::new("beside");
    let resource =
        || Resource::new(CLUSTER.into(), "a".into(), bytes::Bytes::from_static(b"\x0a\x01a")).unwrap();
    // filter_metadata { key: "x" value { fields { key: "b" value { bool_value: true } } } }
    let metadata: &[u8] = b"\x0a\x0e\x0a\x01x\x12\x09\x0a\x07\x0a\x01b\x12\x02\x20\x01";
    let seconds = Duration::from_millis(1500);
    let cases = [
        ("ttl: 1.5s", resource().with_ttl(seconds)),
        ("aliases: [c, b, b]", resource().with_aliases(["b".into(), "c".into()])),
        ("cacheControl: {doNotCache: true}", resource().with_do_not_cache()),
        (
            "cache_control: {do_not_cache: false}\nttl: null\naliases: []\nmetadata: {}\nversion: x",
            resource(),
        ),
        (
            "ttl: 1.5s\naliases: [xdstp://x/acme.Thing/%62]",
            resource().with_ttl(seconds).with_aliases(["xdstp://x/acme.Thing/b".into()]),
        ),
        ("metadata: {filter_metadata: {x: {b: true}}}", resource().with_metadata(metadata.into())),
    ];
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    for (fields, expected) in cases {
        scratch.write("a.yaml", wrapper(fields));
        load(&mut folder, &cache).unwrap();
        let snapshot = cache.snapshot();
        let found = snapshot.get(&CLUSTER.into(), &"a".into()).unwrap().iter().next().unwrap();
        assert_eq!(found.version(), expected.version(), "{fields}");
    }
    let snapshot = cache.snapshot();
    let found = snapshot.get(&CLUSTER.into(), &"a".into()).unwrap().iter().next().unwrap();
    assert_eq!((found.ttl(), found.aliases()), (None, &[][..]));
}

#[test]
fn s38_d24_mistakes_beside_the_name_have_their_places() {
    let scratch = Scratch::new("beside-mistakes");
    scratch.write("a.yaml", wrapper("ttl: 0s\naliases: [b, '', 'xdstp:b']"));
    scratch.write("b.yaml", wrapper("ttl: soon\naliases: b"));
    scratch.write("c.yaml", wrapper("ttl: -1s\ncache_control: {never: true}\ncacheControl: {}"));
    scratch.write("d.yaml", wrapper("ttl: -1s"));
    let found = errors(load(&mut Folder::new(&scratch.0), &Cache::new()));
    let subject = r#"envoy.service.discovery.v3.Resource "a""#;
    let ttl = "a ttl must be positive and at most 10,000 years";
    let expected = [
        format!("a.yaml:3:6: {subject}: ttl: 0 s and 0 ns: {ttl}"),
        format!("a.yaml:4:14: {subject}: aliases[1]: the string \"\": an alias must not be empty"),
        format!(
            "a.yaml:4:18: {subject}: aliases[2]: the string \"xdstp:b\": column 7: expected `//` after `xdstp:`"
        ),
        format!("b.yaml:3:6: {subject}: ttl: the string \"soon\": failed to parse duration"),
        format!("b.yaml:4:10: {subject}: aliases: expected a list, found the string \"b\""),
        format!(
            "c.yaml:4:17: {subject}: cache_control: no field `never` in envoy.service.discovery.v3.Resource.CacheControl"
        ),
        format!("c.yaml:5:1: {subject}: cacheControl: given twice"),
        format!("d.yaml:3:6: {subject}: ttl: -1 s and 0 ns: {ttl}"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn s38_d24_a_pb_file_keeps_what_its_wrappers_say() {
    use prost::Message;
    use xds_proto::Any;
    use xds_proto::envoy::service::discovery::v3::{DiscoveryResponse, Resource as Wrapper};

    let scratch = Scratch::new("beside-pb");
    let write = |seconds| {
        let cluster = Any { type_url: CLUSTER.into(), value: b"\x0a\x01a".as_slice().into() };
        let wrapper = Wrapper {
            name: "a".into(),
            resource: Some(cluster),
            aliases: vec!["b".into()],
            ttl: Some(prost_types::Duration { seconds, nanos: 0 }),
            ..Wrapper::default()
        };
        let type_url = xds_proto::type_url::RESOURCE.into();
        let wrapper = Any { type_url, value: wrapper.encode_to_vec().into() };
        let response = DiscoveryResponse { resources: vec![wrapper], ..DiscoveryResponse::default() };
        scratch.write("a.pb", response.encode_to_vec());
    };
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    write(30);
    load(&mut folder, &cache).unwrap();
    let snapshot = cache.snapshot();
    let found = snapshot.get(&CLUSTER.into(), &"a".into()).unwrap().iter().next().unwrap();
    assert_eq!((found.ttl(), found.aliases()), (Some(Duration::from_secs(30)), &["b".into()][..]));
    write(-30);
    assert_eq!(
        errors(load(&mut folder, &cache)),
        [
            r#"a.pb: envoy.service.discovery.v3.Resource "a": ttl: -30 s and 0 ns: a ttl must be positive and at most 10,000 years"#
        ]
    );
}

const ROUTE: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";
const ROUTE_NAME: &str = "xdstp://x/envoy.config.route.v3.RouteConfiguration/web/r";

#[test]
fn x4_a_new_style_name_is_one_name_however_it_is_spelled() {
    let scratch = Scratch::new("spelled");
    scratch.write("a.yaml", format!("\"@type\": {ROUTE}\nname: {ROUTE_NAME}?b=2&a=1\n"));
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    load(&mut folder, &cache).unwrap();
    let canonical = format!("{ROUTE_NAME}?a=1&b=2");
    assert!(cache.snapshot().get(&ROUTE.into(), &canonical.as_str().into()).is_some());
    scratch.write("b.yaml", format!("\"@type\": {ROUTE}\nname: {canonical}\n"));
    assert_eq!(
        errors(load(&mut folder, &cache)),
        [format!(
            r#"b.yaml:1:1: envoy.config.route.v3.RouteConfiguration "{canonical}" is also in a.yaml, line 1"#
        )]
    );
}

#[test]
fn x2_x6_x11_x16_mistakes_with_new_style_names_have_their_places() {
    let scratch = Scratch::new("new-style");
    let name = "xdstp://x/envoy.config.cluster.v3.Cluster/a";
    scratch.write("a.yaml", format!("# first\n\"@type\": {CLUSTER}\nname: {name}\ntype: EDS\n"));
    scratch.write("b.yaml", format!("\"@type\": {CLUSTER}\nname: {ROUTE_NAME}\n"));
    scratch.write("c.yaml", format!("\"@type\": {CLUSTER}\nname: {name}%2\n"));
    let collection = "envoy.config.listener.v3.ListenerCollection";
    let entries = "[{inline_entry: {name: a}}, {inline_entry: {name: a}}]";
    scratch.write(
        "d.yaml",
        format!(
            "\"@type\": type.googleapis.com/envoy.service.discovery.v3.Resource\nname: xdstp://x/{collection}/all\n\
             resource:\n  \"@type\": type.googleapis.com/{collection}\n  entries: {entries}\n"
        ),
    );
    let found = errors(load(&mut Folder::new(&scratch.0), &Cache::new()));
    let expected = [
        format!(
            "a.yaml:2:1: cluster {name:?} gets endpoints by EDS, so with such a name it needs \
             eds_cluster_config.service_name"
        ),
        format!(
            "b.yaml:1:1: envoy.config.cluster.v3.Cluster {ROUTE_NAME:?}: the name is one of type \
             \"envoy.config.route.v3.RouteConfiguration\", not \"envoy.config.cluster.v3.Cluster\""
        ),
        format!(
            "c.yaml:1:1: envoy.config.cluster.v3.Cluster \"{name}%2\": column 44: \"%2\" is no escape; a percent \
             sign itself is written `%25`"
        ),
        format!("d.yaml:4:3: {collection} \"xdstp://x/{collection}/all\" has two entries named \"a\""),
    ];
    assert_eq!(found, expected);
}

#[test]
fn x14_a_wrapper_may_hold_a_locator_in_place_of_the_resource() {
    let scratch = Scratch::new("redirect");
    let redirect = |name: &str| {
        let locator = "type.googleapis.com/xds.core.v3.ResourceLocator";
        let target = "resource_type: envoy.config.route.v3.RouteConfiguration, authority: y, id: web/r";
        let wrapper = "type.googleapis.com/envoy.service.discovery.v3.Resource";
        format!("\"@type\": {wrapper}\nname: {name}\nresource: {{\"@type\": {locator}, {target}}}\n")
    };
    scratch.write("a.yaml", redirect(ROUTE_NAME));
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    load(&mut folder, &cache).unwrap();
    let contents = folder.contents(|_| {});
    let (_, found) = contents.get(ROUTE, &ROUTE_NAME.into()).unwrap().iter().next().unwrap();
    let payload = contents.payload_json(&found.resource).unwrap();
    assert_eq!((&payload["authority"], &payload["id"]), (&"y".into(), &"web/r".into()));
    assert_eq!(contents.warnings(), []);
    scratch.write("a.yaml", redirect("xdstp://x/acme.Nothing/web/r"));
    let found = errors(load(&mut folder, &cache));
    assert!(found[0].contains("unknown `@type` \"type.googleapis.com/acme.Nothing\""), "{found:?}");
}

#[test]
fn d25_a_virtual_host_is_named_by_its_wrapper() {
    let scratch = Scratch::new("virtual-host");
    let host = "type.googleapis.com/envoy.config.route.v3.VirtualHost";
    scratch.write(
        "a.yaml",
        format!(
            "\"@type\": type.googleapis.com/envoy.service.discovery.v3.Resource\nname: web/a\naliases: [web/a.example]\n\
             resource: {{\"@type\": {host}, name: a, domains: [a.example]}}\n"
        ),
    );
    let cache = Cache::new();
    load(&mut Folder::new(&scratch.0), &cache).unwrap();
    assert!(cache.snapshot().get(&host.into(), &"web/a".into()).is_some());
}
