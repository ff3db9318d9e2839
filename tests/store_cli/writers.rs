//! Several writers of one store.

use std::io::{self, Read as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use super::*;

#[test]
fn st11_two_writers_with_conditions_lose_no_change() {
    let stored = Stored::served("writers");
    stored.write("a.yaml", cluster("a", 1));
    stored.ok("put a.yaml --store data");
    let commands: &Stored = &stored;
    let count_up = |writer: &str| {
        let stored = commands;
        let mut done = 0;
        while done < ROUNDS {
            let record = &stored.json("list CDS a --store data")[0];
            let seconds = record["resource"]["connect_timeout"].as_str().unwrap().trim_end_matches('s');
            let next = cluster("a", seconds.parse::<u32>().unwrap() + 1);
            let revision = record["revision"].as_str().unwrap();
            let put = format!("put - --store data --if-revision {revision} --message {writer}");
            let output = stored.run_with(&put, &next);
            match output.status.code() {
                Some(0) => done += 1,
                Some(4) => {}
                _ => panic!("{}", stderr(&output)),
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| count_up("one"));
        scope.spawn(|| count_up("two"));
    });
    let record = &stored.json("list CDS a --store data")[0];
    assert_eq!(record["resource"]["connect_timeout"], format!("{}s", 1 + 2 * ROUNDS));
    let commits = stored.json("history CDS a --store data --limit 100");
    for writer in ["one", "two"] {
        let of_writer = commits.iter().filter(|commit| commit["message"] == writer).count();
        assert_eq!(of_writer, ROUNDS as usize);
    }
}

#[test]
fn owners_keep_what_they_share_until_the_last_one_leaves() {
    let stored = Stored::served("owners");
    stored.write("shop/a.yaml", [cluster("both", 1), cluster("shop", 1)].join("---\n"));
    stored.write("desk/a.yaml", [cluster("both", 1), cluster("desk", 1)].join("---\n"));
    stored.ok("apply shop --store data --owner shop --prune");
    let output = stored.ok("apply desk --store data --owner desk --prune");
    assert!(output.contains("updated    Cluster both\ncreated    Cluster desk\n"), "{output}");
    stored.write("shop/a.yaml", [cluster("both", 2), cluster("shop", 1)].join("---\n"));
    let (code, error) = stored.fails("apply shop --store data --owner shop --prune");
    let expected = "error: shop/a.yaml:1: Cluster both belongs to desk\n  hint: act as the owner with --owner, or \
                    use --take-over\n";
    assert_eq!((code, &*error), (4, expected));
    stored.write("shop/a.yaml", cluster("shop", 1));
    let output = stored.ok("apply shop --store data --owner shop --prune");
    assert!(output.starts_with("released   Cluster both\nshop: 1 released, 1 unchanged; "), "{output}");
    stored.write("desk/a.yaml", cluster("desk", 1));
    let output = stored.ok("apply desk --store data --owner desk --prune");
    assert!(output.starts_with("deleted    Cluster both\n"), "{output}");
}

#[test]
fn st60_a_served_folder_and_other_writers_leave_each_other_alone() {
    let stored = Stored::unserved("folder");
    stored.write("config/f.yaml", cluster("f", 1));
    let server = Running::start(&["serve", "--store", &stored.path("data"), &stored.path("config")]);
    assert!(server.until_served(&["CDS", "f"]).1.contains("connect_timeout: 1s"));
    stored.write("shop/a.yaml", [cluster("f", 2), cluster("shop", 1)].join("---\n"));
    let (code, error) = stored.fails("apply shop --store data --owner shop");
    assert!(code == 4 && error.contains("shop/a.yaml:1: Cluster f belongs to folder\n"), "{error}");
    stored.write("shop/a.yaml", cluster("shop", 1));
    stored.ok("apply shop --store data --owner shop --prune");
    // The folder prunes its own resources only.
    stored.write("config/f.yaml", cluster("g", 1));
    assert!(server.until_served(&["CDS", "g"]).1.contains("connect_timeout: 1s"));
    assert_eq!(stored.fails("list CDS f --store data").0, 3);
    assert!(stored.ok("list CDS shop --store data").contains("owner shop"));
    let who: Vec<_> = stored
        .json("history --store data")
        .iter()
        .map(|commit| {
            format!("{} {}", commit["identity"].as_str().unwrap(), commit["owner"].as_str().unwrap())
        })
        .collect();
    assert_eq!(who, ["folder folder", "local shop", "folder folder"]);
}

/// An address that leads to a server, but holds one request back.
struct Held {
    address: String,
    /// Gets an item when the request was sent.
    sent: Receiver<()>,
    /// Lets it pass.
    pass: Sender<()>,
}

impl Held {
    /// Holds the request with this number on the first connection.
    fn before(server: &str, number: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sent_sender, sent) = mpsc::channel();
        let (pass, pass_receiver) = mpsc::channel();
        let mut upstream = TcpStream::connect(server).unwrap();
        let forward = move || -> io::Result<()> {
            let (mut client, _) = listener.accept()?;
            let (mut back, mut answers) = (client.try_clone()?, upstream.try_clone()?);
            thread::spawn(move || io::copy(&mut answers, &mut back));
            let mut preface = [0; 24];
            client.read_exact(&mut preface)?;
            upstream.write_all(&preface)?;
            let mut requests = 0;
            loop {
                // A frame of HTTP/2: length, type, flags and stream, then its content.
                let mut head = [0; 9];
                client.read_exact(&mut head)?;
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
                let mut frame = vec![0; length];
                client.read_exact(&mut frame)?;
                requests += usize::from(head[3] == HEADERS);
                if head[3] == HEADERS && requests == number {
                    sent_sender.send(()).unwrap();
                    pass_receiver.recv().unwrap();
                }
                upstream.write_all(&[&head[..], &frame].concat())?;
            }
        };
        thread::spawn(forward);
        Self { address, sent, pass }
    }
}

