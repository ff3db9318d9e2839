//! The command line: some options of the simulator, and those that test runners pass to every test.

/// What the program does.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Help,
    /// For test runners.
    List,
    /// A filter selects other tests.
    Nothing,
    /// `count` seeds, beginning with `first`.
    Seeds {
        first: u64,
        count: u64,
        /// Whether to go on after a failure.
        goes_on: bool,
    },
    /// One seed, with its trace.
    Replay {
        seed: u64,
    },
    /// Seeds from `first` on, until the program is stopped.
    Forever {
        first: u64,
    },
}

pub(crate) const HELP: &str = "\
Runs simulated worlds: replicas, clients of both protocols, our own among them, commits, delays, crashes, servers that lie;
all from one seed, in virtual time.

Usage: cargo sim [OPTIONS]

  --seeds N      runs N seeds (default 2000)
  --from S       starts with seed S (default 1)
  --keep-going   goes on after a failure: prints a line for each seed that fails, without its trace
  --seed S       runs one seed and prints what happens in it; so does XDS_SIM_SEED=S
  --forever      runs seeds from a random one on, until Ctrl-C or a failure
  --help         prints this

A failure prints the seed, the invariant, and the shortest trace that was found. To replay: cargo sim --seed S
Ctrl-C ends a run at any time; nothing is written. For a long search, `cargo test --release --test sim -- --forever` runs
several times as many seeds per second, without the debug assertions of the machines.";

/// The number of seeds without `--seeds`.
const SEEDS: u64 = 2_000;

impl Mode {
    /// Reads the arguments; `--forever` starts with the seed `random`.
    pub(crate) fn of(
        arguments: impl Iterator<Item = String>,
        seed: Option<String>,
        random: u64,
    ) -> Result<Self, String> {
        let mut arguments = arguments;
        let (mut first, mut count, mut goes_on, mut filters) = (1, SEEDS, false, Vec::new());
        let mut mode = seed
            .map(|seed| number("XDS_SIM_SEED", Some(seed)))
            .transpose()?
            .map(|seed| Self::Replay { seed });
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--help" | "-h" => return Ok(Self::Help),
                "--list" => mode = Some(Self::List),
                "--seeds" => count = number(&argument, arguments.next())?,
                "--keep-going" => goes_on = true,
                "--from" => first = number(&argument, arguments.next())?,
                "--seed" => mode = Some(Self::Replay { seed: number(&argument, arguments.next())? }),
                "--forever" => mode = Some(Self::Forever { first: random }),
                // Options that `cargo test -- ..` passes to all tests.
                "--nocapture" | "--no-capture" | "--quiet" | "-q" | "--exact" | "--show-output"
                | "--include-ignored" => {}
                "--ignored" => return Ok(Self::Nothing),
                "--test-threads" | "--format" | "--color" | "--skip" | "-Z" => _ = arguments.next(),
                other if other.starts_with('-') && other.contains('=') => {}
                other if other.starts_with('-') => return Err(format!("unknown option {other}\n\n{HELP}")),
                _ => filters.push(argument),
            }
        }
        let is_wanted = filters.is_empty() || filters.iter().any(|filter| "sim".contains(filter.as_str()));
        Ok(if is_wanted { mode.unwrap_or(Self::Seeds { first, count, goes_on }) } else { Self::Nothing })
    }
}

fn number(option: &str, value: Option<String>) -> Result<u64, String> {
    let value = value.ok_or_else(|| format!("{option} needs a number\n\n{HELP}"))?;
    value.parse().map_err(|_| format!("{option} needs a number, not {value:?}\n\n{HELP}"))
}
