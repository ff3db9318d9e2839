use std::fs;
use std::path::Path;

use clap::{CommandFactory, Parser};

use super::file::Value;
use super::*;

fn parse(text: &str) -> Result<File, ConfigError> {
    File::parse(Path::new("xds.yaml"), text)
}

fn values(text: &str) -> Vec<Value> {
    parse(text).unwrap().entries.into_iter().map(|entry| entry.value).collect()
}

fn of_serve() -> Command {
    let mut all = Cli::command();
    all.build();
    all.find_subcommand("serve").unwrap().clone()
}

/// The arguments that each key adds to `xds serve DIR`.
fn added(text: &str) -> Result<Vec<String>, String> {
    let (file, serve) = (parse(text).map_err(|error| error.to_string())?, of_serve());
    let matches = serve.clone().try_get_matches_from(["serve", "here"]).unwrap();
    let added = FileOption::all(&file, &serve, &matches).map_err(|errors| errors.to_string())?;
    Ok(added
        .into_iter()
        .flat_map(|added| added.arguments)
        .map(|argument| argument.into_string().unwrap())
        .collect())
}

#[test]
fn numbers_are_taken_as_they_are_written() {
    let text = |text: &str| Value::Text(text.into());
    assert_eq!(
        values("a: 10000\nb: 1.10\nc: 30m\nd: \"5\"\ne: 0x1f"),
        ["10000", "1.10", "30m", "5", "0x1f"].map(text)
    );
    let list = Value::List(["1.10", "true", "on", "x"].map(String::from).to_vec());
    assert_eq!(values("a: [1.10, true, on, x]"), [list]);
    assert_eq!(values("# nothing but a comment"), []);
}

#[test]
fn each_kind_of_option_is_put_on_the_command_line() {
    let text =
        "allow-empty: true\nsotw-not-found: false\nnames-limit: 5\nrefuse: [SDS, LDS]\nnot-served: RDS";
    let expected = ["--allow-empty", "--names-limit=5", "--refuse=SDS", "--refuse=LDS", "--not-served=RDS"];
    assert_eq!(added(text).unwrap(), expected);
    // The command line has a folder, so the key has no effect.
    assert_eq!(added("folder: there").unwrap(), Vec::<String>::new());
}

#[test]
fn what_is_no_option_or_has_no_value_for_it_is_told_with_its_place() {
    let error = |text: &str| added(text).unwrap_err();
    assert_eq!(
        error("\n name-limits: 5"),
        "xds.yaml:2:2: `xds serve` has no option \"name-limits\"; did you mean \"names-limit\"?"
    );
    assert_eq!(error("zzz: 5"), "xds.yaml:1:1: `xds serve` has no option \"zzz\"; see its --help");
    // All of them at once.
    assert_eq!(
        error("zzz: 5\nallow-empty: 1\nname-limits: 5"),
        "xds.yaml:1:1: `xds serve` has no option \"zzz\"; see its --help\n\
         xds.yaml:2:1: allow-empty: expected true or false, found a value\n\
         xds.yaml:3:1: `xds serve` has no option \"name-limits\"; did you mean \"names-limit\"?"
    );
    for key in ["config", "print-config", "print_config", "help"] {
        assert!(error(&format!("{key}: true")).contains("has no option"), "{key}");
    }
    assert_eq!(error("allow-empty: 1"), "xds.yaml:1:1: allow-empty: expected true or false, found a value");
    assert_eq!(error("listen: [a]"), "xds.yaml:1:1: listen: expected one value, found a list");
    assert_eq!(
        error("refuse: []"),
        "xds.yaml:1:1: refuse: expected a value or a list of values, found an empty list"
    );
    assert_eq!(error("listen:"), "xds.yaml:1:1: listen: expected one value, found nothing");
    assert_eq!(
        error("legacy-wildcard: { RDS: on }"),
        "xds.yaml:1:1: legacy-wildcard: expected a value or a list of values, found a map or a list in a list"
    );
    assert_eq!(error("listen: a\nlisten: b"), "xds.yaml:2:1: duplicate key \"listen\"");
    assert!(error("- listen").starts_with("xds.yaml:1:1: "), "{}", error("- listen"));
    assert!(error("a: 1\n---\nb: 1").starts_with("xds.yaml:"));
}

/// The printed options of a command.
fn printed(command: &str, arguments: &[&str]) -> String {
    let line = ["xds", command].into_iter().chain(arguments.iter().copied()).chain(["--print-config"]);
    match command_line(line.map(OsString::from).collect()) {
        Ok(Invocation::Print(text)) => text,
        Ok(Invocation::Run(_)) => panic!("--print-config runs nothing"),
        Err(InvocationError::CommandLine(error)) => panic!("{error}"),
        Err(InvocationError::File(error)) => panic!("{error}"),
    }
}

#[test]
fn what_is_printed_can_be_read_and_says_the_same() {
    let folder = std::env::temp_dir().join(format!("xds-config-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("xds.yaml");
    let of_file = ["--config", file.to_str().unwrap()];
    let serve = [
        "folder with blanks",
        "--allow-empty",
        "--names-limit=7",
        "--refuse=SDS",
        "--refuse=a:",
        "--param-metadata=null,env",
    ];
    let proxy = ["--upstream=a:1", "--upstream=https://b:2", "--node-cluster=-x", "--by-node=env,1.10"];
    for (command, arguments) in [("serve", &serve[..]), ("proxy", &proxy)] {
        let before = printed(command, arguments);
        fs::write(&file, &before).unwrap();
        assert_eq!(printed(command, &of_file), before);
        // The file is also valid if each default that has a value is given explicitly.
        let explicit = before.lines().skip(1).map(|line| match line.strip_prefix("# ") {
            Some(line) if !line.ends_with(':') => format!("{line}\n"),
            _ => format!("{line}\n"),
        });
        fs::write(&file, explicit.collect::<String>()).unwrap();
        assert_eq!(printed(command, &of_file).lines().count(), before.lines().count());
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn every_option_of_a_command_with_a_file_can_be_a_key() {
    let mut all = Cli::command();
    all.build();
    let with_file = all
        .get_subcommands()
        .filter(|command| command.get_arguments().any(|option| option.get_id() == CONFIG));
    for command in with_file {
        let kept = command.get_arguments().filter(|option| !options(command).any(|key| key == *option));
        let kept: Vec<_> = kept.map(key).collect();
        assert_eq!(kept, ["config", "print-config", "help"], "xds {}", command.get_name());
    }
}

#[test]
fn a_command_line_without_a_file_is_parsed_as_it_is() {
    let refused = |line: &str| match command_line(line.split(' ').map(OsString::from).collect()) {
        Err(InvocationError::CommandLine(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    for line in
        ["xds serve", "xds serve d --listen x", "xds serve d --nope", "xds check --config x d", "xds --help"]
    {
        let error = tips::corrected(Cli::try_parse_from(line.split(' ')).unwrap_err());
        assert_eq!(refused(line), error.to_string());
    }
}
