//! Format strings of Envoy with command operators, such as `%REQ(:path)%`: values of headers, bodies
//! and access logs.

use std::sync::LazyLock;

use regex::Regex;

use super::convert::nearest;

/// What keeps Envoy from reading a format string.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum FormatFlaw {
    /// `%%` stands for a percent sign.
    #[error("`{0}` begins no command; a percent sign is written `%%`")]
    NoCommand(String),
    #[error("there is no command `{command}`{}", perhaps(nearest))]
    UnknownCommand { command: String, nearest: Option<String> },
}

/// Which commands a format string may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Commands {
    /// Those of HTTP.
    Http,
    /// Also those of the generic proxy, which has format strings, too.
    HttpOrGeneric,
    /// Any: extensions provide more.
    Any,
}

/// Checks a format string. Parameters of commands are not checked.
pub(super) fn check(text: &str, commands: Commands) -> Result<(), FormatFlaw> {
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("%%") {
            rest = after;
            continue;
        }
        let Some(found) = COMMAND.captures(rest) else {
            return Err(FormatFlaw::NoCommand(rest.chars().take(SHOWN_LIMIT).collect()));
        };
        let command = &found[1];
        let is_known = match commands {
            Commands::Http => KNOWN.contains(&command),
            Commands::HttpOrGeneric => KNOWN.contains(&command) || GENERIC.contains(&command),
            Commands::Any => true,
        };
        if !is_known {
            let nearest = nearest(command, KNOWN.iter().map(|&known| known.to_owned()));
            return Err(FormatFlaw::UnknownCommand { command: command.to_owned(), nearest });
        }
        rest = &rest[found[0].len()..];
    }
    Ok(())
}

fn perhaps(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |name| format!(", perhaps `{name}`"))
}

/// A command, perhaps with parameters and a length: `%REQ(a):10%`.
static COMMAND: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^%([A-Z0-9_]+)(?s:\(.*?\))?(?::[0-9]+)?%").expect("the pattern is valid"));

/// How many characters an error shows of a text that is no command.
const SHOWN_LIMIT: usize = 20;

/// The commands of the generic proxy.
const GENERIC: [&str; 5] =
    ["GENERIC_RESPONSE_CODE", "HOST", "METHOD", "REQUEST_PROPERTY", "RESPONSE_PROPERTY"];

