//! The options about warnings of a folder, and the text of a warning.

use clap::Args;
use clap::builder::PossibleValuesParser;
use xds::folder::lint::Warning;
use xds::folder::{Reaction, WarningPolicy};

#[derive(Debug, Args)]
pub(super) struct WarningOptions {
    /// Treat warnings as errors: `xds check` exits with code 2, and `xds serve` refuses the folder,
    /// at its start and at each reload
    #[arg(long)]
    pub(super) strict: bool,
    /// Ignore warnings of this kind, if they are intended: for example clusters that only some
    /// clients have
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = PossibleValuesParser::new(Warning::KINDS))]
    allow: Vec<String>,
}

impl WarningOptions {
    /// The policy of a server.
    pub(super) fn policy(&self) -> WarningPolicy {
        let reaction = if self.strict { Reaction::Refuse } else { Reaction::Report };
        WarningPolicy { reaction, allowed: self.allow.iter().cloned().collect() }
    }
}

/// The warning with its place and a hint.
pub(super) fn warning_text(warning: &Warning) -> String {
    let mut text = match &*warning.locations {
        [location, ..] => format!("warning: {location}: {warning}"),
        [] => format!("warning: {warning}"),
    };
    if let Some(hint) = warning.hint() {
        text.push_str(&format!("\n  hint: {hint}"));
    }
    text
}

/// Added to the number of warnings.
pub(super) const STRICT: &str = " (errors, because of --strict)";
