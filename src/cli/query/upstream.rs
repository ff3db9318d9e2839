//! The server to query, and the node to send.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use xds::client::bootstrap::{Authority, Bootstrap};
use xds::client::{Client, ClientBuilder, Protocol};
use xds_core::XdstpName;

use super::QueryError;
use crate::cli::resolve::pair;
use crate::cli::tls::Tls;

#[derive(Debug, Args)]
pub(super) struct Upstream {
    /// The server: HOST:PORT, http://HOST:PORT, https://HOST:PORT (with TLS) or unix:/PATH
    ///
    /// Without this and without --bootstrap, GRPC_XDS_BOOTSTRAP names a bootstrap file, or
    /// GRPC_XDS_BOOTSTRAP_CONFIG is the text of one.
    #[arg(long, value_name = "URI", conflicts_with = "bootstrap", help_heading = SERVER)]
    server: Option<String>,
    /// A bootstrap file in gRPC's format: servers, authorities, node, parameters
    ///
    /// As in a gRPC client with this document, a removed resource stays in use unless its server
    /// has fail_on_data_errors.
    #[arg(long, value_name = "FILE", help_heading = SERVER)]
    bootstrap: Option<PathBuf>,
    #[command(flatten)]
    tls: Tls,
    /// Subscribe in state of the world (SotW)
    ///
    /// Every server speaks it. Many servers are silent about a resource that does not exist: `xds watch`
    /// takes it as absent after --timeout, and `xds get` does not know then (exit code 5).
    #[arg(long, conflicts_with = "delta", help_heading = SERVER)]
    sotw: bool,
    /// Subscribe in delta, where the server reports at once that a resource does not exist
    /// [default]
    #[arg(long, help_heading = SERVER)]
    delta: bool,
    /// The node.id to send; `xds-cli` if the bootstrap document has none
    ///
    /// A server may treat all streams with one node.id and node.cluster as one client.
    #[arg(long, value_name = "ID", help_heading = NODE)]
    node_id: Option<String>,
    /// The node.cluster to send
    #[arg(long, value_name = "CLUSTER", help_heading = NODE)]
    node_cluster: Option<String>,
    /// A string in node.metadata, for servers that select by the node, as `xds serve` does. May be
    /// repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair, help_heading = NODE)]
    metadata: Vec<(String, String)>,
}

impl Upstream {
    pub(super) fn protocol(&self) -> Protocol {
        if self.sotw { Protocol::Sotw } else { Protocol::Delta }
    }

    /// The bootstrap document. The server of `--server` serves all authorities of the names.
    pub(super) fn bootstrap(&self, names: &[String]) -> Result<Bootstrap, QueryError> {
        let mut bootstrap = match (&self.server, &self.bootstrap) {
            (Some(uri), _) => {
                let mut bootstrap = Bootstrap::to_server(uri);
                let server = &mut bootstrap.servers[0];
                server.credentials = self.tls.credentials(uri);
                // C9: show a resource as gone if the server removed it. A bootstrap document
                // decides this for its own client.
                server.features.fail_on_data_errors = true;
                let new_style = names.iter().filter_map(|name| XdstpName::of(name).ok().flatten());
                let authorities = new_style.map(|name| (name.authority().to_owned(), Authority::default()));
                bootstrap.authorities.extend(authorities);
                bootstrap
            }
            (None, Some(file)) => Bootstrap::from_file(file).map_err(QueryError::Bootstrap)?,
            (None, None) => Bootstrap::from_env().map_err(QueryError::Bootstrap)?,
        };
        let node = &mut bootstrap.node;
        match &self.node_id {
            Some(id) => node.id.clone_from(id),
            None if node.id.is_empty() => NODE_ID.clone_into(&mut node.id),
            None => {}
        }
        if let Some(cluster) = &self.node_cluster {
            node.cluster.clone_from(cluster);
        }
        if !self.metadata.is_empty() {
            let metadata = node.metadata.get_or_insert_with(Struct::default);
            metadata.fields.extend(
                self.metadata.iter().map(|(key, value)| {
                    (key.clone(), Value { kind: Some(Kind::StringValue(value.clone())) })
                }),
            );
        }
        Ok(bootstrap)
    }

    /// A client that treats resources as absent if the server does not answer within the timeout.
    pub(super) fn client(&self, bootstrap: Bootstrap, timeout: Duration) -> ClientBuilder {
        Client::builder(bootstrap).protocol(self.protocol()).resource_timeout(timeout)
    }
}

const NODE_ID: &str = "xds-cli";

const SERVER: &str = "Server";
const NODE: &str = "Node";
