//! Owners that are records: `--owner-record` of `xds put` and `xds apply` (SG17).

use clap::Args;
use xds::type_name;
use xds_proto::xds::store::v1 as proto;

use super::connection::Connection;
use super::error::StoreError;
use super::{names, records};

#[derive(Debug, Args)]
pub(super) struct OwnerRecordOptions {
    /// Make this resource an owner of each resource that is put. May be repeated
    ///
    /// A resource is deleted with its last owner. It has these owners from now on, besides --owner: a
    /// put without this option ends them. If the owner is deleted and created again, it is another one.
    #[arg(long, num_args = 2, value_names = ["TYPE", "NAME"])]
    owner_record: Vec<String>,
    /// The variant of --owner-record, such as env=prod; needed if it has several
    #[arg(long, value_name = "WHEN", requires = "owner_record")]
    owner_when: Option<String>,
    /// End the ownership when --owner-record does not name the resource
    #[arg(long, requires = "owner_record")]
    owner_requires_reference: bool,
    /// Keep the resource, without owners, if --owner-record was its last owner and is deleted
    #[arg(long, requires = "owner_record")]
    owner_unset_on_delete: bool,
}

impl OwnerRecordOptions {
    /// Adds the owners to puts. They have to exist.
    pub(super) async fn add(
        &self,
        connection: &Connection,
        changes: impl IntoIterator<Item = &mut proto::Change>,
    ) -> Result<(), StoreError> {
        let owners = self.owners(connection).await?;
        for change in changes {
            if let Some(proto::change::Act::Put(put)) = &mut change.act {
                put.owners.clone_from(&owners);
            }
        }
        Ok(())
    }

    async fn owners(&self, connection: &Connection) -> Result<Vec<proto::ResourceOwner>, StoreError> {
        let mut owners = Vec::new();
        for pair in self.owner_record.chunks_exact(2) {
            let type_url = type_name::parse_any(&pair[0]);
            let type_url = type_url.map_err(|error| StoreError::Input(error.to_string()))?;
            let key = names::key(connection, &type_url, &pair[1], self.owner_when.as_deref()).await?;
            let record = records::get(connection, &key).await?;
            let record = record.ok_or_else(|| names::missing(&key, "does not exist"))?;
            owners.push(proto::ResourceOwner {
                key: Some(key),
                uid: record.uid,
                requires_reference: self.owner_requires_reference,
                unset_on_delete: self.owner_unset_on_delete,
            });
        }
        Ok(owners)
    }
}

/// Whether a put leaves the resource owners of a record as they are. A folder without owners that are
/// records has nothing to say about them.
pub(super) fn keeps_owners(record: Option<&proto::Record>, act: Option<&proto::change::Act>) -> bool {
    let Some(proto::change::Act::Put(put)) = act else { return true };
    let present = records::resource_owners(record);
    let is_there = |owner| present.contains(owner);
    put.owners.is_empty() || (put.owners.len() == present.len() && put.owners.iter().all(is_there))
}
