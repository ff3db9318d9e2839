//! The bootstrap document of gRPC: the servers, and the node of this client (C17).
//!
//! The same JSON document works for gRPC and for this client. It becomes plain data with public
//! fields, which a program can change or build itself. This module does not connect to servers, and
//! does not open the files that the document names.
//!
//! ```
//! use xds_client::bootstrap::{Bootstrap, ChannelCredentials};
//!
//! let bootstrap = Bootstrap::from_json(
//!     r#"{
//!       "xds_servers": [{ "server_uri": "xds.example:443", "channel_creds": [{ "type": "tls" }] }],
//!       "node": { "id": "checkout-1", "locality": { "zone": "b" } },
//!       "dynamic_parameters": { "env": "prod" }
//!     }"#,
//! )?;
//! assert!(matches!(bootstrap.servers[0].credentials, ChannelCredentials::Tls(_)));
//! assert_eq!(bootstrap.servers[0].endpoint()?.uri(), "https://xds.example:443");
//! assert_eq!(bootstrap.parameters.get("env").map(AsRef::as_ref), Some("prod"));
//!
//! let error = Bootstrap::from_json(r#"{ "xds_servers": [{ "server_uri": 1 }] }"#).unwrap_err();
//! assert_eq!(error.to_string(), "xds_servers[0].server_uri: expected a string, found a number");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Choices where the proposals of gRPC are silent or differ:
//!
//! - Unknown keys are ignored, and so are unknown `server_features`, `call_creds` and plugins of
//!   `certificate_providers`. A known key with a value of the wrong type is an error with its path.
//! - `null`, the empty string and an absent key mean the same.
//! - There are no guards. A feature that gRPC enables by an environment variable (federation,
//!   fallback, data error handling, call credentials, dynamic parameters) is on if the document
//!   uses it.
//! - `dynamic_parameters` (draft of gRFC A67) maps strings to strings. A value of another type is
//!   an error; the draft does not specify it (P3.7). A key or an authority with control characters
//!   is an error too (W2).
//! - `google_default` is not supported and skipped. `allowed_grpc_services` is ignored.
//!
//! | module | holds |
//! | --- | --- |
//! | `server` | [`Server`]: its URI, credentials and features |
//! | `endpoint` | [`Endpoint`]: the address in a server URI |
//! | `files` | [`TlsFiles`]: files that hold certificates, and providers of them |
//! | `authority` | [`Authority`], and the parameters of both levels |
//! | `template` | [`ListenerTemplate`]: makes the name of a listener from a target |
//! | `node` | the node |
//! | `json` | JSON values with their paths, for errors |
//! | `error` | [`BootstrapError`] |

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::str::FromStr;

use serde_json::Value;
use xds_core::{Parameters, ResourceName};
use xds_proto::envoy::config::core::v3::Node;

use json::JsonValue;

pub use authority::Authority;
pub use endpoint::{Endpoint, ServerUriError};
pub use error::{BootstrapError, JsonType};
pub use files::{CertificateProvider, IdentityFiles, TlsFiles};
pub use server::{CallCredentials, ChannelCredentials, Server, ServerFeatures};
pub use template::ListenerTemplate;

mod authority;
mod endpoint;
mod error;
mod files;
mod json;
mod node;
mod server;
mod template;

/// The configuration of a client before it connects to a server. It is read once: a change needs a
/// restart (P3.5).
#[derive(Debug, Clone, PartialEq)]
pub struct Bootstrap {
    /// The servers for old-style names, and for authorities without their own servers; the most
    /// preferred first (C15). Never empty after it was read.
    pub servers: Vec<Server>,
    /// The node of this client. The user agent and the client features are not part of the
    /// document; the client adds them.
    pub node: Node,
    /// The servers for new-style names, by authority; `""` is the authority of names without one
    /// (C16).
    pub authorities: BTreeMap<String, Authority>,
    /// The parameters for all subscriptions to old-style names (T40, X17). If empty, the client
    /// subscribes without locators.
    pub parameters: Parameters,
    /// The listener name of a gRPC client whose target has no authority (C18).
    pub client_listener_template: ListenerTemplate,
    /// The listener name of a gRPC server by its address; without it, no server can be configured.
    pub server_listener_template: Option<ListenerTemplate>,
    /// The certificate providers that resources refer to, by name.
    pub certificate_providers: BTreeMap<String, CertificateProvider>,
}

