//! Keys of records, and reading them from a server.

use xds::{TypeUrl, printable};
use xds_proto::xds::store::v1 as proto;

use super::connection::Connection;
use super::error::StoreError;
use crate::cli::shown::resource_label;

/// The type, name and constraints of a key, for people.
pub(in crate::cli) fn label(key: &proto::Key) -> String {
    let label = resource_label(&TypeUrl::from(&*key.type_url), &key.name);
    if key.when.is_empty() { label } else { format!("{label} [{}]", printable(&key.when)) }
}

/// Reads the records of a filter page by page, all of one store revision, which it returns.
pub(super) async fn list(
    connection: &Connection,
    filter: proto::Filter,
    without_payload: bool,
    mut each: impl FnMut(proto::Record) -> Result<(), StoreError>,
) -> Result<String, StoreError> {
    let mut client = connection.store.clone();
    let mut request = proto::ListRequest {
        filter: Some(filter),
        page_size: if without_payload { KEYS_PER_PAGE } else { RECORDS_PER_PAGE },
        level: proto::ReadLevel::Latest.into(),
        without_payload,
        ..proto::ListRequest::default()
    };
    loop {
        let page = connection.answer(client.list(request.clone())).await?;
        page.records.into_iter().try_for_each(&mut each)?;
        if page.next_page_token.is_empty() {
            return Ok(page.revision);
        }
        request.page_token = page.next_page_token;
    }
}

/// The record of a key; `None` if it does not exist.
pub(super) async fn get(
    connection: &Connection,
    key: &proto::Key,
) -> Result<Option<proto::Record>, StoreError> {
    let request = proto::GetRequest {
        key: Some(key.clone()),
        level: proto::ReadLevel::Latest.into(),
        ..proto::GetRequest::default()
    };
    let mut client = connection.store.clone();
    match connection.answer(client.get(request)).await {
        Ok(response) => Ok(response.record),
        Err(StoreError::Refused(refused)) if refused.code == tonic::Code::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The condition that a record is as it was read.
pub(super) fn as_read(record: Option<&proto::Record>) -> proto::Condition {
    let is = match record {
        Some(record) => proto::condition::Is::Revision(record.revision.clone()),
        None => proto::condition::Is::Absent(true),
    };
    proto::Condition { is: Some(is) }
}

/// The named owners of a record.
pub(super) fn owners(record: &proto::Record) -> Vec<&str> {
    record.owners.iter().filter_map(owner_name).collect()
}

fn owner_name(owner: &proto::Owner) -> Option<&str> {
    match &owner.who {
        Some(proto::owner::Who::Name(name)) => Some(name),
        Some(proto::owner::Who::Resource(_)) | None => None,
    }
}

/// The records that own a record, which a put has to repeat.
pub(super) fn resource_owners(record: Option<&proto::Record>) -> Vec<proto::ResourceOwner> {
    let owners = record.into_iter().flat_map(|record| &record.owners);
    let resources = owners.filter_map(|owner| match &owner.who {
        Some(proto::owner::Who::Resource(owner)) => Some(owner.clone()),
        Some(proto::owner::Who::Name(_)) | None => None,
    });
    resources.collect()
}

const KEYS_PER_PAGE: u32 = 5_000;
const RECORDS_PER_PAGE: u32 = 500;
