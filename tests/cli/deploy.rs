//! The files of `examples/deploy`, checked as far as possible without running systemd and a
//! container engine.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Scratch, refused};

const CONFIG: &str = "examples/deploy/config.yaml";

/// The parsed options, if they are valid. Paths of an installed system are replaced by paths of
/// this repository.
fn printed(arguments: &[&str]) -> String {
    let arguments = arguments.iter().map(|argument| argument.replace("/etc/xds/config.yaml", CONFIG));
    let output =
        Command::new(env!("CARGO_BIN_EXE_xds")).args(arguments).arg("--print-config").output().unwrap();
    assert_eq!(refused(&output), (Some(0), String::new()));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_configuration_of_the_example_is_accepted() {
    let printed = printed(&["serve", "--config", CONFIG]);
    for line in ["folder: /etc/xds/resources", "listen: 127.0.0.1:18000", "stream-age: 30m"] {
        assert!(printed.lines().any(|printed| printed == line), "{printed}");
    }
}

#[test]
fn the_unit_starts_the_server_with_options_that_it_has() {
    let unit = fs::read_to_string("examples/deploy/xds.service").unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let words: Vec<_> = start.split(' ').collect();
    assert_eq!(words[0], INSTALLED);
    printed(&words[1..]);
}

#[test]
fn systemd_has_nothing_to_say_of_the_unit() {
    let unit = fs::read_to_string("examples/deploy/xds.service").unwrap();
    let scratch = Scratch::new("unit");
    // It checks that the program exists, too.
    scratch.write("xds.service", unit.replace(INSTALLED, env!("CARGO_BIN_EXE_xds")));
    let mut verify = Command::new("systemd-analyze");
    match verify.arg("verify").arg(scratch.0.join("xds.service")).output() {
        // Its exit code is 0 even if it does not know a key.
        Ok(output) => assert_eq!(refused(&output), (Some(0), String::new())),
        Err(error) => {
            println!("SKIPPED: no systemd-analyze ({error}); only the form of the unit is checked");
            let is_formed =
                |line: &str| line.is_empty() || line.starts_with(['#', '[']) || line.contains('=');
            assert!(unit.lines().all(is_formed), "{unit}");
        }
    }
}

#[test]
fn the_container_is_built_from_files_that_exist_and_starts_with_options_that_it_has() {
    let dockerfile = fs::read_to_string("examples/deploy/Dockerfile").unwrap();
    let instructions = |name| dockerfile.lines().filter_map(move |line| line.strip_prefix(name));
    for copy in instructions("COPY ") {
        let (sources, _) = copy.rsplit_once(' ').unwrap();
        match sources.strip_prefix("--from=build ") {
            Some(built) => assert_eq!(built, "/source/target/release/xds"),
            None => assert!(sources.split(' ').all(|source| Path::new(source).exists()), "{copy}"),
        }
    }
    assert!(instructions("RUN ").any(|run| run.ends_with("cargo build --release --locked --bin xds")));
    assert!(instructions("USER ").next_back().is_some_and(|user| user != "root"));
    let words =
        |name| -> Vec<String> { serde_json::from_str(instructions(name).next_back().unwrap()).unwrap() };
    assert_eq!(words("ENTRYPOINT "), [INSTALLED]);
    let command = words("CMD ");
    let printed = printed(&command.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(printed.contains("listen: 0.0.0.0:18000"), "{printed}");
}

/// The path of the program, in the unit and in the container.
const INSTALLED: &str = "/usr/local/bin/xds";