/// The commands of Envoy 1.40 for headers, bodies and access logs.
const KNOWN: [&str; 165] = [
    "ACCESS_LOG_TYPE",
    "BYTES_RECEIVED",
    "BYTES_RETRANSMITTED",
    "BYTES_SENT",
    "CEL",
    "CLUSTER_METADATA",
    "COALESCE",
    "COMMON_DURATION",
    "CONNECTION_ID",
    "CONNECTION_TERMINATION_DETAILS",
    "CUSTOM_FLAGS",
    "DOWNSTREAM_CX_RTT",
    "DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED",
    "DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_SENT",
    "DOWNSTREAM_DETECTED_CLOSE_TYPE",
    "DOWNSTREAM_DIRECT_LOCAL_ADDRESS",
    "DOWNSTREAM_DIRECT_LOCAL_ADDRESS_ENDPOINT_ID",
    "DOWNSTREAM_DIRECT_LOCAL_ADDRESS_WITHOUT_PORT",
    "DOWNSTREAM_DIRECT_LOCAL_PORT",
    "DOWNSTREAM_DIRECT_REMOTE_ADDRESS",
    "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT",
    "DOWNSTREAM_DIRECT_REMOTE_PORT",
    "DOWNSTREAM_HANDSHAKE_DURATION",
    "DOWNSTREAM_HEADER_BYTES_RECEIVED",
    "DOWNSTREAM_HEADER_BYTES_SENT",
    "DOWNSTREAM_LOCAL_ADDRESS",
    "DOWNSTREAM_LOCAL_ADDRESS_ENDPOINT_ID",
    "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT",
    "DOWNSTREAM_LOCAL_CLOSE_REASON",
    "DOWNSTREAM_LOCAL_DNS_SAN",
    "DOWNSTREAM_LOCAL_EMAIL_SAN",
    "DOWNSTREAM_LOCAL_IP_SAN",
    "DOWNSTREAM_LOCAL_OTHERNAME_SAN",
    "DOWNSTREAM_LOCAL_PORT",
    "DOWNSTREAM_LOCAL_SUBJECT",
    "DOWNSTREAM_LOCAL_URI_SAN",
    "DOWNSTREAM_PEER_CERT",
    "DOWNSTREAM_PEER_CERT_V_END",
    "DOWNSTREAM_PEER_CERT_V_START",
    "DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_1",
    "DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_256",
    "DOWNSTREAM_PEER_CHAIN_SERIALS",
    "DOWNSTREAM_PEER_DNS_SAN",
    "DOWNSTREAM_PEER_EMAIL_SAN",
    "DOWNSTREAM_PEER_FINGERPRINT_1",
    "DOWNSTREAM_PEER_FINGERPRINT_256",
    "DOWNSTREAM_PEER_IP_SAN",
    "DOWNSTREAM_PEER_ISSUER",
    "DOWNSTREAM_PEER_ISSUER_FINGERPRINT_256",
    "DOWNSTREAM_PEER_ISSUER_SERIAL",
    "DOWNSTREAM_PEER_OTHERNAME_SAN",
    "DOWNSTREAM_PEER_SERIAL",
    "DOWNSTREAM_PEER_SUBJECT",
    "DOWNSTREAM_PEER_URI_SAN",
    "DOWNSTREAM_REMOTE_ADDRESS",
    "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT",
    "DOWNSTREAM_REMOTE_PORT",
    "DOWNSTREAM_TLS_CIPHER",
    "DOWNSTREAM_TLS_GROUP",
    "DOWNSTREAM_TLS_SESSION_ID",
    "DOWNSTREAM_TLS_VERSION",
    "DOWNSTREAM_TRANSPORT_FAILURE_REASON",
    "DOWNSTREAM_WIRE_BYTES_RECEIVED",
    "DOWNSTREAM_WIRE_BYTES_SENT",
    "DURATION",
    "DYNAMIC_METADATA",
    "EMIT_TIME",
    "EMIT_TIME_LOCAL",
    "ENVIRONMENT",
    "FILTER_CHAIN_NAME",
    "FILTER_STATE",
    "GRPC_STATUS",
    "GRPC_STATUS_NUMBER",
    "HOSTNAME",
    "LISTENER_NAME",
    "LOCAL_REPLY_BODY",
    "METADATA",
    "PACKETS_RETRANSMITTED",
    "PATH",
    "PER_REQUEST_STATE",
    "PROTOCOL",
    "QUERY_PARAM",
    "QUERY_PARAMS",
    "REQ",
    "REQUESTED_SERVER_NAME",
    "REQUEST_DURATION",
    "REQUEST_HEADER",
    "REQUEST_HEADERS_BYTES",
    "REQUEST_TX_DURATION",
    "RESP",
    "RESPONSE_CODE",
    "RESPONSE_CODE_DETAILS",
    "RESPONSE_DURATION",
    "RESPONSE_FLAGS",
    "RESPONSE_FLAGS_LONG",
    "RESPONSE_HEADER",
    "RESPONSE_HEADERS_BYTES",
    "RESPONSE_TRAILER",
    "RESPONSE_TRAILERS_BYTES",
    "RESPONSE_TX_DURATION",
    "ROUNDTRIP_DURATION",
    "ROUTE_NAME",
    "ROUTE_RESOLUTION_COUNT",
    "ROUTE_RESOLUTION_TIME_US",
    "SPAN_ID",
    "START_TIME",
    "START_TIME_LOCAL",
    "STREAM_ID",
    "STREAM_INFO_REQ",
    "TLS_JA3_FINGERPRINT",
    "TLS_JA4_FINGERPRINT",
    "TRACE_ID",
    "TRAILER",
    "TYPED_CEL",
    "UNIQUE_ID",
    "UPSTREAM_CLUSTER",
    "UPSTREAM_CLUSTER_RAW",
    "UPSTREAM_CONNECTION_ID",
    "UPSTREAM_CONNECTION_IDS_ATTEMPTED",
    "UPSTREAM_CONNECTION_POOL_READY_DURATION",
    "UPSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED",
    "UPSTREAM_DECOMPRESSED_HEADER_BYTES_SENT",
    "UPSTREAM_DETECTED_CLOSE_TYPE",
    "UPSTREAM_FILTER_STATE",
    "UPSTREAM_HEADER_BYTES_RECEIVED",
    "UPSTREAM_HEADER_BYTES_SENT",
    "UPSTREAM_HOST",
    "UPSTREAM_HOSTS_ATTEMPTED",
    "UPSTREAM_HOSTS_ATTEMPTED_WITHOUT_PORT",
    "UPSTREAM_HOST_NAME",
    "UPSTREAM_HOST_NAMES_ATTEMPTED",
    "UPSTREAM_HOST_NAMES_ATTEMPTED_WITHOUT_PORT",
    "UPSTREAM_HOST_NAME_WITHOUT_PORT",
    "UPSTREAM_LOCAL_ADDRESS",
    "UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT",
    "UPSTREAM_LOCAL_CLOSE_REASON",
    "UPSTREAM_LOCAL_DNS_SAN",
    "UPSTREAM_LOCAL_IP_SAN",
    "UPSTREAM_LOCAL_PORT",
    "UPSTREAM_LOCAL_URI_SAN",
    "UPSTREAM_METADATA",
    "UPSTREAM_PEER_CERT",
    "UPSTREAM_PEER_CERT_V_END",
    "UPSTREAM_PEER_CERT_V_START",
    "UPSTREAM_PEER_DNS_SAN",
    "UPSTREAM_PEER_IP_SAN",
    "UPSTREAM_PEER_ISSUER",
    "UPSTREAM_PEER_SUBJECT",
    "UPSTREAM_PEER_URI_SAN",
    "UPSTREAM_PROTOCOL",
    "UPSTREAM_REMOTE_ADDRESS",
    "UPSTREAM_REMOTE_ADDRESS_ENDPOINT_ID",
    "UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT",
    "UPSTREAM_REMOTE_PORT",
    "UPSTREAM_REQUEST_ATTEMPT_COUNT",
    "UPSTREAM_SERVER_NAME",
    "UPSTREAM_TLS_CIPHER",
    "UPSTREAM_TLS_GROUP",
    "UPSTREAM_TLS_SESSION_ID",
    "UPSTREAM_TLS_VERSION",
    "UPSTREAM_TRANSPORT_FAILURE_REASON",
    "UPSTREAM_WIRE_BYTES_RECEIVED",
    "UPSTREAM_WIRE_BYTES_SENT",
    "VIRTUAL_CLUSTER_NAME",
    "XFCC_VALUE",
];

