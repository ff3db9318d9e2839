//! `xds store reid`: another id for a store (SR31).

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use xds_store::engine::Engine as _;
use xds_store::log::Head;
use xds_store::store::Store;

use super::init::random_hex;
use super::place::{Place, PlaceError, causes};
use crate::cli::check::ReportFormat;
use crate::cli::{Failure, say};

/// Give a store another node id, such as one in a copied folder
///
/// Two nodes of a cluster must not have one id. Run this for the copy before it is served. The former
/// id is remembered. When the node reaches a peer, it gives its peers under the new id what they lack
/// or have otherwise. Resources and the cluster stay. The revisions are those of another store:
/// programs that go on from one of the former ones read everything again.
#[derive(Debug, Args)]
#[command(after_help = AFTER)]
pub(super) struct Reid {
    /// The folder of the store; no server may have it open
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Let resources come back that this node has deleted and forgotten, if a peer never heard of it
    ///
    /// For a node and a peer that each have forgotten deletions which the other one lacks: otherwise neither
    /// takes anything from the other.
    #[arg(long)]
    give_up_deletions: bool,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

impl Reid {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let head = self.rename(&random_hex()?).map_err(Failure::Place)?;
        let place = self.folder.display();
        let former = head.former_nodes.last().map_or("", String::as_str);
        match self.format {
            ReportFormat::Json => say(json!({
                "store": place.to_string(), "node": head.node, "cluster": head.cluster,
                "former_nodes": head.former_nodes,
            })),
            ReportFormat::Text => say(format_args!("{place}: node {}, which was {former} before", head.node)),
        }
        Ok(ExitCode::SUCCESS)
    }

    fn rename(&self, id: &str) -> Result<Head, PlaceError> {
        let place = Place::Folder(self.folder.clone());
        let mut engine = Place::write(&self.folder)?;
        let view = engine.view().map_err(|error| place.not_loaded(error.into()))?;
        let (batch, head) =
            Store::rename(&*view, id, self.give_up_deletions).map_err(|error| place.not_loaded(error))?;
        drop(view);
        let failed = |error| PlaceError::File { path: self.folder.clone(), cause: causes(&error) };
        engine.commit(&batch).map_err(failed)?;
        Ok(head)
    }
}

const AFTER: &str = "\
Example:
  xds store reid data

JSON: one object with store, node, cluster and former_nodes (the oldest first). Fields may be added.

Exit codes:
  0  the store has another id
  1  a server has the store open, or it cannot be read or written
  2  there is no store, or it has a format of a newer version; arguments";
