//! `--config` and `--print-config`.

use std::process::{Command, Output};

use super::{Scratch, Serving, cluster, refused};

/// `xds serve --config FILE`, with DIR in the file.
fn serve(scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut xds = Command::new(env!("CARGO_BIN_EXE_xds"));
    xds.args(["serve", "--config", "../config.yaml"]).args(arguments);
    xds.current_dir(&scratch.0).env_remove("RUST_LOG");
    xds
}

/// A folder `resources` with one cluster, and the file beside it.
fn with_file(test: &str, text: &str) -> (Scratch, Scratch) {
    let above = Scratch::new(test);
    std::fs::create_dir(above.0.join("resources")).unwrap();
    let folder = Scratch(above.0.join("resources"));
    folder.write("a.yaml", cluster("a"));
    above.write("config.yaml", text);
    (above, folder)
}

fn text(output: Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_file_has_the_options_and_the_folder_and_the_command_line_wins() {
    let (_above, folder) =
        with_file("config", "folder: .\nlisten: somewhere\nlog-format: json\nallow-empty: true\n");
    let serving = Serving::start(&mut serve(&folder, &["--listen", "127.0.0.1:0"]));
    let lines = serving.until("listening on 127.0.0.1:");
    assert!(lines.iter().all(|line| line.starts_with('{')), "{lines:#?}");
    assert!(lines[0].contains(".: 1 resource in 1 file"), "{lines:#?}");
}

#[test]
fn mistakes_in_the_file_have_code_2_and_their_place() {
    let cases = [
        (
            "folder: .\nnames-limt: 5\n",
            "error: ../config.yaml:2:1: `xds serve` has no option \"names-limt\"; did you mean \"names-limit\"?\n",
        ),
        (
            "names-limit: 0\nfolder: .\n",
            "error: ../config.yaml:1:1: invalid value '0' for '--names-limit <COUNT>': write a whole number from 1 to \
             4294967295, such as 10000\n",
        ),
        ("folder: .\nfolder: .\n", "error: ../config.yaml:2:1: duplicate key \"folder\"\n"),
    ];
    for (file, expected) in cases {
        let (_above, folder) = with_file("config-mistakes", file);
        assert_eq!(refused(&serve(&folder, &[]).output().unwrap()), (Some(2), expected.into()));
    }
    let (above, folder) = with_file("config-missing", "");
    std::fs::remove_file(above.0.join("config.yaml")).unwrap();
    let (code, text) = refused(&serve(&folder, &["."]).output().unwrap());
    assert_eq!(code, Some(1));
    assert!(text.starts_with("error: ../config.yaml: cannot be read: "), "{text}");
}

#[test]
fn what_print_config_prints_is_a_file_that_means_the_same() {
    let (above, folder) = with_file("config-print", "folder: .\nparam: [zone=node.locality.zone]\n");
    let printed = text(serve(&folder, &["--print-config", "--stream-age", "30m"]).output().unwrap());
    for line in [
        "folder: .",
        "stream-age: 30m",
        "param: [zone=node.locality.zone]",
        "# names-limit: 200000",
        "# refuse:",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{printed}");
    }
    above.write("config.yaml", &printed);
    assert_eq!(text(serve(&folder, &["--print-config"]).output().unwrap()), printed);
}
