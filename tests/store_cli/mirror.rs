//! `xds store mirror`.

use std::io::{self, BufRead as _, BufReader, Lines, Read as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, ChildStdout};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use super::connecting::{Ca, served_with_policy};
use super::*;

/// A mirror that runs; killed when dropped.
struct Mirroring {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Mirroring {
    /// Waits until both are in sync.
    fn start(from: &Stored, to: &Stored) -> Self {
        let mut mirroring = Self::begin(from, to);
        mirroring.until_in_sync();
        mirroring
    }

    fn begin(from: &Stored, to: &Stored) -> Self {
        Self::run(from, &[&to.path("data")])
    }

    fn run(from: &Stored, arguments: &[&str]) -> Self {
        let mut mirror = xds();
        mirror.current_dir(&from.0.0).args(["store", "mirror", "data"]).args(arguments);
        let mut child = mirror.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, output }
    }

    fn until_in_sync(&mut self) {
        assert!(self.output.next().unwrap().unwrap().starts_with("in sync at s"));
    }
}

impl Drop for Mirroring {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// An address that leads to a server. Each connection in turn is for a text, and ends when a client
/// sends it.
struct Cut {
    address: String,
    texts: Sender<&'static str>,
}

impl Cut {
    fn before(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (texts, receiver) = mpsc::channel::<&str>();
        let server = server.to_owned();
        thread::spawn(move || {
            for text in receiver {
                let (mut client, _) = listener.accept().unwrap();
                let mut upstream = TcpStream::connect(&server).unwrap();
                let (mut back, mut answers) = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
                thread::spawn(move || io::copy(&mut answers, &mut back));
                let mut buffer = vec![0; 1 << 16];
                while let Ok(length @ 1..) = client.read(&mut buffer) {
                    let sent = &buffer[..length];
                    if sent.windows(text.len()).any(|part| part == text.as_bytes()) {
                        break;
                    }
                    upstream.write_all(sent).unwrap();
                }
                _ = upstream.shutdown(Shutdown::Both);
                _ = client.shutdown(Shutdown::Both);
            }
        });
        Self { address, texts }
    }
}

/// The records of a store, with what a mirror copies.
fn records(stored: &Stored) -> Vec<String> {
    let record = |record: Value| {
        let of = |field: &str| record[field].to_string();
        [of("name"), of("when"), of("version"), of("owners"), of("lease")].join(" ")
    };
    stored.json("list --store data").into_iter().map(record).collect()
}

/// Waits until both have the same records.
#[track_caller]
fn until_equal(from: &Stored, to: &Stored) {
    let start = Instant::now();
    while records(from) != records(to) {
        assert!(start.elapsed() < SOON, "{:?} and {:?}", records(from), records(to));
    }
}

/// Waits until a store has no records.
#[track_caller]
fn until_gone(stored: &Stored) {
    let start = Instant::now();
    while !records(stored).is_empty() {
        assert!(start.elapsed() < SOON);
    }
}

/// The commits of a store, the newest first: `OUTCOME NAME[WHEN]` of each change.
fn commits(stored: &Stored) -> Vec<Vec<String>> {
    let changes = |commit: Value| {
        let text = |change: &Value| {
            let of = |field: &str| change[field].as_str().unwrap().to_owned();
            format!("{} {}[{}]", of("outcome"), of("name"), of("when"))
        };
        commit["changes"].as_array().unwrap().iter().map(text).collect()
    };
    stored.json("history --store data --limit 1000").into_iter().map(changes).collect()
}

fn mirror_once(from: &Stored, to: &Stored) -> String {
    from.ok(&format!("store mirror data {} --once", to.path("data")))
}

#[test]
fn st62_a_mirror_has_the_same_resources_and_no_others() {
    let (from, to) = (Stored::served("mirror-from"), Stored::served("mirror-to"));
    from.write("a.yaml", [cluster("a", 1), variant("b", "env=x", 1)].join("---\n"));
    from.ok("put a.yaml --store data --owner shop");
    from.write("c.yaml", cluster("c", 1));
    from.ok("put c.yaml --store data");
    to.write("old.yaml", cluster("old", 1));
    to.ok("put old.yaml --store data");
    let mirrored = mirror_once(&from, &to);
    assert!(mirrored.starts_with("in sync at s") && mirrored.ends_with(": 3 records copied\n"), "{mirrored}");
    assert_eq!(records(&from), records(&to));
    // All of it is one commit; the next one adds the owner, which clients do not see.
    let expected = [
        vec!["updated a[]", "updated b[env=x]"],
        vec!["created a[]", "created b[env=x]", "created c[]", "deleted old[]"],
    ];
    assert_eq!(commits(&to)[..2], expected);
    let (code, error) = from.fails("store mirror data dta --once");
    assert_eq!((code, error), (2, "error: dta is neither a folder nor HOST:PORT\n".to_owned()));
    let (code, error) = from.fails("store mirror data data --once");
    assert_eq!((code, error), (2, "error: FROM and TO are one store\n".to_owned()));
}

#[test]
#[cfg(unix)]
fn st62_st53_a_mirror_deletes_nothing_that_its_token_may_not_read() {
    let (from, to) = (Stored::unserved("mirror-rights"), Stored::served("mirror-rights-to"));
    Ca::new(&from).sign("server", rcgen::SanType::DnsName("xds.example".try_into().unwrap()));
    let tokens = from.path("tokens");
    from.write("tokens", "half 0123456789abcdef\n");
    fs::set_permissions(&tokens, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let policy = "rules:\n- client: token:half\n  read: [{ types: [CDS], names: [a] }]\n";
    let from = served_with_policy(from, policy, &["--token-file", &tokens]);
    from.write("ab.yaml", [cluster("a", 1), cluster("b", 1)].join("---\n"));
    from.ok("put ab.yaml --store data");
    let local: Value = serde_json::from_slice(&fs::read(from.path("data/server.json")).unwrap()).unwrap();
    let limited = format!(
        "store mirror {} {} --from-token-file tokens --once",
        local["address"].as_str().unwrap(),
        to.path("data")
    );
    // Where nothing would be deleted, a part can be copied.
    assert!(from.ok(&limited).ends_with(": 1 record copied\n"));
    mirror_once(&from, &to);
    let (code, error) = from.fails(&limited);
    let expected = "error: the client may not read all resources of FROM, and TO has 1 that FROM does not show\n  \
                    hint: give the client the right to read them, or delete them in TO\n";
    assert_eq!((code, &*error), (4, expected));
    assert_eq!(records(&from), records(&to));
}

#[test]
fn st62_what_one_commit_changed_is_one_commit_of_the_mirror() {
    let (from, to) = (Stored::served("mirror-whole-from"), Stored::served("mirror-whole-to"));
    from.write("config/a.yaml", [cluster("old", 1), variant("v", "env=x", 1)].join("---\n"));
    from.ok("apply config --store data --owner shop --prune");
    let _mirroring = Mirroring::start(&from, &to);
    from.write("config/a.yaml", [cluster("new", 1), variant("v", "env in (x,y)", 1)].join("---\n"));
    from.ok("apply config --store data --owner shop --prune");
    until_equal(&from, &to);
    let commits = commits(&to);
    let whole = vec!["created new[]", "deleted old[]", "created v[env in (x,y)]", "deleted v[env=x]"];
    assert!(commits.iter().any(|commit| *commit == whole), "{commits:?}");
    // A record that is created again has no owner of its predecessor.
    from.ok("delete CDS new --store data --take-over");
    from.write("new.yaml", cluster("new", 1));
    from.ok("put new.yaml --store data");
    until_equal(&from, &to);
}

#[test]
fn st62_a_variant_that_only_the_copy_has_does_not_stop_a_mirror() {
    let (from, to) = (Stored::served("mirror-extra-from"), Stored::served("mirror-extra-to"));
    from.write("a.yaml", variant("a", "env=prod", 1));
    from.ok("put a.yaml --store data");
    // Both match env=prod,zone=z.
    to.write("a.yaml", variant("a", "zone=z", 1));
    to.ok("put a.yaml --store data");
    mirror_once(&from, &to);
    assert_eq!(records(&from), records(&to));
    assert_eq!(commits(&to)[0], ["created a[env=prod]", "deleted a[zone=z]"]);
}

#[test]
fn st62_a_mirror_that_starts_again_changes_only_what_differs() {
    let (from, to) = (Stored::served("mirror-again-from"), Stored::served("mirror-again-to"));
    from.write("both.yaml", cluster("both", 1));
    for owner in ["desk", "shop"] {
        from.ok(&format!("put both.yaml --store data --owner {owner}"));
    }
    from.write("one.yaml", cluster("one", 1));
    from.ok("put one.yaml --store data --owner shop");
    mirror_once(&from, &to);
    let before = commits(&to);
    let again = mirror_once(&from, &to);
    assert!(again.ends_with(": 0 records copied\n"), "{again}");
    assert_eq!(commits(&to), before);
    // As if it had been killed before it wrote the owners.
    to.ok("delete CDS both --store data --owner desk");
    to.write("one.yaml", cluster("one", 1));
    to.ok("put one.yaml --store data --owner other");
    let again = mirror_once(&from, &to);
    assert!(again.ends_with(": 0 records copied\n"), "{again}");
    assert_eq!(records(&from), records(&to));
    assert_eq!(to.json("list CDS one --store data")[0]["generation"], 1);
}

#[test]
fn st62_a_copy_that_takes_fewer_changes_gets_puts_before_deletions() {
    let from = Stored::served("mirror-small-from");
    let to = Stored::served_with("mirror-small-to", &["--commit-changes-limit", "4"]);
    let clusters = |names: [&str; 3]| {
        let mut all = names.map(|name| cluster(name, 1)).to_vec();
        all.push(variant("v", &format!("env={}", names[0]), 1));
        all.join("---\n")
    };
    from.write("config/a.yaml", clusters(["a", "b", "c"]));
    from.ok("apply config --store data --owner shop --prune");
    let _mirroring = Mirroring::start(&from, &to);
    from.write("config/a.yaml", clusters(["d", "e", "f"]));
    from.ok("apply config --store data --owner shop --prune");
    until_equal(&from, &to);
    let commits = commits(&to);
    let place =
        |text: &str| commits.iter().rev().position(|changes| changes.contains(&text.to_owned())).unwrap();
    let puts = ["d[]", "e[]", "f[]", "v[env=d]"].map(|key| place(&format!("created {key}")));
    let deletions = ["a[]", "b[]", "c[]"].map(|key| place(&format!("deleted {key}")));
    assert!(puts.iter().max() <= deletions.iter().min(), "{commits:?}");
    assert_eq!(place("created v[env=d]"), place("deleted v[env=a]"));
}

#[test]
fn st62_a_mirror_goes_on_when_a_server_is_started_again() {
    let (mut from, mut to) = (Stored::served("mirror-restart-from"), Stored::served("mirror-restart-to"));
    let change = |stored: &Served, seconds| {
        stored.write("a.yaml", cluster("a", seconds));
        stored.ok("put a.yaml --store data");
    };
    change(&from, 1);
    let _mirroring = Mirroring::start(&from, &to);
    assert_eq!(records(&from), records(&to));
    // It has another port and another token.
    from.restart();
    change(&from, 2);
    until_equal(&from, &to);
    to.restart();
    change(&from, 3);
    until_equal(&from, &to);
}

#[test]
fn st62_a_store_without_any_commit_or_resource_does_not_empty_the_copy() {
    let (from, to) = (Stored::served("mirror-empty-from"), Stored::served("mirror-empty-to"));
    to.write("a.yaml", cluster("a", 1));
    to.ok("put a.yaml --store data");
    let before = records(&to);
    let once = format!("store mirror data {} --once", to.path("data"));
    assert_eq!(from.fails(&once), (4, "error: FROM has no commit yet\n".to_owned()));
    let mut mirroring = Mirroring::begin(&from, &to);
    thread::sleep(Duration::from_secs(2));
    assert_eq!(records(&to), before);
    from.write("b.yaml", cluster("b", 1));
    from.ok("put b.yaml --store data");
    mirroring.until_in_sync();
    assert_eq!(records(&from), records(&to));
    drop(mirroring);
    from.ok("delete CDS b --store data");
    let expected = "error: FROM has no resources that its client may read, and TO has 1\n  hint: --allow-empty \
                    deletes them\n";
    assert_eq!(from.fails(&once), (4, expected.to_owned()));
    from.ok(&format!("{once} --allow-empty"));
    assert_eq!(records(&to), [""; 0]);
}

#[test]
fn st62_a_mirror_ends_if_another_store_answers() {
    let (mut from, to) = (Stored::served("mirror-other-from"), Stored::served("mirror-other-to"));
    for name in ["a", "b"] {
        from.write("a.yaml", cluster(name, 1));
        from.ok("put a.yaml --store data");
    }
    let mut mirroring = Mirroring::start(&from, &to);
    let before = records(&to);
    from.stop();
    fs::rename(from.path("data"), from.path("old")).unwrap();
    from.ok("store init data");
    from.start();
    from.ok("put a.yaml --store data");
    let start = Instant::now();
    let ended = loop {
        match mirroring.child.try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(start.elapsed() < SOON),
        }
    };
    assert_eq!(ended.code(), Some(4));
    assert_eq!(records(&to), before);
}

#[test]
fn st62_a_lease_that_starts_again_does_not_end_in_the_copy() {
    let (mut from, to) = (Stored::served("mirror-start-from"), Stored::served("mirror-start-to"));
    from.write("a.yaml", cluster("a", 1));
    from.ok("put a.yaml --store data --lease 6s");
    from.stop();
    thread::sleep(Duration::from_secs(7));
    from.start();
    mirror_once(&from, &to);
    assert_eq!(commits(&to)[0], ["created a[]"]);
}

#[test]
fn st62_a_mirror_that_is_interrupted_writes_no_old_state_again() {
    let (from, to) = (Stored::served("mirror-cut-from"), Stored::served("mirror-cut-to"));
    let local: Value = serde_json::from_slice(&fs::read(to.path("data/server.json")).unwrap()).unwrap();
    from.write("token", local["token"].as_str().unwrap());
    let put = |clusters: &[(&str, u32)]| {
        let clusters: Vec<_> = clusters.iter().map(|(name, seconds)| cluster(name, *seconds)).collect();
        from.write("a.yaml", clusters.join("---\n"));
        from.ok("put a.yaml --store data");
    };
    put(&[("y", 1), ("z", 1)]);
    let cut = Cut::before(local["address"].as_str().unwrap());
    cut.texts.send("first").unwrap();
    let mut mirroring = Mirroring::run(&from, &[&cut.address, "--to-token-file", "token"]);
    mirroring.until_in_sync();
    put(&[("first", 1)]);
    // While TO is away, FROM deletes and creates, so these changes are several commits of TO.
    put(&[("x", 1)]);
    from.ok("delete CDS y --store data");
    put(&[("x", 2), ("y", 2)]);
    from.ok("delete CDS z --store data");
    put(&[("last", 1), ("z", 2)]);
    // The second connection ends before the last one of these commits.
    cut.texts.send("last").unwrap();
    cut.texts.send("never").unwrap();
    until_equal(&from, &to);
    let commits = commits(&to);
    let of_x: Vec<_> = commits.iter().flatten().filter(|change| change.ends_with(" x[]")).collect();
    assert_eq!(of_x, ["created x[]"], "{commits:?}");
}

#[test]
fn st62_a_lease_does_not_end_in_the_copy_while_its_source_is_away() {
    let (mut from, to) = (Stored::served("mirror-away-from"), Stored::served("mirror-away-to"));
    from.write("a.yaml", cluster("a", 1));
    from.ok("put a.yaml --store data --lease 6s");
    let _mirroring = Mirroring::start(&from, &to);
    from.stop();
    thread::sleep(Duration::from_secs(10));
    assert_eq!(commits(&to)[0], ["created a[]"]);
    from.start();
    // It starts again there, and ends in both if nobody renews it.
    until_gone(&to);
    assert_eq!(records(&from), records(&to));
}

#[test]
fn st62_a_lease_in_the_copy_is_renewed_as_long_as_its_source_has_the_record() {
    let (from, to) = (Stored::served("mirror-lease-from"), Stored::served("mirror-lease-to"));
    from.write("a.yaml", cluster("a", 1));
    from.ok("put a.yaml --store data --lease 6s");
    let _mirroring = Mirroring::start(&from, &to);
    // A server that is halted cannot end a lease, and its connections stay.
    from.server.signal("-STOP");
    thread::sleep(Duration::from_secs(10));
    let renewed = commits(&to);
    from.server.signal("-CONT");
    assert_eq!(renewed[0], ["created a[]"]);
    // What is not renewed ends in both.
    until_gone(&to);
    assert_eq!(records(&from), records(&to));
}
