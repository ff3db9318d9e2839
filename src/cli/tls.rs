//! TLS options for a server on the command line, which is given by an option with the id `server`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use xds::client::bootstrap::{ChannelCredentials, IdentityFiles, TlsFiles};

#[derive(Debug, Clone, Args)]
pub(super) struct Tls {
    /// Connect with TLS; the certificate of the server must be trusted by the system, or by --ca
    #[arg(long, requires = "server", help_heading = SERVER)]
    tls: bool,
    /// Connect with TLS, and trust these certificates (PEM)
    #[arg(long, value_name = "FILE", requires = "server", help_heading = SERVER)]
    ca: Option<PathBuf>,
    /// Connect with TLS, and present this certificate (PEM); needs --key
    #[arg(long, value_name = "FILE", requires_all = ["server", "key"], help_heading = SERVER)]
    cert: Option<PathBuf>,
    /// The key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = SERVER)]
    key: Option<PathBuf>,
}

impl Tls {
    pub(super) fn credentials(&self, uri: &str) -> ChannelCredentials {
        let Self { tls, ca, cert, key } = self;
        let is_https = uri.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
        if !(*tls || is_https || ca.is_some() || cert.is_some()) {
            return ChannelCredentials::Insecure;
        }
        let identity = cert.clone().zip(key.clone());
        ChannelCredentials::Tls(TlsFiles {
            ca_certificate_file: ca.clone(),
            identity: identity.map(|(certificate_file, private_key_file)| IdentityFiles {
                certificate_file,
                private_key_file,
            }),
            refresh_interval: REFRESH_INTERVAL,
        })
    }
}

/// The default of bootstrap documents.
const REFRESH_INTERVAL: Duration = Duration::from_secs(600);

const SERVER: &str = "Server";
