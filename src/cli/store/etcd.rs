//! Access to an etcd that has a store.

use std::path::{Path, PathBuf};

use clap::Args;
use tokio::runtime::Handle;
use xds_store::engine::{EtcdAccess, EtcdAddress, EtcdEngine};

use super::place::{Place, PlaceError, causes};

#[derive(Debug, Args)]
#[command(next_help_heading = "Store in etcd")]
pub(in crate::cli) struct EtcdOptions {
    /// A file with the user of etcd and the password: one line `USER:PASSWORD`
    #[arg(long, value_name = "FILE")]
    etcd_user_file: Option<PathBuf>,
    /// With etcds://, trust these certificates (PEM), instead of those that the system trusts
    #[arg(long, value_name = "FILE")]
    etcd_ca: Option<PathBuf>,
    /// With etcds://, present this certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_key")]
    etcd_cert: Option<PathBuf>,
    /// The key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,
}

impl EtcdOptions {
    /// Refuses options that another place does not use.
    pub(super) fn check(&self, place: &Place) -> Result<(), PlaceError> {
        let Self { etcd_user_file, etcd_ca, etcd_cert, etcd_key } = self;
        let is_given = [etcd_user_file, etcd_ca, etcd_cert, etcd_key].iter().any(|option| option.is_some());
        match place {
            Place::Folder(_) | Place::Memory if is_given => {
                let cause = "--etcd-user-file, --etcd-ca and --etcd-cert are for a store in etcd".to_owned();
                Err(PlaceError::Access { place: place.clone(), cause })
            }
            _ => Ok(()),
        }
    }

    /// The engine at an address. Nothing is sent yet.
    pub(super) fn engine(&self, address: &EtcdAddress, runtime: Handle) -> Result<EtcdEngine, PlaceError> {
        let access = EtcdAccess {
            user: self.etcd_user_file.as_deref().map(user).transpose()?,
            ca: self.etcd_ca.as_deref().map(read).transpose()?,
            identity: match (&self.etcd_cert, &self.etcd_key) {
                (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
                _ => None,
            },
        };
        EtcdEngine::new(runtime, address.clone(), &access).map_err(|error| PlaceError::Access {
            place: Place::Etcd(Box::new(address.clone())),
            cause: causes(&error),
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, PlaceError> {
    let read = xds_file::read_once(path, FILE_BYTES);
    read.map_err(|error| PlaceError::File { path: path.to_owned(), cause: error.to_string() })
}

fn user(path: &Path) -> Result<(String, String), PlaceError> {
    let refused = |cause: &str| PlaceError::File { path: path.to_owned(), cause: cause.to_owned() };
    let text = String::from_utf8(read(path)?).map_err(|_| refused("it is no text"))?;
    let line = text.trim_end_matches(['\r', '\n']);
    match line.split_once(':') {
        Some((user, password)) if !user.is_empty() && !line.contains('\n') => {
            Ok((user.into(), password.into()))
        }
        _ => Err(refused("it is not one line USER:PASSWORD")),
    }
}

/// Of a certificate, a key or a password.
const FILE_BYTES: usize = 1 << 20;