#[cfg(test)]
mod tests {
    use super::{Commands, check};

    #[test]
    fn a_command_is_known_and_a_percent_sign_is_written_twice() {
        let flaw = |text: &str| check(text, Commands::Http).map_err(|flaw| flaw.to_string());
        let taken = [
            "",
            "a",
            "%%",
            "100%%",
            "%%NONE%%",
            "%PROTOCOL%",
            "%%%PROTOCOL%",
            "%PROTOCOL%%PROTOCOL%",
            "%REQ(x)%",
            "%REQ(x?y):10%",
            "%START_TIME(%Y-%m-%dT%H:%M)%",
            r#"%DYNAMIC_METADATA(["a", "b"])%"#,
            "%PER_REQUEST_STATE(a)%",
            "%START_TIME(%m)x)%",
            "%PROTOCOL%:",
        ];
        for text in taken {
            assert_eq!(flaw(text), Ok(()), "{text}");
        }
        let no_command = [
            "%",
            "100%",
            "a%b",
            "a%20b",
            "%protocol%",
            "% PROTOCOL%",
            "%REQ(x%",
            "%REQ(x):a%",
            "%{x}%",
            "%PROTOCOL",
        ];
        for text in no_command {
            let flaw = flaw(text).unwrap_err();
            assert!(flaw.ends_with("begins no command; a percent sign is written `%%`"), "{text}: {flaw}");
        }
        assert_eq!(flaw("%NONE%"), Err("there is no command `NONE`".to_owned()));
        assert_eq!(
            flaw("x %PROTOCOLS(a)%"),
            Err("there is no command `PROTOCOLS`, perhaps `PROTOCOL`".to_owned())
        );
        assert_eq!(flaw("/%2F%2e"), Err("there is no command `2F`".to_owned()));
    }

    #[test]
    fn extensions_have_more_commands_in_format_strings() {
        assert!(check("%METHOD%", Commands::Http).is_err());
        assert_eq!(check("%METHOD%", Commands::HttpOrGeneric), Ok(()));
        assert_eq!(check("%OF_AN_EXTENSION%", Commands::Any), Ok(()));
        assert!(check("%", Commands::Any).is_err());
    }
}
