//! One management server: its address, its credentials and its features.

use std::path::PathBuf;

use super::json::{JsonValue, Object};
use super::{BootstrapError, Endpoint, ServerUriError, TlsFiles};

/// A management server. Equal values are the same server and share a stream (C16).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Server {
    /// The URI as it was written; [`endpoint`](Self::endpoint) interprets it.
    pub uri: String,
    /// The credentials that server and client show each other.
    pub credentials: ChannelCredentials,
    /// The credentials in each call; all of them apply.
    pub call_credentials: Vec<CallCredentials>,
    /// The features of the server.
    pub features: ServerFeatures,
}

/// The credentials of a connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChannelCredentials {
    /// No TLS.
    Insecure,
    /// TLS, mutual when the files have an identity.
    Tls(TlsFiles),
}

/// Credentials of each call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CallCredentials {
    /// A bearer token in a file (gRFC A97). It must not be sent over a connection without TLS.
    JwtTokenFile(PathBuf),
}

/// The features of a server; all are off by default.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerFeatures {
    /// A non-transient error removes the resource, even if a valid copy is cached (C9).
    pub fail_on_data_errors: bool,
    /// A missing resource is only a transient error, because this server reports absent resources
    /// (gRFC A88).
    pub resource_timer_is_transient_error: bool,
}

impl Server {
    /// A server without TLS.
    pub fn insecure(uri: impl Into<String>) -> Self {
        Self {
            uri: uri.into(),
            credentials: ChannelCredentials::Insecure,
            call_credentials: Vec::new(),
            features: ServerFeatures::default(),
        }
    }

    /// The address to connect to, and whether to use TLS, which depends on the credentials.
    ///
    /// # Errors
    /// If this client cannot connect to such a URI. A server that was read from a document has a
    /// valid one.
    pub fn endpoint(&self) -> Result<Endpoint, ServerUriError> {
        Endpoint::new(&self.uri, &self.credentials)
    }

    fn read(json: JsonValue<'_>) -> Result<Self, BootstrapError> {
        let server = json.object()?;
        let read = Self {
            uri: server.required_text("server_uri")?.to_owned(),
            credentials: ChannelCredentials::read(server.required("channel_creds")?)?,
            call_credentials: read_call_credentials(server.get("call_creds"))?,
            features: ServerFeatures::read(server.get("server_features"))?,
        };
        match read.endpoint() {
            Ok(_) => Ok(read),
            Err(error) => Err(BootstrapError::ServerUri { path: server.path_of("server_uri"), error }),
        }
    }
}

impl ChannelCredentials {
    /// C17: the first supported type is used; later ones are not read.
    fn read(json: JsonValue<'_>) -> Result<Self, BootstrapError> {
        let path = json.path();
        let mut found = Vec::new();
        for json in json.elements()? {
            let credentials = json.object()?;
            match credentials.required_text("type")? {
                "insecure" => return Ok(Self::Insecure),
                "tls" => return read_tls(&credentials).map(Self::Tls),
                other => found.push(other.to_owned()),
            }
        }
        Err(BootstrapError::UnsupportedCredentials { path, found })
    }
}

impl ServerFeatures {
    /// gRFC A30: a value that is not a string is not a known feature.
    fn read(json: Option<JsonValue<'_>>) -> Result<Self, BootstrapError> {
        let mut features = Self::default();
        let Some(json) = json else { return Ok(features) };
        for json in json.elements()? {
            match json.value.as_str() {
                Some("fail_on_data_errors") => features.fail_on_data_errors = true,
                Some("resource_timer_is_transient_error") => {
                    features.resource_timer_is_transient_error = true;
                }
                Some(_) | None => {}
            }
        }
        Ok(features)
    }
}

pub(super) fn read_list(json: Option<JsonValue<'_>>) -> Result<Vec<Server>, BootstrapError> {
    let Some(json) = json else { return Ok(Vec::new()) };
    json.elements()?.map(Server::read).collect()
}

fn read_tls(credentials: &Object<'_>) -> Result<TlsFiles, BootstrapError> {
    let Some(config) = credentials.get("config") else { return Ok(TlsFiles::default()) };
    TlsFiles::read(&config.object()?)
}

/// gRFC A97: unknown types are skipped.
fn read_call_credentials(json: Option<JsonValue<'_>>) -> Result<Vec<CallCredentials>, BootstrapError> {
    let mut read = Vec::new();
    let Some(json) = json else { return Ok(read) };
    for json in json.elements()? {
        let credentials = json.object()?;
        if credentials.required_text("type")? == "jwt_token_file" {
            let config = credentials.required("config")?.object()?;
            read.push(CallCredentials::JwtTokenFile(config.required_text("jwt_token_file")?.into()));
        }
    }
    Ok(read)
}
