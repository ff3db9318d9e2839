//! The cost of a client, by phase.

use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::sleep;

use crate::Error;
use crate::control::{Order, Server};
use crate::progress::Progress;
use crate::workload::Workload;

/// The cost of one client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured([f64; 4]);

impl Measured {
    pub(crate) const NAMES: [&str; 4] =
        ["subscribe, CPU ms", "load, CPU ms", "one change, CPU us", "peak memory, MiB"];

    /// Lets a client subscribe to the server at an address, and measures the cost of the
    /// subscription, the load and the changes.
    ///
    /// The result of `subscribe` is kept until the end. Every watcher reports to its
    /// [`Witness`](crate::progress::Witness) the revision of each resource that it gets.
    #[tokio::main(flavor = "current_thread")]
    pub(crate) async fn of<Client>(
        workload: &Workload,
        subscribe: impl AsyncFnOnce(String, Arc<Progress>) -> Client,
    ) -> Result<Self, Error> {
        let mut server = Server::start(workload).await?;
        let progress = Progress::new(workload.resources);

        let start = at_rest().await?;
        let client = subscribe(server.uri(), Arc::clone(&progress)).await;
        server.subscribed().await?;
        let subscribed = at_rest().await?;
        server.order(Order::Load).await?;
        progress.reached().await?;
        let loaded = at_rest().await?;
        for revision in 1..=workload.changes {
            let index = workload.changed(revision);
            progress.expect(index, revision);
            server.order(Order::Change { index, revision }).await?;
            progress.reached().await?;
        }
        let changed = at_rest().await?;
        drop(client);

        let changes = (changed - loaded) / workload.changes.max(1);
        Ok(Self([
            (subscribed - start).as_secs_f64() * 1e3,
            (loaded - subscribed).as_secs_f64() * 1e3,
            changes.as_secs_f64() * 1e6,
            most_memory_bytes()? / f64::from(1 << 20),
        ]))
    }

    /// The median of each number.
    pub(crate) fn median(rounds: &[Self]) -> Self {
        Self(std::array::from_fn(|row| {
            let mut values: Vec<_> = rounds.iter().map(|round| round.0[row]).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        }))
    }

    /// In the order of [`Self::NAMES`].
    pub(crate) fn values(&self) -> [f64; 4] {
        self.0
    }

    /// The text that a process prints for [`Self::read`].
    pub(crate) fn line(&self) -> String {
        self.0.map(|value| value.to_string()).join(" ")
    }

    pub(crate) fn read(line: &str) -> Result<Self, Error> {
        let values = line.split_whitespace().map(str::parse).collect::<Result<Vec<_>, _>>()?;
        Ok(Self(values.try_into().map_err(|_| "a client prints four numbers")?))
    }
}

/// The processor time of this process once it is idle: the delivery to the watcher may not be the
/// last work of a response.
async fn at_rest() -> Result<Duration, Error> {
    loop {
        let before = processor_time()?;
        sleep(QUIET).await;
        let after = processor_time()?;
        if after - before < QUIET_COST {
            return Ok(after);
        }
    }
}

fn processor_time() -> Result<Duration, Error> {
    Ok(clock_gettime(ClockId::ProcessCPUTime).try_into()?)
}

fn most_memory_bytes() -> Result<f64, Error> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()).ok_or("no VmHWM")?;
    Ok(kibibytes.parse::<f64>()? * 1024.0)
}

const QUIET: Duration = Duration::from_millis(20);
/// A margin for the wake-ups of this check, also under a profiler that makes everything slower; a
/// busy process uses all of the time.
const QUIET_COST: Duration = Duration::from_millis(2);
