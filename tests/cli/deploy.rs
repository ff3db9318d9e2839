//! The files of `examples/deploy`, checked as far as possible without running systemd and a
//! container engine.

use std::collections::BTreeSet;
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
            Some(built) => assert_eq!(built, "/source/target/dist/xds"),
            None => assert!(sources.split(' ').all(|source| Path::new(source).exists()), "{copy}"),
        }
    }
    let build = "cargo build --profile dist --features dist --locked --bin xds";
    assert!(instructions("RUN ").any(|run| run == build));
    assert!(instructions("USER ").next_back().is_some_and(|user| user != "root"));
    let words =
        |name| -> Vec<String> { serde_json::from_str(instructions(name).next_back().unwrap()).unwrap() };
    assert_eq!(words("ENTRYPOINT "), [INSTALLED]);
    let command = words("CMD ");
    let printed = printed(&command.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(printed.contains("listen: 0.0.0.0:18000"), "{printed}");
}

/// The text of a file of the example.
fn deploy(file: &str) -> String {
    fs::read_to_string(Path::new("examples/deploy").join(file)).unwrap()
}

/// The values of a key in a file of rules, such as `expr`. A folded value is one line.
fn values_of(key: &str, yaml: &str) -> Vec<String> {
    let mut lines = yaml.lines().peekable();
    let mut values = Vec::new();
    while let Some(line) = lines.next() {
        let line_key = line.trim_start().trim_start_matches("- ");
        let Some(value) = line_key.strip_prefix(key).and_then(|rest| rest.strip_prefix(": ")) else {
            continue;
        };
        let mut value = value.to_owned();
        if value == ">-" {
            value.clear();
            let indent = |line: &str| line.len() - line.trim_start().len();
            while let Some(more) = lines.next_if(|next| indent(next) > indent(line)) {
                value += " ";
                value += more.trim_start();
            }
        }
        values.push(value);
    }
    values
}

/// All queries of the alerts and of the dashboard.
fn queries() -> Vec<String> {
    let dashboard: serde_json::Value = serde_json::from_str(&deploy("dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let of_panels = targets.map(|target| target["expr"].as_str().unwrap().to_owned());
    values_of("expr", &deploy("alerts.yaml")).into_iter().chain(of_panels).collect()
}

/// tests/metrics compares the table of the document with the metrics of the binary.
#[test]
fn alerts_and_dashboard_use_metrics_that_exist() {
    let table = fs::read_to_string("docs/metrics.md").unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let documented: BTreeSet<_> = rows
        .flat_map(|(name, rest)| match rest.starts_with("histogram") {
            true => ["_bucket", "_count", "_sum"].map(|suffix| format!("{name}{suffix}")).to_vec(),
            false => vec![name.to_owned()],
        })
        .collect();
    let queries = queries();
    assert!(queries.len() > 60, "{}", queries.len());
    for query in queries {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = query.split(|c| !is_word(c));
        let used: Vec<_> =
            words.filter(|word| PREFIXES.iter().any(|start| word.starts_with(start))).collect();
        let others = ["up{", "ALERTS{"];
        assert!(!used.is_empty() || others.iter().any(|other| query.contains(other)), "no metric: {query}");
        for name in used {
            assert!(documented.contains(name), "{name}: {query}");
        }
    }
}

#[test]
fn each_alert_has_a_test_and_a_section_of_the_documents_that_exists() {
    let rules = deploy("alerts.yaml");
    let names = values_of("alert", &rules);
    let tested = values_of("name", &deploy("alerts_test.yaml"));
    assert_eq!(names.iter().collect::<BTreeSet<_>>(), tested.iter().collect::<BTreeSet<_>>());
    let sections = values_of("docs", &rules);
    for key in ["summary", "description", "docs", "expr"] {
        assert_eq!(values_of(key, &rules).len(), names.len(), "{key}");
    }
    for section in sections {
        let (file, anchor) = section.split_once('#').unwrap();
        let text = fs::read_to_string(file).unwrap();
        let headings = text.lines().filter(|line| line.starts_with('#'));
        let mut anchors = headings.map(|heading| {
            let words = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
            words.chars().filter(|c| c.is_alphanumeric() || *c == '-').collect::<String>()
        });
        assert!(anchors.any(|of_heading| of_heading == anchor), "{section}");
    }
}

/// How the names of metrics begin.
const PREFIXES: [&str; 3] = ["xds_", "process_", "grpc_xds_"];
/// The path of the program, in the unit and in the container.
const INSTALLED: &str = "/usr/local/bin/xds";
