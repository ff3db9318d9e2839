//! Reads from payloads how the virtual hosts of a route configuration come to a client (D33).

use std::str;

use prost::Message;

use super::walk;
use crate::name::ResourceName;
use crate::wire::fields::{fields, text};
use crate::xdstp;

/// An HTTP connection manager of a listener that subscribes to a route configuration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Manager {
    /// The name of the route configuration.
    pub(crate) routes: ResourceName,
    /// Whether a request for an unknown host makes the client subscribe to this host.
    pub(crate) is_on_demand: bool,
}

/// The `vhds` field of a route configuration; `None` if its virtual hosts are all in it.
pub(crate) fn vhds_of(route_configuration: &[u8]) -> Option<&[u8]> {
    text(route_configuration, 9)
}

/// The HTTP connection managers of a listener that subscribe to a route configuration by name.
pub(crate) fn managers(listener: &[u8]) -> Vec<Manager> {
    let all = |message, number| {
        let of_number = fields(message).map_while(|field| field);
        of_number.filter(move |(found, _)| *found == number).map(|(_, value)| value)
    };
    // `filter_chains` and `default_filter_chain`; `filters`; `typed_config`.
    let chains = all(listener, 3).chain(all(listener, 25));
    let filters = chains.flat_map(|chain| all(chain, 3)).filter_map(|filter| text(filter, 4));
    let api = text(listener, 19).and_then(|api| text(api, 1));
    let managers = filters.chain(api).filter(|any| is_any_of(any, MANAGER));
    let manager = |any| {
        let manager = text(any, 2)?;
        // `rds`; `route_config_name`.
        let routes = str::from_utf8(text(text(manager, 3)?, 2)?).ok()?;
        // `http_filters`; `typed_config`. A filter that comes by ECDS is not known here.
        let mut filters = all(manager, 5).filter(|filter| !is_disabled(filter));
        let is_on_demand = filters.any(|filter| text(filter, 4).is_some_and(|any| is_any_of(any, ON_DEMAND)));
        Some(Manager { routes: xdstp::canonical(routes), is_on_demand })
    };
    managers.filter_map(manager).collect()
}

fn is_any_of(any: &[u8], message_name: &str) -> bool {
    walk::message_of(any) == message_name
}

/// Whether an HTTP filter is off until a route turns it on.
fn is_disabled(filter: &[u8]) -> bool {
    HttpFilter::decode(filter).is_ok_and(|filter| filter.disabled)
}

/// The field of `envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter` that is read.
#[derive(Clone, PartialEq, Message)]
struct HttpFilter {
    #[prost(bool, tag = "7")]
    disabled: bool,
}

const MANAGER: &str = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const ON_DEMAND: &str = "envoy.extensions.filters.http.on_demand.v3.OnDemand";

#[cfg(test)]
mod tests {
    use super::*;

    /// A field with the length of its value before it.
    fn field(number: u8, value: &[u8]) -> Vec<u8> {
        let mut length = Vec::new();
        prost::encoding::encode_varint(u64::try_from(value.len()).unwrap(), &mut length);
        let mut key = Vec::new();
        prost::encoding::encode_varint(u64::from(number) << 3 | 2, &mut key);
        [key, length, value.to_vec()].concat()
    }

    fn any(message_name: &str, value: &[u8]) -> Vec<u8> {
        [field(1, format!("type.googleapis.com/{message_name}").as_bytes()), field(2, value)].concat()
    }

    /// A connection manager with the route configuration `rc` and these HTTP filters.
    fn manager(filters: &[Vec<u8>]) -> Vec<u8> {
        let filters = filters.iter().flat_map(|filter| field(5, filter));
        any(MANAGER, &[field(3, &field(2, b"rc")), filters.collect()].concat())
    }

    /// What the listener with this connection manager in these fields is found to have.
    fn found(outer: u8, manager: &[u8]) -> Option<bool> {
        let listener = match outer {
            19 => field(19, &field(1, manager)),
            _ => field(outer, &field(3, &field(4, manager))),
        };
        let managers = managers(&listener);
        assert!(managers.iter().all(|manager| manager.routes == "rc".into()));
        managers.first().map(|manager| manager.is_on_demand)
    }

    #[test]
    fn d33_the_filter_is_found_in_each_connection_manager() {
        let demand = field(4, &any(ON_DEMAND, b""));
        let router = field(4, &any("envoy.extensions.filters.http.router.v3.Router", b""));
        // `filter_chains`, `default_filter_chain`, `api_listener`.
        for outer in [3, 25, 19] {
            assert_eq!(found(outer, &manager(&[demand.clone(), router.clone()])), Some(true));
            assert_eq!(found(outer, &manager(std::slice::from_ref(&router))), Some(false));
        }
        let is_disabled = [demand, vec![7 << 3, 1]].concat();
        assert_eq!(found(3, &manager(&[is_disabled])), Some(false));
        let by_ecds = field(5, b"");
        assert_eq!(found(3, &manager(&[by_ecds])), Some(false));
        assert_eq!(found(3, &any("other", b"")), None);
    }

    #[test]
    fn d33_bytes_that_are_no_message_have_no_connection_manager() {
        assert_eq!(managers(&[0xff; 9]), []);
        assert_eq!(vhds_of(&[0xff; 9]), None);
        assert_eq!(vhds_of(&field(9, b"x")), Some(b"x".as_slice()));
    }
}
