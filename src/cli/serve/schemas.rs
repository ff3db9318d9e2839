//! The schema versions that `xds serve --store` knows.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use xds::folder::Descriptors;
use xds::{TypeUrl, type_name};
use xds_store::phase::{SchemaError, Schemas};
use xds_store::schema::SchemaVersion;

use crate::cli::Failure;
use document::SchemaMistake;

mod document;

#[derive(Debug, Args)]
#[command(next_help_heading = "Store")]
pub(super) struct SchemaOptions {
    /// The schema versions of types, and the plans that migrate resources: a YAML file. docs/store.md has
    /// its format
    ///
    /// It is read at the start. All servers of a store need the same plans. A store in which a plan has
    /// begun that this file does not have is refused.
    #[arg(long, value_name = "FILE", requires = "store")]
    schemas: Option<PathBuf>,
    /// Behave as a server that knows no later schema version of this type, such as RDS=1.1. May be
    /// repeated
    ///
    /// Below the major version of the new form of a plan, the server writes and serves the old form alone.
    #[arg(long, value_name = "TYPE=VERSION", value_parser = ceiling, requires = "store")]
    schema_ceiling: Vec<(TypeUrl, SchemaVersion)>,
}

/// Why the schema versions of the options cannot be used.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum SchemasError {
    #[error("--schemas {}: {error}", file.display())]
    Unreadable { file: PathBuf, error: io::Error },
    /// At least one error.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid(Vec<SchemaMistake>),
    #[error("--schema-ceiling: {0}")]
    Ceiling(SchemaError),
}

impl SchemaOptions {
    pub(super) fn read(&self, descriptors: &Descriptors) -> Result<Schemas, Failure> {
        let read = |file: &Path| read(file, descriptors);
        let declared = self.schemas.as_deref().map_or_else(|| Ok(Schemas::default()), read);
        let add = |schemas: Schemas, (type_url, version): &(TypeUrl, SchemaVersion)| {
            schemas.with_ceiling(type_url.as_str(), *version).map_err(SchemasError::Ceiling)
        };
        let schemas = declared.and_then(|declared| self.schema_ceiling.iter().try_fold(declared, add));
        schemas.map_err(Failure::Schemas)
    }
}

fn read(file: &Path, descriptors: &Descriptors) -> Result<Schemas, SchemasError> {
    let text = xds_file::read_to_string(file, FILE_LIMIT_BYTES)
        .map_err(|error| SchemasError::Unreadable { file: file.to_owned(), error })?;
    document::parse(&text, file, descriptors).map_err(SchemasError::Invalid)
}

impl SchemasError {
    pub(in crate::cli) fn exit_code(&self) -> u8 {
        match self {
            Self::Unreadable { .. } => 1,
            Self::Invalid(_) | Self::Ceiling(_) => 2,
        }
    }
}

fn ceiling(text: &str) -> Result<(TypeUrl, SchemaVersion), String> {
    let (word, version) = text.rsplit_once('=').ok_or("write TYPE=VERSION, such as RDS=1.1")?;
    let type_url = type_name::parse_any(word).map_err(|error| error.to_string())?;
    Ok((type_url, version.parse::<SchemaVersion>().map_err(|error| error.to_string())?))
}

/// The largest file, in bytes.
const FILE_LIMIT_BYTES: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use clap::Parser;
    use xds::type_url as url;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[arg(long)]
        store: bool,
        #[command(flatten)]
        schemas: SchemaOptions,
    }

    fn parse(arguments: &str) -> Result<Schemas, String> {
        let words = ["xds", "--store"].into_iter().chain(arguments.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        line.schemas.read(&Descriptors::envoy()).map_err(|error| error.to_string())
    }

    #[test]
    fn sv2_a_ceiling_limits_the_version_of_a_type() {
        let schemas = parse("--schema-ceiling cds=1.1 --schema-ceiling acme.v1.T=1").unwrap();
        let shown = format!("{schemas:?}");
        assert!(shown.contains(url::CLUSTER) && shown.contains("type.googleapis.com/acme.v1.T"), "{shown}");
        let error = |arguments: &str| parse(arguments).unwrap_err();
        assert_eq!(
            error("--schema-ceiling CDS=1 --schema-ceiling cds=1.1"),
            format!("error: --schema-ceiling: the type {} has two ceilings", url::CLUSTER)
        );
        assert!(error("--schema-ceiling CDS").contains("write TYPE=VERSION, such as RDS=1.1"));
        assert!(error("--schema-ceiling CDS=0.1").contains("a schema version is MAJOR.MINOR"));
        assert!(error("--schema-ceiling XYZ=1").contains("no type is called \"XYZ\""));
    }
}
