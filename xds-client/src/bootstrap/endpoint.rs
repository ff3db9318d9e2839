//! The address in a server URI.

use tonic::transport::Uri;

use super::ChannelCredentials;

/// The address to connect to, in the form that [`tonic::transport::Endpoint::from_shared`] takes.
///
/// A server URI is a gRPC target or a URL. The credentials decide whether TLS is used:
///
/// | text | with `insecure` | with `tls` |
/// | --- | --- | --- |
/// | `host:1`, `dns:host:1`, `dns:///host:1`, `passthrough:///host:1` | `http://host:1` | `https://host:1` |
/// | `ipv4:192.0.2.1:1`, `ipv6:[2001:db8::1]:1` | `http://192.0.2.1:1`, `http://[2001:db8::1]:1` | the same with `https` |
/// | `host`, and all of the above without port | `http://host:443`, as in gRPC | `https://host:443` |
/// | `http://host`, `http://host:1/` | `http://host`, `http://host:1` | `https://host`, `https://host:1` |
/// | `https://host:1` | refused, because the connection would not have the TLS of the text | `https://host:1` |
/// | `unix:/path`, `unix:///path`, `unix:path` | `unix:///path`, `unix://path` | refused, because tonic has no TLS there |
///
/// A word followed by a number, such as `dns:53`, is a host with its port. Not supported: a name
/// server in the text (`dns://192.0.2.1/host`), lists of addresses, and the schemes `xds`,
/// `unix-abstract` and `vsock`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint(String);

/// Why a server URI is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServerUriError {
    /// The scheme is not supported.
    #[error("the scheme of {uri:?} is not supported; use dns, ipv4, ipv6, passthrough, http, https or unix")]
    UnsupportedScheme {
        /// The URI.
        uri: String,
    },
    /// The host is missing, the port is not a number from 1 to 65535, or other text follows.
    #[error("{uri:?} is not one host with a port")]
    BadAddress {
        /// The URI.
        uri: String,
    },
    /// The path of a Unix socket is the root, or the URI also has a host.
    #[error("{uri:?} does not have the path of a socket")]
    BadSocketPath {
        /// The URI.
        uri: String,
    },
    /// `https` with insecure credentials.
    #[error("{uri:?} requires TLS, but its credentials are insecure")]
    InsecureHttps {
        /// The URI.
        uri: String,
    },
    /// A Unix socket with TLS credentials.
    #[error("{uri:?} is a Unix socket, which does not support TLS")]
    TlsOverUnix {
        /// The URI.
        uri: String,
    },
}

impl Endpoint {
    pub(super) fn new(text: &str, credentials: &ChannelCredentials) -> Result<Self, ServerUriError> {
        let uri = || text.to_owned();
        let is_tls = match credentials {
            ChannelCredentials::Insecure => false,
            ChannelCredentials::Tls(_) => true,
        };
        let scheme = if is_tls { "https" } else { "http" };
        let address = |text| Address::of(text).ok_or_else(|| ServerUriError::BadAddress { uri: uri() });
        match UriForm::of(text) {
            UriForm::Https(_) if !is_tls => Err(ServerUriError::InsecureHttps { uri: uri() }),
            UriForm::Http(text) | UriForm::Https(text) => {
                Ok(Self(format!("{scheme}://{}", address(text)?.text)))
            }
            UriForm::Target(text) => match address(text)? {
                Address { text, has_port: true } => Ok(Self(format!("{scheme}://{text}"))),
                Address { text, has_port: false } => Ok(Self(format!("{scheme}://{text}:443"))),
            },
            UriForm::Unix(_) if is_tls => Err(ServerUriError::TlsOverUnix { uri: uri() }),
            UriForm::Unix("/") => Err(ServerUriError::BadSocketPath { uri: uri() }),
            UriForm::Unix(path) if path.starts_with("//") => {
                Err(ServerUriError::BadSocketPath { uri: uri() })
            }
            UriForm::Unix(path) => Ok(Self(format!("unix://{path}"))),
            UriForm::Unsupported => Err(ServerUriError::UnsupportedScheme { uri: uri() }),
        }
    }

    /// The URI, with one of the schemes `http`, `https` and `unix`.
    #[must_use]
    pub fn uri(&self) -> &str {
        &self.0
    }

    /// Whether the connection uses TLS, which is the case for the scheme `https`.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.0.starts_with("https:")
    }
}

/// A URI by its scheme; the text does not include the scheme.
enum UriForm<'a> {
    /// A target of gRPC, with or without a scheme.
    Target(&'a str),
    Http(&'a str),
    Https(&'a str),
    Unix(&'a str),
    Unsupported,
}

impl<'a> UriForm<'a> {
    fn of(text: &'a str) -> Self {
        let Some((scheme, rest)) = text.split_once(':') else { return Self::Target(text) };
        // A host with its port, and an IPv6 address.
        if rest.bytes().all(|byte| byte.is_ascii_digit()) || scheme.starts_with('[') {
            return Self::Target(text);
        }
        let url = || rest.strip_prefix("//").map_or("", |url| url.strip_suffix('/').unwrap_or(url));
        match scheme.to_ascii_lowercase().as_str() {
            "dns" | "ipv4" | "ipv6" | "passthrough" => Self::Target(rest.strip_prefix("///").unwrap_or(rest)),
            "http" => Self::Http(url()),
            "https" => Self::Https(url()),
            "unix" if rest.starts_with("///") => Self::Unix(&rest[2..]),
            "unix" => Self::Unix(rest),
            _ => Self::Unsupported,
        }
    }
}

/// One host with its port, if it has one.
struct Address<'a> {
    text: &'a str,
    has_port: bool,
}

impl<'a> Address<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let uri: Uri = format!("http://{text}").parse().ok()?;
        // Otherwise a path or other text follows.
        let authority = uri.authority().filter(|authority| authority.as_str() == text)?;
        let has_port = authority.host() != text;
        let is_port_good = !has_port || authority.port_u16().is_some_and(|port| port != 0);
        (is_port_good && !authority.host().is_empty() && !text.contains('@'))
            .then_some(Self { text, has_port })
    }
}
