//! Names of types for people: on the command line and in the path of a URL.

use xds_core::TypeUrl;
use xds_proto::type_url as url;

/// The type that a word names: a type URL, a message name with or without its package, or the name
/// of its discovery service, in any case. The known types are those with such a service, and those
/// in `present`.
///
/// # Errors
/// The word names no type, or several; the error lists what it could mean.
pub fn parse(word: &str, present: &[TypeUrl]) -> Result<TypeUrl, TypeError> {
    let mut types = present.to_vec();
    types.extend(SERVICES.iter().map(|(_, type_url)| TypeUrl::from(*type_url)));
    types.sort_unstable();
    types.dedup();
    let means = |type_url: &TypeUrl| {
        let names = [type_url.as_str(), type_url.message_name(), short(type_url)];
        names.into_iter().chain(service(type_url)).any(|name| name.eq_ignore_ascii_case(word))
    };
    let mut found: Vec<_> = types.into_iter().filter(means).collect();
    match (found.pop(), &*found) {
        (Some(only), []) => Ok(only),
        (Some(last), _) => {
            found.push(last);
            let choices = found.iter().map(ToString::to_string).collect();
            Err(TypeError::Ambiguous { word: word.into(), choices })
        }
        (None, _) => {
            let choices = present.iter().map(|type_url| match service(type_url) {
                Some(service) => format!("{} ({service})", short(type_url)),
                None => type_url.message_name().to_owned(),
            });
            Err(TypeError::Unknown { word: word.into(), choices: choices.collect() })
        }
    }
}

/// The type that a word names: as in [`parse`], but also any type URL, and any message with its
/// package, whether or not the type is known.
///
/// # Errors
/// The word names no type; the error lists the words that do.
pub fn parse_any(word: &str) -> Result<TypeUrl, TypeError> {
    match parse(word, &[]) {
        Err(TypeError::Unknown { .. }) if word.contains('/') => Ok(TypeUrl::from(word)),
        Err(TypeError::Unknown { .. }) if word.contains('.') => {
            Ok(TypeUrl::new(format!("type.googleapis.com/{word}")))
        }
        Err(TypeError::Unknown { word, .. }) => Err(TypeError::NoService { word }),
        other => other,
    }
}

/// Why a word names no type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TypeError {
    /// No known type has this name.
    #[error("no type is called {word:?}; known types: {}", listed(choices))]
    Unknown {
        /// The word.
        word: String,
        /// Words that name a type.
        choices: Vec<String>,
    },
    /// No type with a service has this name, and it is neither a message with its package nor a
    /// type URL.
    #[error(
        "no type is called {word:?}; use one of {}, a message with its package, or a type URL",
        SERVICES.map(|(service, _)| service).join(", ")
    )]
    NoService {
        /// The word.
        word: String,
    },
    /// Several types have this name.
    #[error("{word:?} is ambiguous: it may be any of {}", choices.join(", "))]
    Ambiguous {
        /// The word.
        word: String,
        /// Their type URLs.
        choices: Vec<String>,
    },
}

fn listed(choices: &[String]) -> String {
    if choices.is_empty() { "none".into() } else { choices.join(", ") }
}

/// The name of the message without its package.
#[must_use]
pub fn short(type_url: &TypeUrl) -> &str {
    let name = type_url.message_name();
    name.rsplit_once('.').map_or(name, |(_, name)| name)
}

/// The usual name of the type's discovery service, such as `RDS`.
#[must_use]
pub fn service(type_url: &TypeUrl) -> Option<&'static str> {
    SERVICES.iter().find(|(_, known)| *known == type_url.as_str()).map(|(service, _)| *service)
}

/// The usual names of the discovery services.
const SERVICES: [(&str, &str); 10] = [
    ("LDS", url::LISTENER),
    ("RDS", url::ROUTE_CONFIGURATION),
    ("SRDS", url::SCOPED_ROUTE_CONFIGURATION),
    ("VHDS", url::VIRTUAL_HOST),
    ("CDS", url::CLUSTER),
    ("EDS", url::CLUSTER_LOAD_ASSIGNMENT),
    ("LEDS", url::LB_ENDPOINT),
    ("SDS", url::SECRET),
    ("RTDS", url::RUNTIME),
    ("ECDS", url::TYPED_EXTENSION_CONFIG),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_goes_by_its_url_its_message_and_its_service_in_any_case() {
        let types = [url::CLUSTER, url::CLUSTER_LOAD_ASSIGNMENT, url::LISTENER, url::ROUTE_CONFIGURATION];
        let types = types.map(TypeUrl::from);
        let words = [
            url::ROUTE_CONFIGURATION,
            "envoy.config.route.v3.RouteConfiguration",
            "RouteConfiguration",
            "routeconfiguration",
            "RDS",
            "rds",
        ];
        for word in words {
            assert_eq!(parse(word, &types).unwrap().as_str(), url::ROUTE_CONFIGURATION);
        }
        // The type is known although no resource has it.
        assert_eq!(parse("sds", &types).unwrap().as_str(), url::SECRET);
        assert_eq!(
            parse("Route", &types).unwrap_err().to_string(),
            "no type is called \"Route\"; known types: Cluster (CDS), ClusterLoadAssignment (EDS), Listener (LDS), \
             RouteConfiguration (RDS)"
        );
    }
}
