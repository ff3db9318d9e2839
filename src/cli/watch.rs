//! `xds watch`: what a server tells a client, as it comes.

use std::process::ExitCode;

use clap::Args;

use super::Failure;
use super::query::{Mode, Query};

/// Follow resources of an xDS server, as its clients do
///
/// Prints each resource when it comes and each time it changes, until interrupted: `+` a resource to use from now on, `-`
/// there is none, and why, `!` something is wrong beside what is in use, `=` all that a glob or `*` stands for was
/// told. Trouble with the connection goes to standard error, and the server is tried again.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = LONG)]
pub(super) struct Watch {
    #[command(flatten)]
    query: Query,
    /// End when each name is known, as `xds get` does
    #[arg(long)]
    once: bool,
}

impl Watch {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        self.query.run(if self.once { Mode::WatchOnce } else { Mode::Watch })
    }
}

macro_rules! examples {
    () => {
        "\
Examples:
  xds watch --server localhost:18000 EDS web
  xds watch --server localhost:18000 RDS web env=prod                by dynamic parameters
  xds watch --server localhost:18000 CDS '*' --format json | jq -c '[.event, .name]'
  xds watch --bootstrap bootstrap.json LDS 'xdstp://shop/envoy.config.listener.v3.Listener/eu/*'"
    };
}

const EXAMPLES: &str = examples!();

const LONG: &str = concat!(
    examples!(),
    "

JSON: one object per line, with `event`, `type`, `name`, and
  changed   version, constraints (in the syntax of `when:`; null: for everyone, or not told),
            generation (of the stream), stale, resource
  gone      code, message: there is none, or it cannot be had so far
  ambient   code, message: what was told is still in use, but; both null when all is well again
  complete  nothing more: all that a glob or `*` stands for was told
  Fields may be added.

Exit codes:
  2  bad input: arguments, bootstrap document
  with --once also
  0  all are known and exist
  1  the server cannot be reached, refuses, or fails
  3  a resource does not exist"
);
