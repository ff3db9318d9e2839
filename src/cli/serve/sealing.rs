//! The keys with which `xds serve --store` encrypts secrets.

use std::fs;
use std::io;
use std::path::PathBuf;

use clap::Args;
use xds::{TypeUrl, type_name};
use xds_store::engine::{Engine, SealedEngine};
use xds_store::seal::{Seal, SealKeys, SealKeysError};

use crate::cli::Failure;

#[derive(Debug, Args)]
#[command(next_help_heading = "Store")]
pub(super) struct SealOptions {
    /// Encrypt secrets in the store and in its backups: a file with a line `ID BASE64` for each key,
    /// of 32 bytes. `openssl rand -base64 32` makes one
    ///
    /// The first key encrypts, all decrypt: to replace a key, put the new one first, and keep the old
    /// one as long as a record or the history needs it. What was written without keys stays as it is
    /// until it is written again. Without these keys nobody can read the secrets: keep a copy of them
    /// apart from the backups.
    #[arg(long, value_name = "FILE", requires = "store")]
    seal_keys: Option<PathBuf>,
    /// A type to encrypt [default: SDS]
    #[arg(long, value_name = "TYPE", value_parser = parse_type, requires = "seal_keys")]
    seal: Vec<TypeUrl>,
}

/// Why a file has no seal keys.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum SealError {
    #[error("--seal-keys {}: {error}", file.display())]
    Unreadable { file: PathBuf, error: io::Error },
    #[error("--seal-keys {}: {error}", file.display())]
    Invalid { file: PathBuf, error: SealKeysError },
}

impl SealOptions {
    /// The engine with what seals its contents, if keys are given.
    pub(super) fn sealed(&self, engine: Box<dyn Engine>) -> Result<Box<dyn Engine>, Failure> {
        let Some(file) = &self.seal_keys else { return Ok(engine) };
        let keys = self.keys(file.clone()).map_err(Failure::Seal)?;
        let secrets = [TypeUrl::from(xds::type_url::SECRET)];
        let types = if self.seal.is_empty() { &secrets[..] } else { &self.seal };
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| Failure::System(error.into()))?;
        let seal = Seal::new(keys, types.iter().cloned());
        Ok(Box::new(SealedEngine::new(engine, seal, seed)))
    }

    fn keys(&self, file: PathBuf) -> Result<SealKeys, SealError> {
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) => return Err(SealError::Unreadable { file, error }),
        };
        SealKeys::parse(&text).map_err(|error| SealError::Invalid { file, error })
    }
}

impl SealError {
    pub(in crate::cli) fn exit_code(&self) -> u8 {
        match self {
            Self::Unreadable { .. } => 1,
            Self::Invalid { .. } => 2,
        }
    }
}

fn parse_type(text: &str) -> Result<TypeUrl, String> {
    type_name::parse_any(text).map_err(|error| error.to_string())
}
