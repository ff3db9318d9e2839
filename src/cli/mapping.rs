//! The parameters of clients that subscribe by name.

use std::collections::BTreeSet;

use clap::Args;
use xds::{MetadataKeys, NamedPath, ParameterMapping};

#[derive(Debug, Args)]
pub(super) struct Mapping {
    /// Take a parameter from a field of the client's node, such as zone=node.locality.zone
    ///
    /// Resources with `when:` go to the clients whose parameters match. Clients that subscribe by
    /// plain name, as all released clients do, get their parameters from their node: every string
    /// and bool at the top level of node.metadata, and those of this option. PATH is node.id,
    /// node.cluster, node.locality.{region,zone,sub_zone} or node.metadata.KEY.KEY.. A path in
    /// metadata also takes whole numbers, such as 7, as text. The log and the page of the client
    /// report metadata that gives no parameter.
    #[arg(long, value_name = "NAME=PATH")]
    param: Vec<NamedPath>,
    /// Take parameters from these keys of node.metadata only; `none` for no key
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    param_metadata: Vec<String>,
}

impl Mapping {
    pub(super) fn parameters(&self) -> ParameterMapping {
        let keys: BTreeSet<_> = self.param_metadata.iter().filter(|key| *key != "none").cloned().collect();
        let metadata =
            if self.param_metadata.is_empty() { MetadataKeys::All } else { MetadataKeys::Only(keys) };
        let mapping = ParameterMapping::default().with_metadata(metadata);
        self.param.iter().cloned().fold(mapping, ParameterMapping::with_path)
    }
}
