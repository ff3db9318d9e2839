//! Changes of a watched folder.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xds::Cache;
use xds::folder::Folder;

use super::{Scratch, cluster, count, has, load, payload, revision};

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
        // When the watch starts to listen, it first compares all files. So wait for a change that
        // was made before.
        scratch.write("started.yaml", cluster("started", "yes"));
        watched.until(|cache| has(cache, "started", "yes")).await;
        watched
    }

    /// Waits until the condition holds; returns how long that took.
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

/// A program that writes a file for seconds, such as `generate > a.yaml`, truncates it first. The
/// resources that it did not write yet must stay.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_file_that_is_written_slowly_keeps_its_last_content_until_it_is_closed() {
    let scratch = Scratch::new("slowly");
    let (first, second) = (cluster("first", "old"), cluster("second", "old"));
    scratch.write("a.yaml", format!("{first}---\n{second}"));
    let watched = Watched::start(&scratch).await;
    let mut file = fs::File::create(scratch.path("a.yaml")).unwrap();
    file.write_all(cluster("first", "new").as_bytes()).unwrap();
    for number in 0..3 {
        // Each of these is a reload while the file is half-written.
        scratch.write("b.yaml", cluster("b", &format!("number{number}")));
        watched.until(|cache| has(cache, "b", &format!("number{number}"))).await;
        assert!(has(&watched.cache, "first", "old") && has(&watched.cache, "second", "old"));
    }
    // second moves to another file, and is not gone in between.
    scratch.write("c.yaml", cluster("second", "new"));
    scratch.write("b.yaml", cluster("b", "last"));
    watched.until(|cache| has(cache, "b", "last")).await;
    assert!(has(&watched.cache, "second", "old"));
    drop(file);
    watched.until(|cache| has(cache, "first", "new") && has(cache, "second", "new")).await;
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
    // The rename brings in both as one change.
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
