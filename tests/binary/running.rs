//! The binary as a process, with its output, its log and its admin port.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// `xds serve` or `xds proxy` on ports that the system picks; killed when dropped.
pub(crate) struct Running {
    pub(crate) address: String,
    pub(crate) admin: String,
    pub(crate) child: Child,
    log: Receiver<String>,
}

impl Running {
    /// Waits until it listens.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_on("127.0.0.1:0", arguments)
    }

    /// The same on the address of a server that has ended.
    pub(crate) fn start_on(address: &str, arguments: &[&str]) -> Self {
        Self::start_with(&[arguments, &["--listen", address, "--admin", "127.0.0.1:0"]].concat())
    }

    /// The same with these addresses of `--listen` and `--admin`.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        Self::start_command(xds(), arguments)
    }

    /// The same with a command that runs the binary.
    pub(crate) fn start_command(mut command: Command, arguments: &[&str]) -> Self {
        command.args(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let log = lines(child.stderr.take().unwrap());
        let output = lines(child.stdout.take().unwrap());
        let (mut address, mut admin) = (None, None);
        while address.is_none() || admin.is_none() {
            let line = output.recv_timeout(SOON).unwrap_or_else(|error| {
                panic!("{error}: it does not listen; {:?}", log.try_iter().collect::<Vec<_>>())
            });
            let last = line.rsplit_once(' ').map(|(_, last)| last.to_owned());
            if line.starts_with("listening on ") {
                address = last;
            } else if let Some((_, url)) = line.split_once("://") {
                admin = Some(url.trim_end_matches('/').to_owned());
            }
        }
        thread::spawn(move || output.iter().for_each(drop));
        Self { address: address.unwrap(), admin: admin.unwrap(), child, log }
    }

    /// The next line of the log that contains the text; skips lines before it.
    pub(crate) fn logs(&self, text: &str) -> String {
        let start = Instant::now();
        loop {
            let left = SOON.saturating_sub(start.elapsed());
            match self.log.recv_timeout(left) {
                Ok(line) if line.contains(text) => return line,
                Ok(_) => {}
                Err(_) => panic!("waited in vain for a line of the log with {text:?}"),
            }
        }
    }

    /// The output of `xds get`, and the exit code.
    pub(crate) fn get(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = xds();
        command.args(["get", "--server", &self.address]).args(arguments);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    }

    /// The output of `xds get` once all resources exist.
    pub(crate) fn until_served(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let start = Instant::now();
        loop {
            let got = self.get(arguments);
            if got.0 == Some(0) || start.elapsed() > SOON {
                return got;
            }
        }
    }

    /// The value of a metric, which may have labels.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let text = http(
            &self.admin,
            &format!("GET /metrics HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.admin),
        );
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    }

    /// Waits until a metric has the value.
    pub(crate) fn until_metric(&self, name: &str, value: f64) {
        let start = Instant::now();
        while self.metric(name) != Some(value) {
            assert!(
                start.elapsed() < SOON,
                "waited in vain for {name} {value}; it is {:?}",
                self.metric(name)
            );
            thread::sleep(AGAIN);
        }
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        self.signal("-TERM");
    }

    /// Sends a signal, such as `-STOP`.
    pub(crate) fn signal(&self, signal: &str) {
        let killed = Command::new("kill").arg(signal).arg(self.child.id().to_string()).status().unwrap();
        assert!(killed.success());
    }

    /// Waits until the process ends; `None` after the timeout.
    pub(crate) fn ends_within(&mut self, limit: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            match self.child.try_wait().unwrap() {
                None if start.elapsed() < limit => thread::sleep(AGAIN),
                ended => return ended,
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// The answer to a request of HTTP/1.1, with its head.
pub(crate) fn http(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

pub(crate) fn xds() -> Command {
    let mut xds = Command::new(env!("CARGO_BIN_EXE_xds"));
    for variable in ["RUST_LOG", "GRPC_XDS_BOOTSTRAP", "GRPC_XDS_BOOTSTRAP_CONFIG"] {
        xds.env_remove(variable);
    }
    xds
}

fn lines(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        // Read everything, or the process would stop when the pipe is full.
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            _ = sender.send(line);
        }
    });
    lines
}

/// A directory of one test, removed at its end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(test: &str) -> Self {
        let name = format!("binary-{}-{test}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    pub(crate) fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Replaces a file by a rename, so that nobody reads a part of it.
    pub(crate) fn write(&self, file: &str, content: impl AsRef<[u8]>) {
        let written = self.path(".written");
        fs::write(&written, content).unwrap();
        fs::rename(written, self.path(file)).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// Longer than any step takes on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// The pause between two polls of a condition.
const AGAIN: Duration = Duration::from_millis(20);
