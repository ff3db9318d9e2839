//! Options from a file: `--config FILE`. `--print-config` writes such a file.
//!
//! The file has no schema of its own. Its keys are the long names of the options. Each option that
//! is in the file and not on the command line is added to the command line, which is then parsed.
//! So values are checked in one place, and each new option is also a key.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory as _, FromArgMatches as _};

use super::yaml::FilePosition;
use super::{Cli, tips};
use file::{ConfigEntry, File, Value};

pub(super) use schema::schema;

mod file;
mod print;
mod schema;

/// The options of a command that accepts a file. They are read from the matches before the other
/// options.
#[derive(Debug, Args)]
pub(super) struct ConfigFile {
    /// Read options from this YAML file too; an option on the command line overrides it
    ///
    /// Keys are the long names of the options, and `folder` for DIR: `names-limit: 10000`. Options
    /// that may be repeated have lists, switches have true or false. Paths are relative to the
    /// working directory, as on the command line.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print all options with their values, in the format of --config, and exit
    #[arg(long)]
    print_config: bool,
}

/// What the command line tells the program to do.
#[derive(Debug)]
pub(super) enum Invocation {
    /// Run a command.
    Run(Cli),
    /// Print the options of a command.
    Print(String),
}

/// Why the command line cannot be used.
#[derive(Debug)]
pub(super) enum InvocationError {
    /// An error on the command line itself; also a request for help.
    CommandLine(clap::Error),
    /// Errors in the file, at least one.
    File(ConfigErrors),
}

/// The errors in a configuration file, at least one, in the order of the file.
#[derive(Debug)]
pub(super) struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    /// See [`super::Failure::exit_code`].
    pub(super) fn exit_code(&self) -> u8 {
        if self.0.iter().any(|error| matches!(error, ConfigError::Unreadable { .. })) { 1 } else { 2 }
    }
}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self(vec![error])
    }
}

impl fmt::Display for ConfigErrors {
    /// A line for each error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// An error in a configuration file.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigError {
    #[error("{}: cannot be read: {error}", file.display())]
    Unreadable { file: PathBuf, error: std::io::Error },
    #[error("{place}: {message}")]
    Syntax { place: FilePosition, message: String },
    #[error("{place}: duplicate key {key:?}")]
    Twice { place: FilePosition, key: String },
    #[error("{place}: `xds {command}` has no option {key:?}{}", did_you_mean(nearest.as_deref()))]
    UnknownKey { place: FilePosition, command: String, key: String, nearest: Option<String> },
    #[error("{place}: {key}: expected {expected}, found {found}")]
    Shape { place: FilePosition, key: String, found: &'static str, expected: &'static str },
    /// An error of the command line parser about a value.
    #[error("{place}: {message}")]
    Refused { place: FilePosition, message: String },
}

/// Parses a command line and the file that it names.
///
/// # Errors
/// The errors of the parser; errors about the file have their place.
pub(super) fn command_line(mut arguments: Vec<OsString>) -> Result<Invocation, InvocationError> {
    let mut all = Cli::command();
    all.build();
    let given = given(&all, &arguments).map_err(|error| InvocationError::File(error.into()))?;
    let mut added = Vec::new();
    if let Some(CommandWithFile { command, matches, file }) = &given {
        added = FileOption::all(file, command, matches).map_err(InvocationError::File)?;
        // Insert them after the name of the command, before a `--` that may follow.
        let name = arguments.iter().position(|argument| *argument == command.get_name()).unwrap_or_default();
        arguments.splice(name + 1..name + 1, added.iter().flat_map(|added| added.arguments.clone()));
    }
    let matches = all.try_get_matches_from_mut(arguments);
    let matches = matches.map_err(|error| refusal(tips::corrected(error), &added))?;
    if let Some((name, of_command)) = matches.subcommand()
        && let Ok(Some(true)) = of_command.try_get_one::<bool>(PRINT_CONFIG)
    {
        let command = all.find_subcommand(name).expect("the matched name is a subcommand");
        return Ok(Invocation::Print(print::options(command, of_command)));
    }
    Cli::from_arg_matches(&matches).map(Invocation::Run).map_err(InvocationError::CommandLine)
}

/// A command line that names a file.
struct CommandWithFile<'a> {
    command: &'a Command,
    matches: ArgMatches,
    file: File,
}

/// Reads the file, if the command line names one. Errors of the command line are ignored here: the
/// file may have the options that it lacks.
fn given<'a>(all: &'a Command, arguments: &[OsString]) -> Result<Option<CommandWithFile<'a>>, ConfigError> {
    let lenient = all.clone().ignore_errors(true);
    let Some((name, matches)) =
        lenient.try_get_matches_from(arguments).ok().and_then(|mut matches| matches.remove_subcommand())
    else {
        return Ok(None);
    };
    let Ok(Some(path)) = matches.try_get_one::<PathBuf>(CONFIG) else { return Ok(None) };
    let file = File::read(path)?;
    let command = all.find_subcommand(name).expect("the matched name is a subcommand");
    Ok(Some(CommandWithFile { command, matches, file }))
}

