//! The programs in `examples/`: each does what its first lines say. The pages in `examples/`: each
//! is run as written, ports included.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(feature = "cli")]

use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[cfg(unix)]
#[path = "docs/page.rs"]
mod page;
#[cfg(unix)]
#[path = "examples/pages.rs"]
mod pages;
#[cfg(unix)]
#[path = "binary/port.rs"]
mod port;
#[path = "examples/ports.rs"]
mod ports;
#[path = "docs/run.rs"]
mod run;

/// The program of an example. Cargo builds the examples with the tests, unless a test target is
/// selected.
fn example(name: &str) -> Command {
    let folder = PathBuf::from(env!("CARGO_BIN_EXE_xds")).with_file_name("examples");
    let program = folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    let changed_at = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    let source = changed_at(&Path::new("examples").join(format!("{name}.rs")));
    assert!(changed_at(&program) >= source, "out of date: cargo build --examples");
    Command::new(program)
}

/// The output of an example that ends by itself.
fn printed(name: &str) -> Vec<String> {
    let output = example(name).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().lines().map(String::from).collect()
}

#[test]
fn the_control_plane_has_30_lines_and_serves_what_it_reads() {
    let text = fs::read_to_string("examples/control_plane.rs").unwrap();
    let (_, code) = text.split_once("#[tokio::main]").unwrap();
    let code = code.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    assert_eq!(code.count(), 30);

    let server = "127.0.0.1:18000";
    let _ports = ports::Taken::of("examples/control_plane.rs", &[18000]);
    let mut running = example("control_plane").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(running.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, format!("listening on {server}\n"));
    let mut input = running.stdin.take().unwrap();
    // The second line changes nothing, because one of its addresses is invalid.
    input.write_all(b"web 127.0.0.1:8081 127.0.0.1:8082\nweb 127.0.0.1:8083 nowhere\n").unwrap();
    let mut get = Command::new(env!("CARGO_BIN_EXE_xds"));
    let output = get.args(["get", "--server", server, "--format", "json", "EDS", "web"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("8081") && text.contains("8082") && !text.contains("8083"), "{text}");
    drop(input);
    assert!(running.wait().unwrap().success());
}

#[test]
fn a_type_of_ones_own_has_variants_and_is_watched() {
    let expected = [
        "prod: fast-path",
        "test: fast-path, new-cart",
        "new-cart is switched on in prod",
        "prod: fast-path, new-cart",
    ];
    assert_eq!(printed("custom_type"), expected);
}

#[test]
fn a_roll_out_goes_back_when_a_client_rejects_it() {
    let lines = printed("wait_for_acks");
    assert_eq!(
        lines[..3],
        [
            "the first quota: affects 0 clients",
            "a quota of another type: affects 2 clients",
            "  edge-new has it"
        ]
    );
    assert!(lines[3].starts_with("  edge-old rejected it: \"shop\": "), "{lines:#?}");
    assert_eq!(
        lines[4..],
        ["the first quota again: affects 2 clients", "  edge-new has it", "  edge-old has it"]
    );
}

#[test]
fn what_several_ask_for_is_loaded_once_and_dropped_with_the_last() {
    let mut lines = printed("on_demand");
    lines[5..].sort();
    assert!(lines[4].starts_with("no tenant: NOT_FOUND: "), "{lines:#?}");
    lines.remove(4);
    let expected = [
        "loading acme",
        "acme has the plan gold",
        "acme has the plan gold",
        "loading nobody",
        "dropping acme",
        "dropping nobody",
    ];
    assert_eq!(lines, expected);
}

/// The blocks of a language on a page.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let opened = page.split("\n```").skip(1).step_by(2);
    opened.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n')).collect()
}

#[test]
fn a_program_reads_from_the_cache_of_its_proxy_also_when_the_control_plane_is_away() {
    let page = fs::read_to_string("docs/proxy.md").unwrap();
    let (_, section) = page.split_once("## 9. ").unwrap();
    let mut lines = printed("embedded_proxy");
    // Both variants may come in one response or in two.
    lines[2..4].sort();
    let [shown] = blocks(section, "text")[..] else { panic!("one output") };
    let mut shown: Vec<_> = shown.lines().collect();
    shown[2..4].sort_unstable();
    let first = shown[0].strip_suffix("...").unwrap();
    assert!(lines[0].starts_with(first) && lines[1..] == shown[1..], "{lines:#?}");

    let program = fs::read_to_string("examples/embedded_proxy.rs").unwrap();
    let code = blocks(section, "rust");
    assert_eq!(code.len(), 3);
    code.iter().for_each(|block| assert!(program.contains(block), "not in the example:\n{block}"));
}

#[test]
fn an_agent_reads_by_kind_and_goes_without_the_kind_that_its_control_plane_lacks() {
    let status = "INVALID_ARGUMENT: envoy.extensions.transport_sockets.tls.v3.Secret is not served here";
    let mut lines = printed("typed_getters");
    assert!(lines.remove(0).starts_with("before the first response: UNAVAILABLE: "), "{lines:#?}");
    let expected = [
        "cluster web: web is there".to_owned(),
        "cluster shop: there is none".to_owned(),
        format!("secret web: {status}"),
        "after a change, cluster shop: shop is there".to_owned(),
        "after the upgrade, secret web: web is there".to_owned(),
        "after the upgrade, cluster web: web is there".to_owned(),
    ];
    assert_eq!(lines, expected);
}
