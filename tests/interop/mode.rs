//! The four ways in which Envoy can subscribe.

use std::fmt;

use serde_json::Value;
use serde_json::json;

/// The streams that Envoy opens, and their protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mode {
    pub(crate) streams: Streams,
    pub(crate) protocol: Protocol,
}

/// One stream for all types, or one for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Streams {
    Ads,
    PerType,
}

/// State of the world, or delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Sotw,
    Delta,
}

impl Mode {
    pub(crate) const ALL: [Self; 4] = [
        Self { streams: Streams::Ads, protocol: Protocol::Sotw },
        Self { streams: Streams::Ads, protocol: Protocol::Delta },
        Self { streams: Streams::PerType, protocol: Protocol::Sotw },
        Self { streams: Streams::PerType, protocol: Protocol::Delta },
    ];
    pub(crate) const ADS: [Self; 2] = [Self::ALL[0], Self::ALL[1]];
    /// The two protocols over each kind of streams.
    pub(crate) const PAIRS: [[Self; 2]; 2] = [Self::ADS, [Self::ALL[2], Self::ALL[3]]];

    /// The ConfigSource of every reference in a resource and in the bootstrap.
    pub(crate) fn config_source(self) -> Value {
        match self.streams {
            Streams::Ads => json!({"ads": {}, "resource_api_version": "V3"}),
            Streams::PerType => {
                json!({"api_config_source": self.api_config_source(), "resource_api_version": "V3"})
            }
        }
    }

    /// The ApiConfigSource that names the static cluster of our server.
    pub(crate) fn api_config_source(self) -> Value {
        let api_type = match self.protocol {
            Protocol::Sotw => "GRPC",
            Protocol::Delta => "DELTA_GRPC",
        };
        // The back-off is short, so that Envoy reconnects to a restarted server in time.
        let retry = json!({"retry_back_off": {"base_interval": "0.1s", "max_interval": "0.5s"}});
        json!({
            "api_type": api_type,
            "transport_api_version": "V3",
            "set_node_on_first_message_only": true,
            "grpc_services": [{"envoy_grpc": {"cluster_name": "xds", "retry_policy": retry}}],
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} over {:?}", self.protocol, self.streams)
    }
}