/// An option of the file, in the form of the command line.
struct FileOption {
    place: FilePosition,
    /// The name of the option in the parser's errors.
    option: String,
    arguments: Vec<OsString>,
}

impl FileOption {
    /// The options of the file that the command line does not have.
    ///
    /// # Errors
    /// The errors of all entries.
    fn all(file: &File, command: &Command, matches: &ArgMatches) -> Result<Vec<Self>, ConfigErrors> {
        let (mut options, mut errors) = (Vec::new(), Vec::new());
        for entry in &file.entries {
            match Self::new(entry, file, command, matches) {
                Ok(option) => options.extend(option),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(options) } else { Err(ConfigErrors(errors)) }
    }

    /// `None` if the command line has the option.
    fn new(
        entry: &ConfigEntry,
        file: &File,
        command: &Command,
        matches: &ArgMatches,
    ) -> Result<Option<Self>, ConfigError> {
        let place = file.place(entry.at);
        let Some(option) = options(command).find(|option| key(option) == entry.key) else {
            let nearest = tips::nearest(&entry.key, options(command).map(key));
            let command = command.get_name().to_owned();
            return Err(ConfigError::UnknownKey { place, command, key: entry.key.clone(), nearest });
        };
        let arguments = arguments(option, &entry.value).map_err(|expected| ConfigError::Shape {
            place: place.clone(),
            key: entry.key.clone(),
            found: entry.value.describe(),
            expected,
        })?;
        let wins = matches.value_source(option.get_id().as_str()) == Some(ValueSource::CommandLine);
        Ok((!wins).then(|| Self { place, option: option.to_string(), arguments }))
    }
}

/// The options that may be keys of the file.
fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    let is_value = |option: &&Arg| {
        matches!(option.get_action(), ArgAction::Set | ArgAction::Append | ArgAction::SetTrue)
            && ![CONFIG, PRINT_CONFIG].contains(&option.get_id().as_str())
    };
    command.get_arguments().filter(is_value)
}

fn key(option: &Arg) -> &str {
    option.get_long().unwrap_or_else(|| option.get_id().as_str())
}

/// The arguments for a value, or the kind of value that the option needs.
fn arguments(option: &Arg, value: &Value) -> Result<Vec<OsString>, &'static str> {
    let argument = |text: &String| match option.get_long() {
        Some(long) => format!("--{long}={text}").into(),
        None => text.into(),
    };
    match (option.get_action(), value) {
        (ArgAction::SetTrue, Value::Switch(true)) => Ok(vec![format!("--{}", key(option)).into()]),
        (ArgAction::SetTrue, Value::Switch(false)) => Ok(Vec::new()),
        (ArgAction::SetTrue, _) => Err("true or false"),
        (_, Value::Text(text)) => Ok(vec![argument(text)]),
        (_, Value::Switch(switch)) => Ok(vec![argument(&switch.to_string())]),
        // An empty list is not the same as no option, which may have a default.
        (ArgAction::Append, Value::List(items)) if !items.is_empty() => {
            Ok(items.iter().map(argument).collect())
        }
        (ArgAction::Append, _) => Err("a value or a list of values"),
        _ => Err("one value"),
    }
}

/// Turns an error of the parser into an error of the file, if it is about an option of the file.
fn refusal(error: clap::Error, added: &[FileOption]) -> InvocationError {
    let about = |option: &String| added.iter().find(|added| added.option == *option);
    let place = [ContextKind::InvalidArg, ContextKind::PriorArg].into_iter().find_map(|kind| {
        match error.get(kind)? {
            ContextValue::String(option) => about(option),
            // For a missing required option, this lists the options that are missing.
            ContextValue::Strings(all) if error.kind() != ErrorKind::MissingRequiredArgument => {
                all.iter().find_map(about)
            }
            _ => None,
        }
    });
    let Some(FileOption { place, .. }) = place else { return InvocationError::CommandLine(error) };
    let text = error.render().to_string();
    let end = ["\n\nUsage:", "\n\nFor more information"].into_iter().filter_map(|rest| text.find(rest)).min();
    let message = text.get(..end.unwrap_or(text.len())).unwrap_or(&text);
    let message = message.strip_prefix("error: ").unwrap_or(message).trim_end().to_owned();
    InvocationError::File(ConfigError::Refused { place: place.clone(), message }.into())
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(|| "; see its --help".to_owned(), |key| format!("; did you mean {key:?}?"))
}

/// The ids of the fields of [`ConfigFile`].
const CONFIG: &str = "config";
const PRINT_CONFIG: &str = "print_config";

#[cfg(test)]
mod tests;
