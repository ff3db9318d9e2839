//! `xds watch`: follows resources of a server.

use std::process::ExitCode;

use clap::Args;

use super::Failure;
use super::query::{Differences, Mode, Query};

/// Follow resources of an xDS server, as its clients do
///
/// Prints each resource when it arrives and each time it changes, until interrupted. Each line
/// has the time (UTC, as in the log of `xds serve`) and what happened: `+` a
/// resource, `-` the resource does not exist or is not available, with the reason, `!` an error
/// while the resource stays in use, `=` all members of a glob or `*` were sent. Connection errors
/// go to standard error, and the command tries to connect again.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = LONG)]
pub(super) struct Watch {
    #[command(flatten)]
    query: Query,
    /// Exit when each name is known, as `xds get` does
    #[arg(long)]
    once: bool,
    /// Print of a changed resource only what changed, as a unified diff of its YAML
    #[arg(long)]
    diff: bool,
}

impl Watch {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let differences = if self.diff { Differences::Lines } else { Differences::Whole };
        self.query.run(if self.once { Mode::WatchOnce } else { Mode::Watch }, differences)
    }
}

macro_rules! examples {
    () => {
        "\
Examples:
  xds watch --server localhost:18000 EDS web
  xds watch --server localhost:18000 RDS web env=prod                by dynamic parameters
  xds watch --server localhost:18000 CDS --diff                      all clusters, and what changes in them
  xds watch --server localhost:18000 CDS --format json | jq -c '[.at, .event, .name]'
  xds watch --bootstrap bootstrap.json LDS 'xdstp://shop/envoy.config.listener.v3.Listener/eu/*'"
    };
}

const EXAMPLES: &str = examples!();

const LONG: &str = concat!(
    examples!(),
    "

JSON: one object per line, with `at` (the time), `event`, `type`, `name`, and
  changed   version, constraints (in the syntax of `when:`; null: for all clients, or not sent),
            generation (of the stream), stale, resource
  gone      code, message: the resource does not exist, or is not available yet
  ambient   code, message: an error; the resource stays in use. Both are null when the error is over
  complete  no further fields: all members of a glob or `*` were sent
  Fields may be added.

Exit codes:
  2  invalid input: arguments, bootstrap document
  with --once also
  0  all resources exist
  1  the server cannot be reached, refuses, or fails
  3  a resource does not exist
  5  no answer about a resource within --timeout, so it is not known whether it exists"
);
