//! Our client, through its public interface.

use std::time::Duration;

use xds_client::bootstrap::Bootstrap;
use xds_client::{Client, Event, ResourceType};

use crate::Error;
use crate::measured::Measured;
use crate::workload::{Kind, Workload, cluster_revision, load_assignment_revision};

/// The cost of our client.
pub(crate) fn run_ours(workload: &Workload) -> Result<Measured, Error> {
    match workload.kind {
        Kind::Cluster => run(workload, cluster_revision),
        Kind::LoadAssignment => run(workload, load_assignment_revision),
    }
}

fn run<T>(workload: &Workload, revision: fn(&T) -> u32) -> Result<Measured, Error>
where
    T: ResourceType,
{
    debug_assert_eq!(T::type_url(), workload.kind.type_url());
    Measured::of(workload, async |uri, progress| {
        let client = Client::builder(Bootstrap::to_server(uri)).resource_timeout(TIMEOUT);
        let client = client.start().expect("the server has an address");
        for (index, name) in workload.names().enumerate() {
            let mut watcher = client.watch::<T>(&name).expect("it can be watched");
            let mut witness = progress.witness(index);
            tokio::spawn(async move {
                while let Some(event) = watcher.next().await {
                    let Event::Changed(resource) = event else { panic!("the stream does not break") };
                    witness.saw(revision(&resource));
                }
            });
        }
        client
    })
}

/// The same as for the other client.
const TIMEOUT: Duration = Duration::from_secs(600);
