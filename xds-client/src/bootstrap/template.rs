//! Makes the name of a listener from the target of a gRPC client, or from the address of a gRPC
//! server.

use std::fmt;

use xds_core::{ResourceName, XdstpName};

/// A listener name in which every `%s` is replaced by a target or an address (C18).
///
/// The target is percent-encoded if the template is a new-style name, else inserted unchanged:
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
    /// A template with this text. Without `%s` it gives the same name for all targets.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The default template of an authority:
    /// `xdstp://<authority>/envoy.config.listener.v3.Listener/%s`.
    #[must_use]
    pub fn of_authority(authority: &str) -> Self {
        Self(format!("{}envoy.config.listener.v3.Listener/{TARGET}", Self::prefix_of_authority(authority)))
    }

    /// The prefix of all templates of an authority.
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

    /// The text of the template.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The name is the target: the default for names without an authority.
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

/// X5: escapes everything except letters, digits and the characters that RFC 3986 allows in that
/// part of a URI. Names are compared decoded, so unnecessary escapes do not change a name.
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
