//! The server, its folder, and the thread that changes the folder.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A folder of clusters, each in a file of its own.
#[derive(Debug)]
pub(super) struct Files {
    above: PathBuf,
    /// How often each cluster was changed; `None` if it was removed.
    contents: Vec<Option<usize>>,
}

impl Files {
    pub(super) fn new(test: &str, clusters: usize) -> Self {
        let name = format!("restart-{}-{test}", std::process::id());
        let above = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(above.join("config")).unwrap();
        let mut files = Self { above, contents: vec![Some(0); clusters] };
        (0..clusters).for_each(|cluster| files.change(cluster));
        files
    }

    fn folder(&self) -> PathBuf {
        self.above.join("config")
    }

    /// The place of a durable store, which does not exist yet.
    fn store(&self) -> PathBuf {
        self.above.join("store")
    }

    /// Changes the content of a cluster, by a rename.
    pub(super) fn change(&mut self, cluster: usize) {
        let content = self.contents[cluster].unwrap() + 1;
        self.contents[cluster] = Some(content);
        let name = name(cluster);
        let beside = self.above.join("written");
        let text = format!(
            "\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: {name}\nalt_stat_name: \"{content}\"\n"
        );
        fs::write(&beside, text).unwrap();
        fs::rename(beside, self.folder().join(format!("{name}.yaml"))).unwrap();
    }

    /// Removes a cluster, and returns its name.
    pub(super) fn remove(&mut self, cluster: usize) -> String {
        self.contents[cluster] = None;
        fs::remove_file(self.folder().join(format!("{}.yaml", name(cluster)))).unwrap();
        name(cluster)
    }

    /// The resources of an up-to-date client.
    pub(super) fn newest(&self) -> BTreeMap<String, String> {
        let contents = self.contents.iter().enumerate();
        contents.filter_map(|(cluster, content)| Some((name(cluster), (*content)?.to_string()))).collect()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.above);
    }
}

fn name(cluster: usize) -> String {
    format!("c{cluster:02}")
}

/// Changes one file after the other until it is stopped, whether or not the server runs.
pub(super) struct Writer {
    stop: Sender<()>,
    writing: JoinHandle<Files>,
}

impl Writer {
    pub(super) fn start(mut files: Files) -> Self {
        let (stop, stopped) = mpsc::channel();
        let writing = thread::spawn(move || {
            let all = files.contents.len();
            // Each file once in `all` steps, without neighbours one after the other.
            for cluster in (0..).map(|step| step * 7 % all) {
                files.change(cluster);
                // The pace of changes; no other code waits for this sleep.
                if stopped.recv_timeout(PACE) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            files
        });
        Self { stop, writing }
    }

    pub(super) fn stop(self) -> Files {
        self.stop.send(()).unwrap();
        self.writing.join().unwrap()
    }
}

/// The time between two changes.
const PACE: Duration = Duration::from_millis(5);

/// `xds serve`, always on the first port that the system chose.
pub(super) struct Origin {
    pub(super) address: String,
    /// The options and the folder.
    arguments: Vec<PathBuf>,
    running: Option<Child>,
}

impl Origin {
    pub(super) fn new(files: &Files) -> Self {
        Self::with(vec![files.folder()])
    }

    /// The same with a durable store, to which it applies the folder.
    pub(super) fn with_store(files: &Files) -> Self {
        let init =
            Command::new(env!("CARGO_BIN_EXE_xds")).args(["store", "init"]).arg(files.store()).output();
        assert!(init.unwrap().status.success());
        Self::with(vec!["--store".into(), files.store(), files.folder()])
    }

    fn with(arguments: Vec<PathBuf>) -> Self {
        let mut origin = Self { address: "127.0.0.1:0".into(), arguments, running: None };
        origin.start();
        origin
    }

    pub(super) fn start(&mut self) {
        let mut xds = Command::new(env!("CARGO_BIN_EXE_xds"));
        xds.arg("serve").args(&self.arguments).args(["--listen", &self.address]).env_remove("RUST_LOG");
        let mut running = xds.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(running.stdout.take().unwrap()).lines().map(Result::unwrap);
        let address = lines.into_iter().find_map(|line| Some(line.strip_prefix("listening on ")?.to_owned()));
        self.address = address.expect("the server starts");
        self.running = Some(running);
    }

    /// Kills the server with SIGKILL, so that it cannot clean up.
    pub(super) fn kill(&mut self) {
        let mut running = self.running.take().expect("it runs");
        running.kill().unwrap();
        running.wait().unwrap();
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        if self.running.is_some() {
            self.kill();
        }
    }
}
