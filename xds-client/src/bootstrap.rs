//! Where the servers are and who this client is: the bootstrap file of gRPC (C17).
//!
//! One JSON document serves gRPC and this client. What it says is plain data with public fields, to
//! be changed or built in place; nothing here connects to anything or opens the files that are
//! named.
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
//! What is read, beyond what the proposals of gRPC say in one voice:
//!
//! - A key that nothing here knows is ignored, as are `server_features`, `call_creds` and plugins
//!   of `certificate_providers` that nothing here knows. A known key of the wrong type is an error
//!   with its path.
//! - `null`, the empty string and an absent key are the same.
//! - There are no guards. What gRPC hides behind an environment variable (federation, fallback,
//!   data error handling, call credentials, dynamic parameters) is on when the document says so.
//! - `dynamic_parameters` (draft of gRFC A67) maps strings to strings; a value of another type is
//!   an error, on which the draft is silent (P3.7). So is a key with control characters, or an
//!   authority (W2).
//! - `google_default` is not supported, so it is passed over. `allowed_grpc_services` is ignored.
//!
//! | module | holds |
//! | --- | --- |
//! | `server` | [`Server`]: its URI, credentials and features |
//! | `endpoint` | [`Endpoint`]: what the text of a URI means |
//! | `files` | [`TlsFiles`]: files that hold certificates, and providers of them |
//! | `authority` | [`Authority`], and the parameters of both levels |
//! | `template` | [`ListenerTemplate`]: from a target to the name of a listener |
//! | `node` | the node |
//! | `json` | values that know their path |
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

/// What a client is told before it talks to any server. Read once: a change needs a restart (P3.5).
#[derive(Debug, Clone, PartialEq)]
pub struct Bootstrap {
    /// Who serves old-style names, and the authorities that have no servers of their own; the most
    /// preferred first (C15). Not empty when it was read.
    pub servers: Vec<Server>,
    /// Who this client is. User agent and client features are not part of the document; the client
    /// adds them.
    pub node: Node,
    /// Who serves new-style names, by the authority in the name; `""` is the authority of names
    /// without one (C16).
    pub authorities: BTreeMap<String, Authority>,
    /// With these old-style names are asked for, and no others (T40, X17). None: they are asked for
    /// without locators.
    pub parameters: Parameters,
    /// The listener of a gRPC client whose target has no authority (C18).
    pub client_listener_template: ListenerTemplate,
    /// The listener of a gRPC server by its address; without it no server can be configured.
    pub server_listener_template: Option<ListenerTemplate>,
    /// Where resources get certificates that they refer to, by the name that they use.
    pub certificate_providers: BTreeMap<String, CertificateProvider>,
}

impl Bootstrap {
    /// Reads what `GRPC_XDS_BOOTSTRAP` or `GRPC_XDS_BOOTSTRAP_CONFIG` says; an empty variable
    /// counts as unset.
    ///
    /// The first names a file, the second is the text itself. The file wins, and when it is wrong
    /// the text does not replace it (P7). Blocks while the file is read.
    ///
    /// # Errors
    /// When neither is set, and those of [`from_file`](Self::from_file) and
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
    /// When the file cannot be read, or its text is wrong, with the name of the file.
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
    /// When it is no JSON, with line and column; when something in it is wrong, with its path.
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

    /// One server without TLS, and a client that says nothing about itself.
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

    /// The listener that a gRPC client of `xds://authority/target`, or of `xds:///target`, asks for
    /// (C18). `None` when there is no such authority, which is that client's error alone (X15).
    #[must_use]
    pub fn listener_name(&self, authority: Option<&str>, target: &str) -> Option<ResourceName> {
        let Some(name) = authority else { return Some(self.client_listener_template.name_of(target)) };
        Some(match &self.authorities.get(name)?.client_listener_template {
            Some(template) => template.name_of(target),
            None => ListenerTemplate::of_authority(name).name_of(target),
        })
    }
}

/// As [`Bootstrap::from_json`].
impl FromStr for Bootstrap {
    type Err = BootstrapError;

    fn from_str(text: &str) -> Result<Self, BootstrapError> {
        Self::from_json(text)
    }
}

/// The largest file that is read.
const FILE_LIMIT_BYTES: usize = 16 << 20;

const FILE_VARIABLE: &str = "GRPC_XDS_BOOTSTRAP";
const TEXT_VARIABLE: &str = "GRPC_XDS_BOOTSTRAP_CONFIG";

#[cfg(test)]
mod tests;
