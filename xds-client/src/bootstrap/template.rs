//! From the target of a gRPC client, or the address of a gRPC server, to the name of its listener.

use std::fmt;

use xds_core::{ResourceName, XdstpName};

/// The name of a listener in which every `%s` stands for a target or an address (C18).
///
/// The target is percent-encoded when the template is a new-style name, and else put in as it is:
///
/// ```
/// use xds_client::bootstrap::ListenerTemplate;
///
/// assert_eq!(ListenerTemplate::new("grpc/server?%s").name_of("[::1]:80").as_str(), "grpc/server?[::1]:80");
/// let template = ListenerTemplate::of_authority("xds.example");
/// assert_eq!(
///     template.name_of("[::1]:80").as_str(),
///     "xdstp://xds.example/envoy.config.listener.v3.Listener/%5B::1%5D:80"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerTemplate(String);

impl ListenerTemplate {
    /// Takes the text as it is. Without any `%s` it is the one name for all targets.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The default one of an authority: `xdstp://<authority>/envoy.config.listener.v3.Listener/%s`.
    #[must_use]
    pub fn of_authority(authority: &str) -> Self {
        Self(format!("{}envoy.config.listener.v3.Listener/{TARGET}", Self::prefix_of_authority(authority)))
    }

    /// How all templates of an authority start.
    pub(super) fn prefix_of_authority(authority: &str) -> String {
        format!("xdstp://{}/", escaped(authority, b"-._~!$&'()*+,;=:@[]"))
    }

    /// The name for a target.
    #[must_use]
    pub fn name_of(&self, target: &str) -> ResourceName {
        if XdstpName::is_new_style(&self.0) {
            ResourceName::new(self.0.replace(TARGET, &escaped(target, b"-._~!$&'()*+,;=:@/")))
        } else {
            ResourceName::new(self.0.replace(TARGET, target))
        }
    }

    /// The template itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The target is the name, which is the default where there is no authority.
impl Default for ListenerTemplate {
    fn default() -> Self {
        Self::new(TARGET)
    }
}

impl fmt::Display for ListenerTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// X5: everything but letters, digits and what RFC 3986 lets stand in that part of a URI. Names are
/// compared decoded, so what is escaped beyond need is the same name.
fn escaped(text: &str, kept: &[u8]) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || kept.contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

const TARGET: &str = "%s";
