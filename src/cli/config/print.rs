//! Writes all options of a command, as a file that `--config` reads.

use std::fmt::Write as _;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command};

use super::key;

/// Options that were given are lines. All other options are comments with their defaults, so that
/// the reader of the file uses its own defaults.
pub(super) fn options(command: &Command, matches: &ArgMatches) -> String {
    let mut text = format!("# Options of `xds {}`. Commented lines show the defaults.\n", command.get_name());
    for option in super::options(command) {
        let (id, key) = (option.get_id().as_str(), key(option));
        let values =
            || matches.get_raw(id).into_iter().flatten().map(|value| scalar(&value.to_string_lossy()));
        let value = match option.get_action() {
            ArgAction::SetTrue => Some(matches.get_flag(id).to_string()),
            ArgAction::Append => {
                let values: Vec<_> = values().collect();
                (!values.is_empty()).then(|| format!("[{}]", values.join(", ")))
            }
            _ => values().next(),
        };
        let given = matches.value_source(id) == Some(ValueSource::CommandLine);
        _ = match value {
            Some(value) if given => writeln!(text, "{key}: {value}"),
            Some(value) => writeln!(text, "# {key}: {value}"),
            None => writeln!(text, "# {key}:"),
        };
    }
    text
}

/// A value in YAML, quoted if YAML could read it as something else.
fn scalar(value: &str) -> String {
    let begins_plainly = value.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/' || c == '.');
    let goes_on_plainly = value.chars().all(|c| c.is_ascii_alphanumeric() || "._/=:@+-".contains(c));
    let is_nothing = value.eq_ignore_ascii_case("null");
    if begins_plainly && goes_on_plainly && !value.ends_with(':') && !is_nothing {
        value.to_owned()
    } else {
        serde_json::Value::from(value).to_string()
    }
}