impl Bootstrap {
    /// Reads the bootstrap document from `GRPC_XDS_BOOTSTRAP` or `GRPC_XDS_BOOTSTRAP_CONFIG`. An
    /// empty variable counts as unset.
    ///
    /// The first variable names a file, the second contains the text. The file takes precedence; if
    /// the file is invalid, the text is not used instead (P7). Blocks while the file is read.
    ///
    /// # Errors
    /// If neither variable is set, and those of [`from_file`](Self::from_file) and
    /// [`from_json`](Self::from_json).
    pub fn from_env() -> Result<Self, BootstrapError> {
        Self::from_variables(|variable| std::env::var_os(variable))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, BootstrapError> {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        if let Some(file) = variable(FILE_VARIABLE) {
            return Self::from_file(file);
        }
        let text = variable(TEXT_VARIABLE).ok_or(BootstrapError::NotSet)?;
        let text = text.to_str().ok_or(BootstrapError::VariableNotUtf8)?;
        Self::from_json(text).map_err(|error| BootstrapError::InVariable { error: Box::new(error) })
    }

    /// Reads a file. Blocks while it does.
    ///
    /// # Errors
    /// If the file is not readable, or its text is invalid; with the name of the file.
    pub fn from_file(file: impl AsRef<Path>) -> Result<Self, BootstrapError> {
        let file = file.as_ref();
        let text =
            xds_file::read_once_to_string(file, FILE_LIMIT_BYTES).map_err(
                |error| match xds_file::refused(&error) {
                    Some(refused) => BootstrapError::Refused { file: file.into(), refused },
                    None => BootstrapError::Unreadable { file: file.into(), kind: error.kind() },
                },
            )?;
        Self::from_json(&text)
            .map_err(|error| BootstrapError::InFile { file: file.into(), error: Box::new(error) })
    }

    /// Reads the text of a bootstrap document.
    ///
    /// # Errors
    /// If the text is not JSON, with line and column; if a value is invalid, with its path.
    pub fn from_json(text: &str) -> Result<Self, BootstrapError> {
        let document: Value = serde_json::from_str(text).map_err(|error| BootstrapError::Syntax {
            line: error.line(),
            column: error.column(),
            reason: error.to_string(),
        })?;
        let document = JsonValue::root(&document).object()?;
        let servers = server::read_list(document.get("xds_servers"))?;
        if servers.is_empty() {
            return Err(document.missing("xds_servers"));
        }
        let template = |key| Ok(document.text(key)?.map(ListenerTemplate::new));
        Ok(Self {
            servers,
            node: document.get("node").map(node::read).transpose()?.unwrap_or_default(),
            authorities: authority::read_all(document.get("authorities"))?,
            parameters: authority::read_parameters(document.get("dynamic_parameters"))?,
            client_listener_template: template("client_default_listener_resource_name_template")?
                .unwrap_or_default(),
            server_listener_template: template("server_listener_resource_name_template")?,
            certificate_providers: files::read_providers(document.get("certificate_providers"))?,
        })
    }

    /// A document with one server without TLS and an empty node.
    ///
    /// ```
    /// use xds_client::bootstrap::Bootstrap;
    ///
    /// let mut bootstrap = Bootstrap::to_server("http://127.0.0.1:18000");
    /// bootstrap.node.id = "checkout-1".to_owned();
    /// ```
    pub fn to_server(uri: impl Into<String>) -> Self {
        Self {
            servers: vec![Server::insecure(uri)],
            node: Node::default(),
            authorities: BTreeMap::new(),
            parameters: Parameters::new(),
            client_listener_template: ListenerTemplate::default(),
            server_listener_template: None,
            certificate_providers: BTreeMap::new(),
        }
    }

    /// The listener name that a gRPC client of `xds://authority/target`, or of `xds:///target`,
    /// subscribes to (C18). `None` if there is no such authority; this is an error of that client
    /// alone (X15).
    #[must_use]
    pub fn listener_name(&self, authority: Option<&str>, target: &str) -> Option<ResourceName> {
        let Some(name) = authority else { return Some(self.client_listener_template.name_of(target)) };
        Some(match &self.authorities.get(name)?.client_listener_template {
            Some(template) => template.name_of(target),
            None => ListenerTemplate::of_authority(name).name_of(target),
        })
    }
}

/// The same as [`Bootstrap::from_json`].
impl FromStr for Bootstrap {
    type Err = BootstrapError;

    fn from_str(text: &str) -> Result<Self, BootstrapError> {
        Self::from_json(text)
    }
}

/// The size limit of the file.
const FILE_LIMIT_BYTES: usize = 16 << 20;

const FILE_VARIABLE: &str = "GRPC_XDS_BOOTSTRAP";
const TEXT_VARIABLE: &str = "GRPC_XDS_BOOTSTRAP_CONFIG";

#[cfg(test)]
mod tests;
