//! The records that a command is about.

use clap::Args;
use xds::TypeUrl;
use xds_proto::xds::store::v1 as proto;

use super::connection::Connection;
use super::error::StoreError;
use super::records;
use crate::cli::shown::resource_label;
use crate::cli::{Failure, type_name};

/// The record that a command is about.
#[derive(Debug, Args)]
pub(super) struct RecordName {
    /// LDS, RDS, SRDS, VHDS, CDS, EDS, LEDS, SDS, RTDS, ECDS, a message (Cluster, acme.Thing) or a
    /// whole type URL
    #[arg(value_name = "TYPE")]
    type_name: String,
    /// The name of the resource
    #[arg(value_name = "NAME")]
    name: String,
    /// Which of several variants: its `when:`; an empty text is the one without constraints
    #[arg(long, value_name = "WHEN")]
    when: Option<String>,
}

impl RecordName {
    pub(super) fn of(
        type_name: Option<&String>,
        name: Option<&String>,
        when: Option<&String>,
    ) -> Option<Self> {
        Some(Self { type_name: type_name?.clone(), name: name?.clone(), when: when.cloned() })
    }

    pub(super) fn type_url(&self) -> Result<TypeUrl, Failure> {
        type_name::parse_any(&self.type_name).map_err(Failure::Type)
    }

    pub(super) async fn key(
        &self,
        connection: &Connection,
        type_url: &TypeUrl,
    ) -> Result<proto::Key, StoreError> {
        key(connection, type_url, &self.name, self.when.as_deref()).await
    }
}

/// The variant that a command is about: that of `--when`, or else the only one of the name. Without
/// any record it is the one without constraints, whose history may still be there.
pub(super) async fn key(
    connection: &Connection,
    type_url: &TypeUrl,
    name: &str,
    when: Option<&str>,
) -> Result<proto::Key, StoreError> {
    let key = |when: &str| proto::Key {
        type_url: type_url.as_str().to_owned(),
        name: name.to_owned(),
        when: when.to_owned(),
    };
    if let Some(when) = when {
        return Ok(key(when));
    }
    let filter = proto::Filter {
        type_urls: vec![type_url.as_str().to_owned()],
        names: vec![name.to_owned()],
        ..proto::Filter::default()
    };
    let mut found = Vec::new();
    records::list(connection, filter, true, |record| {
        found.extend(record.key);
        Ok(())
    })
    .await?;
    match &found[..] {
        [] => Ok(key("")),
        [only] => Ok(only.clone()),
        several => {
            let variants: Vec<_> = several.iter().map(|key| format!("--when {:?}", key.when)).collect();
            let label = resource_label(type_url, name);
            Err(StoreError::Input(format!(
                "{label} has several variants: add one of {}",
                variants.join(", ")
            )))
        }
    }
}
