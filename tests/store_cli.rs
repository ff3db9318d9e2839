//! The commands of the durable store, against the binary that serves it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(all(feature = "cli", unix))]

use std::fs;
use std::io::Write as _;
use std::ops::Deref;
use std::process::{Output, Stdio};

use serde_json::Value;

use running::{Running, SOON, Scratch, http, xds};

#[path = "store_cli/changes.rs"]
mod changes;
#[path = "store_cli/connecting.rs"]
mod connecting;
#[path = "store_cli/history.rs"]
mod history;
#[path = "store_cli/migrating.rs"]
mod migrating;
#[path = "store_cli/mirror.rs"]
mod mirror;
#[path = "store_cli/nacks.rs"]
mod nacks;
#[path = "store_cli/names.rs"]
mod names;
#[path = "store_cli/reading.rs"]
mod reading;
#[path = "store_cli/references.rs"]
mod references;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "binary/running.rs"]
mod running;
#[path = "store_cli/startup.rs"]
mod startup;
#[path = "store_cli/unread.rs"]
mod unread;
#[path = "store_cli/writers.rs"]
mod writers;

/// A folder of one test with a store in `data`. Commands run in that folder.
struct Stored(Scratch);

/// A store that is served.
struct Served {
    stored: Stored,
    server: Running,
}

impl Stored {
    /// A store without a server.
    fn unserved(test: &str) -> Self {
        let stored = Self(Scratch::new(&format!("store-cli-{test}")));
        stored.ok("store init data");
        stored
    }

    fn served(test: &str) -> Served {
        Self::served_with(test, &[])
    }

    /// Served with further options.
    fn served_with(test: &str, options: &[&str]) -> Served {
        let stored = Self::unserved(test);
        let data = stored.path("data");
        let server = Running::start(&[&["serve", "--store", &data], options].concat());
        Served { stored, server }
    }

    fn path(&self, name: &str) -> String {
        self.0.path(name).display().to_string()
    }

    fn write(&self, file: &str, text: impl AsRef<[u8]>) {
        let path = self.0.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Runs a command, whose words are separated by spaces.
    fn run(&self, command: &str) -> Output {
        self.run_with(command, "")
    }

    fn run_with(&self, command: &str, input: &str) -> Output {
        let mut xds = xds();
        xds.current_dir(&self.0.0).args(command.split(' '));
        xds.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = xds.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// The output of a command that succeeds.
    #[track_caller]
    fn ok(&self, command: &str) -> String {
        let output = self.run(command);
        assert!(output.status.success(), "{command}: {}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The exit code and the errors of a command that fails.
    #[track_caller]
    fn fails(&self, command: &str) -> (i32, String) {
        let output = self.run(command);
        assert!(!output.status.success(), "{command} succeeded");
        (output.status.code().unwrap(), stderr(&output))
    }

    /// The objects that a command prints, one or several.
    #[track_caller]
    fn json(&self, command: &str) -> Vec<Value> {
        let output = self.ok(&format!("{command} --format json"));
        let objects = serde_json::Deserializer::from_str(&output).into_iter();
        objects.collect::<Result<_, _>>().unwrap()
    }

    /// The revision of a record.
    fn revision(&self, of: &str) -> String {
        let record = &self.json(&format!("list {of} --store data"))[0];
        record["revision"].as_str().unwrap().to_owned()
    }
}

impl Served {
    fn restart(&mut self) {
        self.stop();
        self.start();
    }

    fn stop(&mut self) {
        self.server.terminate();
        assert!(self.server.ends_within(SOON).unwrap().success());
    }

    fn start(&mut self) {
        self.server = Running::start(&["serve", "--store", &self.path("data")]);
    }
}

impl Deref for Served {
    type Target = Stored;

    fn deref(&self) -> &Stored {
        &self.stored
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A cluster whose content is a number of seconds.
fn cluster(name: &str, seconds: u32) -> String {
    format!("\"@type\": {CLUSTER}\nname: {name}\nconnect_timeout: {seconds}s\n")
}

/// The same as one variant.
fn variant(name: &str, when: &str, seconds: u32) -> String {
    format!("\"@type\": {CLUSTER}\nwhen: {when}\nname: {name}\nconnect_timeout: {seconds}s\n")
}

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

#[test]
fn a_store_that_nobody_serves_is_an_error_with_the_command_that_serves_it() {
    let stored = Stored::unserved("unserved");
    let expected = "error: no server answers for the store data: start `xds serve --store data`, with an admin \
                    port. If it runs, restart it, or give --server and --token-file\n";
    assert_eq!(stored.fails("list --store data"), (1, expected.to_owned()));
    // A server that was killed leaves its file.
    stored
        .write("data/server.json", r#"{ "address": "127.0.0.1:1", "token": "0123456789abcdef", "pid": 1 }"#);
    assert_eq!(stored.fails("list --store data"), (1, expected.to_owned()));
    assert_eq!(stored.fails("list").0, 2);
}

#[test]
fn a_token_is_not_sent_to_another_machine_without_tls() {
    let stored = Stored::unserved("token");
    stored.write("token", "ci 0123456789abcdef\n");
    let (code, error) = stored.fails("list --server 192.0.2.1:1 --token-file token");
    assert_eq!((code, error.contains("without TLS")), (2, true), "{error}");
    stored.write("two", "ci 0123456789abcdef\nother 0123456789abcdef\n");
    let (code, error) = stored.fails("list --server 127.0.0.1:1 --token-file two");
    assert_eq!((code, error), (2, "error: two must have one line, `TOKEN` or `NAME TOKEN`\n".to_owned()));
}

#[test]
fn st50_a_caller_without_an_identity_is_refused() {
    let stored = Stored::served("identity");
    let (code, error) = stored.fails(&format!("list --server {}", stored.server.admin));
    assert_eq!((code, error.contains("UNAUTHENTICATED")), (1, true), "{error}");
}

#[test]
fn st56_the_admin_port_takes_grpc_and_of_all_else_only_reads() {
    let stored = Stored::served("grpc");
    stored.ok("list --store data");
    let admin = &stored.server.admin;
    let answer =
        |head: &str| http(admin, &format!("{head}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"));
    let local = format!("host: {admin}");
    assert!(answer(&format!("GET /api/ HTTP/1.1\r\n{local}")).starts_with("HTTP/1.1 200 "));
    let post = "POST /xds.store.v1.Store/List HTTP/1.1";
    assert!(answer(&format!("{post}\r\n{local}")).starts_with("HTTP/1.1 405 "));
    // A page of another site could make its browser send this.
    let grpc = format!("{post}\r\n{local}\r\ncontent-type: application/grpc");
    assert!(answer(&grpc).starts_with("HTTP/1.1 505 "));
}
