//! `xds store promote` and `xds store demote`: which node is the writer of its region (SG22).

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use xds_store::engine::Engine as _;
use xds_store::log::Head;
use xds_store::store::Store;

use super::init::{self, JoinError};
use super::place::{Place, PlaceError, causes};
use crate::cli::check::ReportFormat;
use crate::cli::serve::{PeerCredentials, PeersConnector, peer_url as url};
use crate::cli::{Failure, say};

/// Make a replica the writer of its region
///
/// Stop the server of the replica first, and serve it again afterwards. The command asks the peers, and
/// refuses while another writer of the region answers. What the former writer committed and no peer has
/// is merged if it comes back; make it a replica then, with `xds store demote`.
#[derive(Debug, Args)]
#[command(after_help = PROMOTE)]
pub(super) struct Promote {
    /// The folder of the store; no server may have it open
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// A node to ask whether it is the writer: https://HOST:PORT or http://HOST:PORT of its admin port;
    /// repeatable
    #[arg(long = "peer", value_name = "URL", value_parser = url, required_unless_present = "force")]
    peers: Vec<String>,
    /// Do it also while another writer answers, or without asking
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    credentials: PeerCredentials,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

/// Make the writer of a region a replica, such as one that another node has replaced
///
/// Stop its server first, and serve it again afterwards.
#[derive(Debug, Args)]
#[command(after_help = DEMOTE)]
pub(super) struct Demote {
    /// The folder of the store; no server may have it open
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

impl Promote {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let check = |head: &Head| if self.force { Ok(()) } else { self.check_peers(head) };
        set_replica(&self.folder, false, self.format, check)
    }

    /// Whether no other writer of the region answers.
    fn check_peers(&self, head: &Head) -> Result<(), Failure> {
        let connector = PeersConnector::new(self.credentials.clone());
        let runtime = tokio::runtime::Runtime::new().map_err(Failure::System)?;
        for peer in &self.peers {
            let hello = init::hello(&connector, peer, (&head.node, &head.region));
            let answer = runtime.block_on(async { tokio::time::timeout(init::PATIENCE, hello).await });
            let Ok(Ok(callee)) = answer else {
                say(format_args!("{peer}: no answer"));
                continue;
            };
            if callee.region == head.region && !callee.is_replica && callee.node != head.node {
                let (peer, node, region) = (peer.clone(), callee.node, callee.region);
                return Err(Failure::Join(JoinError::Writer { peer, node, region }));
            }
        }
        Ok(())
    }
}

impl Demote {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        set_replica(&self.folder, true, self.format, |_| Ok(()))
    }
}

fn set_replica(
    folder: &Path,
    is_replica: bool,
    format: ReportFormat,
    check: impl FnOnce(&Head) -> Result<(), Failure>,
) -> Result<ExitCode, Failure> {
    let place = Place::Folder(folder.to_owned());
    let mut engine = Place::write(folder).map_err(Failure::Place)?;
    let failed = |error| Failure::Place(PlaceError::File { path: folder.to_owned(), cause: causes(&error) });
    let view = engine.view().map_err(|error| Failure::Place(place.not_loaded(error.into())))?;
    let not_loaded = |error| Failure::Place(place.not_loaded(error));
    let (batch, head) = Store::with_replica(&*view, is_replica).map_err(not_loaded)?;
    drop(view);
    if head.region.is_empty() {
        return Err(Failure::Join(JoinError::NoRegion));
    }
    check(&head)?;
    engine.commit(&batch).map_err(failed)?;
    let (shown, what) = (folder.display(), if is_replica { "a replica" } else { "the writer" });
    match format {
        ReportFormat::Json => say(json!({
            "store": shown.to_string(), "node": head.node, "region": head.region, "is_replica": is_replica,
        })),
        ReportFormat::Text => {
            say(format_args!("{shown}: node {} is {what} of region {}", head.node, head.region));
        }
    }
    Ok(ExitCode::SUCCESS)
}

const PROMOTE: &str = "\
Examples:
  xds store promote data --peer https://a.example:9901 --peer-ca ca.pem --peer-cert b.pem --peer-key b.key
  xds store promote data --force

JSON: one object with store, node, region and is_replica. Fields may be added.

Exit codes:
  0  the node is the writer of its region
  1  another writer of the region answers; the store has no region; a server has the store open, or it cannot be read
     or written
  2  there is no store, or it has a format of a newer version; arguments";

const DEMOTE: &str = "\
Example:
  xds store demote data

JSON: one object with store, node, region and is_replica. Fields may be added.

Exit codes:
  0  the node is a replica of its region
  1  the store has no region; a server has the store open, or it cannot be read or written
  2  there is no store, or it has a format of a newer version; arguments";
