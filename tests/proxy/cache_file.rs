//! The cache file on a bad disk. A set with a missing member must not count as complete, because
//! clients delete resources that a full state does not have.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use xds::client::last_good::{self, Contents};

use super::{Running, until};

/// The folder of one test, with a folder to serve in it.
struct Folder(PathBuf);

impl Folder {
    fn of_clusters(test: &str, count: usize, comment: &str) -> Self {
        let name = format!("cache-file-{test}-{}", std::process::id());
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("served")).unwrap();
        let mut clusters = String::new();
        for nth in 0..count {
            let kind = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
            writeln!(clusters, "---\n\"@type\": {kind}\nname: c{nth}\nalt_stat_name: x{comment}").unwrap();
        }
        fs::write(folder.join("served/clusters.yaml"), clusters).unwrap();
        Self(folder)
    }

    fn served(&self) -> String {
        self.0.join("served").to_str().unwrap().to_owned()
    }

    fn file(&self) -> PathBuf {
        self.0.join("cache")
    }

    fn contents(&self) -> Option<Contents> {
        last_good::read(File::open(self.file()).ok()?).ok()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

const WILDCARD: [&str; 3] = ["--sotw", "CDS", "*"];

/// Regression: after one flipped bit, the proxy served 22 of 23 clusters as the full state, and an
/// Envoy deleted the other one.
#[test]
fn s25_a_wildcard_whose_file_is_damaged_waits_for_the_upstream_and_names_do_not() {
    let folder = Folder::of_clusters("flipped", 23, "");
    let origin = Running::start(&["serve", &folder.served()]);
    let file = folder.file();
    let upstream = origin.address.clone();
    let file_name = file.to_str().unwrap();
    let arguments = ["proxy", "--upstream", &upstream, "--cache-file", file_name, "--miss-deadline", "1s"];
    let proxy = Running::start(&arguments);
    assert_eq!(proxy.get(&WILDCARD).1.len(), 23);
    until("the file proves the wildcard", || folder.contents().is_some_and(|found| found.sets.len() == 1));
    drop(proxy);
    let image = fs::read(&file).unwrap();

    let at = image.windows(3).position(|bytes| bytes == b"c17").unwrap();
    drop(origin);
    let whole = Running::start(&arguments);
    assert_eq!(whole.get(&WILDCARD).1.len(), 23, "a whole file is good to start with");
    drop(whole);

    let mut damaged = image;
    damaged[at] ^= 1;
    fs::write(&file, damaged).unwrap();
    let proxy = Running::start(&arguments);
    let (code, lines) = proxy.get(&WILDCARD);
    assert_eq!(code, Some(5), "part of a set is no set");
    assert!(!lines.iter().any(|line| line.to_string().contains("alt_stat_name")), "{lines:?}");
    for name in ["c0", "c16", "c18", "c22"] {
        assert_eq!(proxy.get(&["CDS", name]).0, Some(0), "{name}");
    }
    let (code, lines) = proxy.get(&["CDS", "c17", "--timeout", "8"]);
    let is_denied = lines.iter().any(|line| line.to_string().contains("NOT_FOUND"));
    assert_eq!((code, is_denied), (Some(1), false), "nobody says that there is none: {lines:?}");
    let origin = Running::start_on(&upstream, &["serve", &folder.served()]);
    until("all of it is there", || proxy.get(&WILDCARD).1.len() == 23);
    drop(origin);
}

/// Limits the files that `xds` may write to 64 KiB.
fn limited() -> Command {
    let mut bash = Command::new("bash");
    let xds = env!("CARGO_BIN_EXE_xds");
    bash.args(["-c", &format!("trap '' XFSZ; ulimit -f 64; exec '{xds}' \"$@\""), "xds"]);
    bash
}

/// Regression: the part of a wildcard that fitted into the file was served as the full state, to
/// the first client even while the upstream was available.
#[cfg(unix)]
#[test]
fn s25_a_file_on_a_full_disk_restores_no_wildcard_and_the_proxy_goes_on() {
    let folder = Folder::of_clusters("full", 203, &"x".repeat(400));
    let origin = Running::start(&["serve", &folder.served()]);
    let file = folder.file();
    let file = file.to_str().unwrap();
    let listen = "127.0.0.1:0";
    let upstream = origin.address.clone();
    let arguments = ["proxy", "--upstream", &upstream, "--cache-file", file, "--listen", listen];
    for life in 0..2 {
        let proxy = Running::start_by(limited(), &arguments);
        assert_eq!(proxy.get(&WILDCARD).1.len(), 203, "life {life}");
        until("the failure is seen", || proxy.status()["cache_file"]["behind"] == true);
        assert_eq!(proxy.get(&WILDCARD).1.len(), 203, "it goes on");
        assert_eq!(folder.contents().unwrap().sets, []);
    }
    drop(origin);
    let proxy = Running::start_by(limited(), &arguments);
    assert_eq!(proxy.get(&WILDCARD).0, Some(5), "part of a set is no set");
    drop(proxy);
}