#[test]
fn a_prune_releases_only_what_it_has_shown() {
    let stored = Stored::served("prune-race");
    stored.write("config/a.yaml", [cluster("a", 1), cluster("old", 1)].join("---\n"));
    stored.ok("apply config --store data --owner shop --prune");
    let local: Value = serde_json::from_slice(&fs::read(stored.path("data/server.json")).unwrap()).unwrap();
    stored.write("token", local["token"].as_str().unwrap());
    stored.write("config/a.yaml", cluster("a", 2));
    // It lists the types of the folder, then what the owner has, and then it commits.
    let held = Held::before(&stored.server.admin, 3);
    let apply = format!("apply config --server {} --token-file token --owner shop --prune", held.address);
    let output = thread::scope(|scope| {
        let applied = scope.spawn(|| stored.stored.ok(&apply));
        held.sent.recv().unwrap();
        stored.write("new.yaml", cluster("new", 1));
        stored.ok("put new.yaml --store data --owner shop");
        held.pass.send(()).unwrap();
        applied.join().unwrap()
    });
    assert!(output.starts_with("updated    Cluster a\ndeleted    Cluster old\nconfig: "), "{output}");
    stored.ok("list CDS new --store data");
    // What it would release is not released either if somebody changed it meanwhile.
    let held = Held::before(&stored.server.admin, 3);
    let apply = format!("apply config --server {} --token-file token --owner shop --prune", held.address);
    let (code, error) = thread::scope(|scope| {
        let applied = scope.spawn(|| stored.stored.fails(&apply));
        held.sent.recv().unwrap();
        stored.write("new.yaml", cluster("new", 2));
        stored.ok("put new.yaml --store data --owner desk --take-over");
        held.pass.send(()).unwrap();
        applied.join().unwrap()
    });
    assert_eq!((code, error.starts_with("error: Cluster new was changed: ")), (4, true), "{error}");
}

#[test]
fn sg15_a_resource_of_another_owner_is_deleted_only_with_take_over() {
    let stored = Stored::served("owned-delete");
    stored.write("a.yaml", cluster("a", 1));
    stored.ok("put a.yaml --store data --owner shop");
    for options in ["", " --owner desk"] {
        let (code, error) = stored.fails(&format!("delete CDS a --store data{options}"));
        let expected =
            "error: Cluster a belongs to shop; act as its owner with --owner, or use --take-over\n";
        assert_eq!((code, &*error), (4, expected));
    }
    assert!(stored.ok("delete CDS a --store data --take-over").starts_with("deleted    Cluster a\n"));
}

/// The type of a frame that begins a request.
const HEADERS: u8 = 1;
const ROUNDS: u32 = 5;
