//! Runs the steps of a page in a new folder.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use super::page::{Step, What, shows};
use super::port::free_port;

/// A page that is being tested.
pub(super) struct Trial {
    /// Where its commands run.
    pub(super) folder: PathBuf,
    free_ports: Option<FreePorts>,
    jobs: Vec<Job>,
}

/// For each port of the page a free one.
pub(super) type FreePorts = BTreeMap<String, String>;

/// A background command, with the lines of both its outputs.
struct Job {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Trial {
    /// Makes a new folder with the examples of this repository. Without `free_ports` the commands
    /// use the ports of the page.
    pub(super) fn new(page: &str, free_ports: Option<FreePorts>) -> Self {
        let name = format!("docs-{}-{}", std::process::id(), page.replace('/', "-"));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        copy(Path::new("examples"), &folder.join("examples"));
        Self { folder, free_ports, jobs: Vec::new() }
    }

    /// # Errors
    /// The step failed; the error has the expected and the actual output.
    pub(super) fn take(&mut self, step: &Step) -> Result<(), String> {
        match &step.what {
            What::File { name, text } => {
                self.write(name, text);
                Ok(())
            }
            // Envoy applies what it is sent some time after it is ready.
            What::Run { command, expected } if step.needs_envoy => {
                let deadline = Instant::now() + LONG;
                loop {
                    match self.run(command, expected) {
                        Err(_) if Instant::now() < deadline => thread::sleep(PAUSE),
                        result => return result,
                    }
                }
            }
            What::Run { command, expected } => self.run(command, expected),
            What::Start { command, expected } => self.start(command, expected),
            What::Until { job, text } => {
                let text = self.with_ports(text);
                self.job(*job)?.until(|line, _| line.contains(&text))
            }
            What::Rust => Ok(()),
        }
    }

    /// Replaces the file at once, as an editor does.
    fn write(&mut self, name: &str, text: &str) {
        let (path, beside) = (self.folder.join(name), self.folder.join(".written"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&beside, self.with_ports(text)).unwrap();
        fs::rename(beside, path).unwrap();
    }

    fn run(&mut self, command: &str, expected: &[String]) -> Result<(), String> {
        if let Some(killed) = command.strip_prefix("kill ").and_then(|rest| rest.rsplit_once('%')) {
            return self.kill(killed.0.trim(), killed.1.parse().map_err(|_| "kill SIGNAL %NUMBER")?);
        }
        let output = self.shell(&format!("{{ {command}\n}} 2>&1")).output().unwrap();
        let printed = lines(&output.stdout);
        let expected: Vec<_> = expected.iter().map(|line| self.with_ports(line)).collect();
        if !output.status.success() {
            Err(format!("`{command}` ends with {}:\n{}", output.status, printed.join("\n")))
        } else if !expected.is_empty() && !shows(&expected, &printed) {
            let (expected, printed) = (expected.join("\n"), printed.join("\n"));
            Err(format!("`{command}` prints\n{printed}\n-- where the page has\n{expected}"))
        } else {
            Ok(())
        }
    }

    /// Waits until the command has printed the output of the page, or a line of [`READY`].
    fn start(&mut self, command: &str, expected: &[String]) -> Result<(), String> {
        // The default port is replaced, too.
        let is_default = self.free_ports.is_some()
            && !["--listen", "--config"].iter().any(|option| command.contains(option));
        let listen = |part: &str| format!("{part}--listen 127.0.0.1:18000 ");
        let command = ["xds serve ", "xds proxy ", "-- serve ", "-- proxy "].iter().fold(
            command.to_owned(),
            |command, part| {
                if is_default { command.replace(part, &listen(part)) } else { command }
            },
        );
        let mut shell = self.shell(&command);
        // Use a process group, because `bash` may have children.
        let mut child = shell.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let outputs: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for output in outputs {
            let sender = sender.clone();
            thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    _ = sender.send(line);
                }
            });
        }
        let expected: Vec<_> = expected.iter().map(|line| self.with_ports(line)).collect();
        self.jobs.push(Job { child, lines, seen: Vec::new() });
        let number = self.jobs.len();
        let is_ready = |line: &str, seen: &[String]| match expected.is_empty() {
            true => READY.iter().any(|ready| line.contains(ready)),
            false => shows(&expected, seen),
        };
        self.job(number)?.until(is_ready).map_err(|error| format!("`{command}`: {error}"))
    }

    /// Stops the command and waits for its end.
    fn kill(&mut self, signal: &str, job: usize) -> Result<(), String> {
        self.job(job)?.signal(signal);
        self.job(job)?.child.wait().unwrap();
        Ok(())
    }

    fn job(&mut self, number: usize) -> Result<&mut Job, String> {
        self.jobs.get_mut(number - 1).ok_or_else(|| format!("there is no background command %{number}"))
    }

    /// A shell with `xds` on the path, also for a page that builds it with cargo.
    fn shell(&mut self, command: &str) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_xds")).parent().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("bash");
        shell.arg("-c").arg(self.with_ports(command).replace("cargo run --release -- ", "xds "));
        shell.env("PATH", format!("{}:{path}", program.display())).env_remove("RUST_LOG");
        shell.env("PYTHONUNBUFFERED", "1");
        shell.current_dir(&self.folder).stdin(Stdio::null());
        shell
    }

    /// Replaces each port on the loopback address by a free one, unless the page keeps its ports.
    fn with_ports(&mut self, text: &str) -> String {
        let Some(ports) = &mut self.free_ports else { return text.to_owned() };
        let mut parts = text.split("127.0.0.1:");
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            let (port, rest) = part.split_at(digits);
            let port = match port.len() {
                5.. => ports.entry(port.to_owned()).or_insert_with(|| free_port().to_string()).clone(),
                _ => port.to_owned(),
            };
            text.push_str(&format!("127.0.0.1:{port}{rest}"));
        }
        text
    }
}

impl Job {
    fn signal(&self, signal: &str) {
        let group = format!("-{}", self.child.id());
        _ = Command::new("kill").args([signal, "--", &group]).stderr(Stdio::null()).status();
    }

    fn until(&mut self, is_it: impl Fn(&str, &[String]) -> bool) -> Result<(), String> {
        let deadline = Instant::now() + LONG;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                return Err(format!("what the page waits for is not in\n{}", self.seen.join("\n")));
            };
            self.seen.push(line);
            if is_it(self.seen.last().unwrap(), &self.seen) {
                self.seen.clear();
                return Ok(());
            }
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        for job in &mut self.jobs {
            job.signal("-KILL");
            _ = job.child.wait();
        }
        _ = fs::remove_dir_all(&self.folder);
    }
}

fn lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(bytes).lines().map(String::from).collect()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match from.is_dir() {
            true => copy(&from, &to),
            false => _ = fs::copy(from, to).unwrap(),
        }
    }
}

/// What the servers of the pages print when they accept connections: `xds`, Envoy, and the HTTP
/// server of Python.
const READY: [&str; 3] = ["listening on ", "starting workers", "Serving HTTP on"];
/// How long to wait before a command for an Envoy is run again.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a background command may take to print the expected lines.
const LONG: Duration = Duration::from_secs(20);
