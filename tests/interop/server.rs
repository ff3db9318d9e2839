//! The `xds` binary under test.

use std::path::Path;
use std::process::{Command as Kill, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::time;

use crate::wait::{SOON, until};

/// A running `xds serve` or `xds proxy`; it is killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    arguments: Vec<String>,
    pub(crate) port: u16,
    child: Child,
    log: Log,
}

type Log = Arc<Mutex<Vec<String>>>;

impl Server {
    /// Serves `folder` on a port that the system picks.
    pub(crate) async fn start(folder: &Path) -> Self {
        Self::start_with(folder, &[]).await
    }

    /// The same with further options.
    pub(crate) async fn start_with(folder: &Path, options: &[&str]) -> Self {
        let mut arguments = vec!["serve".to_owned(), folder.to_str().expect("a text").to_owned()];
        arguments.extend(options.iter().map(|option| (*option).to_owned()));
        Self::start_on(arguments, 0).await
    }

    /// A server of a store alone, with these options.
    pub(crate) async fn of_store(options: &[&str]) -> Self {
        let arguments = ["serve"].iter().chain(options).map(|option| (*option).to_owned());
        Self::start_on(arguments.collect(), 0).await
    }

    /// A proxy in front of this port, with further options.
    pub(crate) async fn proxy(upstream: u16, options: &[&str]) -> Self {
        let address = format!("127.0.0.1:{upstream}");
        let mut arguments = vec!["proxy".to_owned(), "--upstream".to_owned(), address];
        arguments.extend(options.iter().map(|option| (*option).to_owned()));
        Self::start_on(arguments, 0).await
    }

    async fn start_on(arguments: Vec<String>, port: u16) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_xds"))
            .args(&arguments)
            .args(["--listen", &format!("127.0.0.1:{port}")])
            .env("NO_COLOR", "1")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("cargo built the binary");
        let log = Log::default();
        tokio::spawn(collect(child.stdout.take().expect("piped"), Arc::clone(&log)));
        tokio::spawn(collect(child.stderr.take().expect("piped"), Arc::clone(&log)));
        let mut server = Self { arguments, port: 0, child, log };
        server.port = server.ready().await;
        server
    }

    /// The port in the line `listening on`.
    async fn ready(&self) -> u16 {
        let what = "the server says where it listens";
        let port = async || {
            let log = self.log();
            let (_, address) = log.iter().find_map(|line| line.split_once("listening on 127.0.0.1:"))?;
            address.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        until(what, SOON, port).await.0
    }

    /// The port of its admin page, which its options open. Its line comes after the one of `ready`.
    pub(crate) async fn admin_port(&self) -> u16 {
        let port = async || {
            let log = self.log();
            let (_, address) =
                log.iter().find_map(|line| line.split_once("admin page on http://127.0.0.1:"))?;
            address.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        until("the server says where its admin page is", SOON, port).await.0
    }

    /// All lines of its output so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().expect("no holder panics").clone()
    }

    /// The lines that contain `text`.
    pub(crate) fn lines_with(&self, text: &str) -> Vec<String> {
        self.log().into_iter().filter(|line| line.contains(text)).collect()
    }

    /// Kills it without warning (SIGKILL).
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.expect("it was running");
    }

    /// Starts it again with the same arguments and port.
    pub(crate) async fn restart(&mut self) {
        *self = Self::start_on(self.arguments.clone(), self.port).await;
    }

    /// Starts it again on the same port without an option and its value.
    pub(crate) async fn restart_without(&mut self, option: &str, value: &str) {
        let at = self.arguments.windows(2).position(|two| two == [option, value]);
        let at = at.expect("it has the option");
        self.arguments.drain(at..at + 2);
        self.restart().await;
    }

    /// Starts it again on the same port with one more option.
    pub(crate) async fn restart_with(&mut self, option: &str, value: &str) {
        self.arguments.extend([option.to_owned(), value.to_owned()]);
        self.restart().await;
    }

    /// Stops it with SIGTERM, and waits for its end.
    pub(crate) async fn terminate(&mut self) -> ExitStatus {
        let id = self.child.id().expect("it is running");
        let kill = Kill::new("sh").args(["-c", &format!("kill -TERM {id}")]).status().expect("a shell");
        assert!(kill.success(), "SIGTERM was delivered");
        time::timeout(SOON, self.child.wait()).await.expect("it drains in time").expect("it was running")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- what our server logged:\n{}", self.log().join("\n"));
        }
    }
}

async fn collect(from: impl AsyncRead + Unpin, into: Log) {
    let mut lines = BufReader::new(from).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        into.lock().expect("no holder panics").push(line);
    }
}
