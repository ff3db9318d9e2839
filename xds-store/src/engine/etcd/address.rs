//! Where a store is in etcd.

use std::fmt;
use std::str::FromStr;

use crate::engine::EngineLimits;

/// The members of an etcd and a prefix: `etcd://HOST:PORT,HOST:PORT/PREFIX`, with TLS `etcds://..`.
///
/// All keys of the store begin with `/PREFIX/`. Options follow a `?`, joined by `&`:
/// `max-txn-ops=N` and `max-request-bytes=N` are the values of etcd's flags of these names, where
/// they differ from etcd's defaults, 128 and 1572864 (ST43).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdAddress {
    pub(super) is_tls: bool,
    /// `HOST:PORT`.
    pub(super) members: Vec<String>,
    /// With a slash at both ends.
    pub(super) prefix: String,
    pub(super) limits: EngineLimits,
}

/// Why a text is no [`EtcdAddress`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// It does not begin with `etcd://` or `etcds://`.
    #[error("the address begins with neither etcd:// nor etcds://")]
    Scheme,
    /// A member is not `HOST:PORT`.
    #[error("{member:?} is not HOST:PORT")]
    Member {
        /// The text between two commas.
        member: String,
    },
    /// An etcd may have the keys of others, so there is no default. A prefix has at most 90 bytes.
    #[error("the address has no prefix of 1 to {PREFIX_BYTES} bytes: write etcd://HOST:PORT/PREFIX")]
    Prefix,
    /// An unknown option, or one whose value is not a number above zero.
    #[error("{option:?} is neither max-txn-ops=N nor max-request-bytes=N")]
    Option {
        /// The text between two `&`.
        option: String,
    },
}

impl FromStr for EtcdAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let (is_tls, rest) = match (text.strip_prefix("etcd://"), text.strip_prefix("etcds://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            (None, None) => return Err(AddressError::Scheme),
        };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (members, prefix) = rest.split_once('/').ok_or(AddressError::Prefix)?;
        let prefix = prefix.trim_matches('/');
        if prefix.is_empty() || prefix.len() > PREFIX_BYTES || prefix.contains(char::is_control) {
            return Err(AddressError::Prefix);
        }
        let members = members.split(',').map(|member| match member.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(member.to_owned()),
            _ => Err(AddressError::Member { member: member.to_owned() }),
        });
        let mut limits = EngineLimits {
            operations: OPERATIONS,
            bytes: BYTES,
            operations_option: "--max-txn-ops of etcd, with `max-txn-ops` in the address of the store,",
            bytes_option: "--max-request-bytes of etcd, with `max-request-bytes` in the address of the store,",
            ..EngineLimits::default()
        };
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match (name, value.parse().ok().filter(|value| *value > 0)) {
                ("max-txn-ops", Some(value)) => limits.operations = value,
                ("max-request-bytes", Some(value)) => limits.bytes = value,
                _ => return Err(AddressError::Option { option: option.to_owned() }),
            }
        }
        limits.bytes = limits.bytes.saturating_sub(HEADER_BYTES);
        Ok(Self {
            is_tls,
            members: members.collect::<Result<_, _>>()?,
            prefix: format!("/{prefix}/"),
            limits,
        })
    }
}

impl fmt::Display for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "etcds" } else { "etcd" };
        write!(f, "{scheme}://{}{}", self.members.join(","), self.prefix.trim_end_matches('/'))
    }
}

/// The default of etcd's `--max-txn-ops`.
const OPERATIONS: usize = 128;
/// The default of etcd's `--max-request-bytes`.
const BYTES: usize = 1_572_864;
/// What etcd adds to a request.
const HEADER_BYTES: usize = 1024;
/// So that it is within what an engine counts for each operation.
const PREFIX_BYTES: usize = 90;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_members_a_prefix_and_limits() {
        let address: EtcdAddress = "etcds://a:1,[::1]:2/xds/prod?max-txn-ops=9".parse().unwrap();
        assert_eq!(address.to_string(), "etcds://a:1,[::1]:2/xds/prod");
        assert_eq!((&*address.prefix, address.limits.operations), ("/xds/prod/", 9));
        for (text, error) in [
            ("http://a:1/x", AddressError::Scheme),
            ("etcd://a:1", AddressError::Prefix),
            ("etcd://a:1/", AddressError::Prefix),
            ("etcd://a/x", AddressError::Member { member: "a".into() }),
            ("etcd://a:1,/x", AddressError::Member { member: String::new() }),
            ("etcd://a:1/x?max-txn-ops=0", AddressError::Option { option: "max-txn-ops=0".into() }),
            ("etcd://a:1/x?user=me", AddressError::Option { option: "user=me".into() }),
        ] {
            assert_eq!(text.parse::<EtcdAddress>(), Err(error), "{text}");
        }
    }
}
