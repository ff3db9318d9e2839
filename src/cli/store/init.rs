//! `xds store init`: creates a durable store.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::peer_client::PeerClient;
use xds_store::region::is_region;
use xds_store::replica::PROTOCOL;
use xds_store::store::{Identity, Store};
use xds_store_server::{PeerConnection, PeerConnector};

use super::etcd::EtcdOptions;
use super::place::{self, Place};
use crate::cli::serve::{PeerCredentials, PeersConnector, peer_url as url};
use crate::cli::{Failure, say};

/// Create a store in a new or empty folder, or in etcd
///
/// The store has no resources yet, and says nothing to clients before its first commit. Serve it
/// with `xds serve --store STORE`.
#[derive(Debug, Args)]
#[command(after_help = AFTER)]
pub(super) struct Init {
    /// The folder, which must not exist, or be empty; or etcd://HOST:PORT,HOST:PORT/PREFIX, with TLS
    /// etcds://.., where no key may begin with /PREFIX/
    #[arg(value_name = "STORE")]
    place: Place,
    /// Join the cluster of the node at this URL: https://HOST:PORT or http://HOST:PORT of its admin port
    ///
    /// The node has to answer now. The new store takes all records from a peer once it is served with --peer.
    /// Until then it accepts no commits.
    #[arg(long, value_name = "URL", value_parser = url)]
    join: Option<String>,
    /// The region of the node, such as eu-west: 1 to 64 letters, digits, and . _ -
    ///
    /// Region policies say which region owns which names. The region of a node cannot be changed later.
    #[arg(long, value_name = "REGION", value_parser = region)]
    region: Option<String>,
    /// The node is a replica: it accepts no writes of names that its region owns
    ///
    /// Each region has one node that is none, its writer.
    #[arg(long, requires = "region", requires = "join")]
    replica: bool,
    #[command(flatten)]
    credentials: PeerCredentials,
    #[command(flatten)]
    etcd: EtcdOptions,
}

/// Why a store does not join a cluster.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum JoinError {
    #[error("a store in etcd does not replicate: its servers share it, so it joins no cluster")]
    Etcd,
    #[error("a store in etcd has no region: its servers share it")]
    Region,
    #[error("the store has no region: make one with xds store init --region REGION")]
    NoRegion,
    #[error(
        "node {node} at {peer} is the writer of region {region}: stop it, or make it a replica; --force makes this \
         node a writer, too"
    )]
    Writer { peer: String, node: String, region: String },
    #[error("cannot join the cluster of {peer}: {reason}; no store was made")]
    Peer { peer: String, reason: String },
}

impl Init {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        if self.region.is_some() && matches!(self.place, Place::Etcd(_)) {
            return Err(Failure::Join(JoinError::Region));
        }
        let region = self.region.clone().unwrap_or_default();
        let mut identity = Identity { region, is_replica: self.replica, ..new_identity()? };
        let first = match &self.join {
            Some(peer) => {
                identity.cluster = self.cluster_of(peer, &identity)?;
                Store::init_joining(&identity)
            }
            None => Store::init(&identity),
        };
        place::init(&self.place, &first, &self.etcd).map_err(Failure::Place)?;
        let (place, Identity { node, cluster, .. }) = (&self.place, identity);
        say(format!("{place}: a new store, node {node}, cluster {cluster}"));
        Ok(ExitCode::SUCCESS)
    }
}

impl Init {
    /// SR58: asks a node for the id of its cluster.
    fn cluster_of(&self, peer: &str, identity: &Identity) -> Result<String, Failure> {
        if matches!(self.place, Place::Etcd(_)) {
            return Err(Failure::Join(JoinError::Etcd));
        }
        let connector = PeersConnector::new(self.credentials.clone());
        let runtime = tokio::runtime::Runtime::new().map_err(Failure::System)?;
        let asked = runtime.block_on(async {
            tokio::time::timeout(PATIENCE, ask(&connector, peer, identity))
                .await
                .unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs())))
        });
        let failed = |reason| Failure::Join(JoinError::Peer { peer: peer.to_owned(), reason });
        asked.map_err(failed)
    }
}

async fn ask(connector: &PeersConnector, peer: &str, identity: &Identity) -> Result<String, String> {
    let Identity { node, region, .. } = identity;
    let cluster = hello(connector, peer, (node, region)).await?.cluster;
    if cluster.is_empty() { Err("the answer names no cluster".to_owned()) } else { Ok(cluster) }
}

/// What a node says of itself to one that is no node of its cluster yet.
pub(super) async fn hello(
    connector: &PeersConnector,
    peer: &str,
    (node, region): (&str, &str),
) -> Result<proto::HelloRequest, String> {
    let PeerConnection { channel, authorization } = connector.connect(peer).await?;
    let mut request = tonic::Request::new(proto::HelloRequest {
        protocol: PROTOCOL,
        lowest_protocol: PROTOCOL,
        node: node.to_owned(),
        region: region.to_owned(),
        ..proto::HelloRequest::default()
    });
    if let Some(authorization) = authorization {
        request.metadata_mut().insert("authorization", authorization);
    }
    let answer = PeerClient::new(channel).hello(request).await;
    let answer = answer.map_err(|status| status.message().to_owned())?.into_inner();
    Ok(answer.callee.unwrap_or_default())
}

fn region(text: &str) -> Result<String, String> {
    let wrong = || format!("{text:?} is no region: use 1 to 64 letters, digits, and . _ -");
    if is_region(text) { Ok(text.to_owned()) } else { Err(wrong()) }
}

pub(super) const PATIENCE: Duration = Duration::from_secs(10);

const AFTER: &str = "\
Examples:
  xds store init data
  xds store init data --join https://a.example:9901 --peer-ca ca.pem --peer-cert b.pem --peer-key b.key
  xds store init data --region eu --join https://a.example:9901 --replica --peer-token-file token
  xds store init etcd://10.0.0.1:2379,10.0.0.2:2379/xds

Exit codes:
  0  the store is there
  1  it cannot be written; the node of --join does not answer, or refuses
  2  the folder, or the prefix in etcd, is not empty; arguments";

/// The identity of a new store that is the first of its cluster.
pub(in crate::cli) fn new_identity() -> Result<Identity, Failure> {
    Ok(Identity { node: random_hex()?, cluster: random_hex()?, ..Identity::default() })
}

/// 128 random bits.
pub(in crate::cli) fn random_hex() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Failure::System(error.into()))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}
