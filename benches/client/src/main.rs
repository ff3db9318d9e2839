//! Claim: our client decodes, caches and delivers 10,000 resources to 10,000 watchers, and one
//! change among them to its watcher, in a fifth of the processor time of the client of the registry
//! (`xds-client` 0.1.0-alpha.4).
//!
//! A scripted server and each client have a process of their own. So the processor time of a
//! client's process is the cost of this client: reading the socket, decoding, storing, notifying,
//! acknowledging. All sides speak plain HTTP/2 over loopback through tonic, run on one thread,
//! decode to the same types and have a task per watcher. The clients take turns, and the table has
//! medians.
//!
//! ```text
//! cargo run --release -- [--rounds 5] [--resources 10000] [--changes 200] [--type cluster|load-assignment] [--side peer]
//! ```
//!
//! With all defaults it runs for 16 minutes on a quiet machine; the peer takes nearly all of them.
//!
//! | module | has |
//! | --- | --- |
//! | `arguments` | the command line |
//! | `workload` | the resources and their changes: the same in every run |
//! | `server`, `control` | the server, which takes orders, and the side of the client's process that sends the orders |
//! | `progress` | what the watchers have seen |
//! | `measured` | the phases that every client goes through, and what they cost |
//! | `ours` | our client |
//! | `peer` | the client of the registry |
#![forbid(unsafe_code)]

mod arguments;
mod control;
mod measured;
mod ours;
mod peer;
mod progress;
mod server;
mod workload;

use std::process::{Command, Stdio};

use arguments::Arguments;
use measured::Measured;
use workload::{Kind, Workload};

/// The reason why a run failed, as text for people.
type Error = Box<dyn std::error::Error + Send + Sync>;

type Run = fn(&Workload) -> Result<Measured, Error>;

/// Both clients need less time with it than with the system's allocator, above all the client of
/// the registry at each change, for which it clones all names.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The clients; the others are compared with the last one.
const SIDES: &[(&str, Run)] = &[("ours", ours::run_ours), ("peer", peer::run_peer)];

fn main() -> Result<(), Error> {
    let arguments = Arguments::read(std::env::args().skip(1))?;
    match arguments.role() {
        "serve" => server::serve(workload(&arguments)?),
        "client" => {
            let side = arguments.text("side", "");
            let (_, run) = SIDES.iter().find(|(name, _)| *name == side).ok_or("no such side")?;
            println!("{}", run(&workload(&arguments)?)?.line());
            Ok(())
        }
        _ => compare(&arguments),
    }
}

/// Runs every client in turn, for the given number of rounds, and prints the table of their costs.
fn compare(arguments: &Arguments) -> Result<(), Error> {
    let sides = SIDES.iter().map(|(name, _)| *name);
    let sides: Vec<_> = sides.filter(|name| arguments.text("side", name) == *name).collect();
    for kind in Kind::ALL.into_iter().filter(|kind| arguments.text("type", kind.name()) == kind.name()) {
        let workload = Workload { kind, ..workload(arguments)? };
        let mut rounds = vec![Vec::new(); sides.len()];
        for _ in 0..arguments.number("rounds", 5)? {
            for (side, rounds) in sides.iter().zip(&mut rounds) {
                rounds.push(in_its_process(side, &workload)?);
            }
        }
        let medians: Vec<_> = rounds.iter().map(|rounds| Measured::median(rounds)).collect();
        print_table(&workload, &sides, &medians);
    }
    Ok(())
}

fn workload(arguments: &Arguments) -> Result<Workload, Error> {
    let name = arguments.text("type", Kind::Cluster.name());
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name).ok_or("no such type")?;
    let (resources, changes) = (arguments.number("resources", 10_000)?, arguments.number("changes", 200)?);
    Ok(Workload { kind, resources, changes: changes.try_into()? })
}

fn in_its_process(side: &str, workload: &Workload) -> Result<Measured, Error> {
    let mut client = Command::new(std::env::current_exe()?);
    let output = client.arg("client").args(["--side", side]).args(workload.arguments());
    let output = output.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{side} failed").into());
    }
    Measured::read(&String::from_utf8(output.stdout)?)
}

fn print_table(workload: &Workload, sides: &[&str], medians: &[Measured]) {
    let Some((peer, others)) = medians.split_last() else { return };
    let size = workload.resource(0, 0).len();
    println!("\n{} {}s of {size} bytes, a watcher for each", workload.resources, workload.kind.name());
    print!("| {:<28} |", "");
    sides.iter().for_each(|side| print!(" {side:>12} |"));
    others.iter().for_each(|_| print!(" {:>7} |", "ratio"));
    println!();
    for (row, name) in Measured::NAMES.iter().enumerate() {
        print!("| {name:<28} |");
        medians.iter().for_each(|side| print!(" {:>12.1} |", side.values()[row]));
        others.iter().for_each(|side| print!(" {:>7.3} |", side.values()[row] / peer.values()[row]));
        println!();
    }
}
