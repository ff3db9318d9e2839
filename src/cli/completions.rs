//! `xds completions`: completions for a shell.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;

/// Print completions for a shell
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  xds completions zsh > ~/.zfunc/_xds")]
pub(super) struct Completions {
    /// The shell to complete for
    shell: Shell,
}

impl Completions {
    pub(super) fn run(&self) {
        clap_complete::generate(self.shell, &mut Cli::command(), "xds", &mut std::io::stdout());
    }
}
