//! Options that change how a type is served.

use std::collections::BTreeSet;

use clap::{ArgAction, Args, ValueEnum};
use xds::{ServerConfig, Serving, TypeConfig, TypeUrl, type_url as url};

use crate::cli::type_name::{self, TypeError};

#[derive(Debug, Args)]
#[command(
    next_help_heading = "Types (TYPE is a service such as RDS, a message such as Secret, or a whole type URL)"
)]
pub(in crate::cli) struct Types {
    /// Answer subscriptions to this type with UNIMPLEMENTED; clients keep their resources. May be
    /// repeated
    ///
    /// Each name gets a resource error UNIMPLEMENTED, and the stream continues.
    #[arg(long, value_name = "TYPE")]
    not_served: Vec<String>,
    /// End streams that subscribe to this type, with INVALID_ARGUMENT. May be repeated
    #[arg(long, value_name = "TYPE")]
    refuse: Vec<String>,
    /// Whether a first request without names subscribes to all resources of this type. May be
    /// repeated
    ///
    /// Default: on for LDS, CDS, SRDS and types of your own, off for all other types of Envoy.
    #[arg(long, value_name = "TYPE=on|off", value_parser = switch)]
    legacy_wildcard: Vec<(String, Switch)>,
    /// Send all resources of this type in each SotW response, so that clients delete missing ones.
    /// May be repeated
    ///
    /// Always on for LDS, CDS and SRDS. Use it only for types of your own whose clients delete
    /// missing resources.
    #[arg(long, value_name = "TYPE")]
    full_state: Vec<String>,
    /// Report to SotW clients at once which names do not exist: listeners, routes, clusters,
    /// endpoints and others
    ///
    /// It uses resource errors NOT_FOUND, for gRPC clients that know gRFC A88. Other clients ignore
    /// the errors, and wait 15 s as they do without this option. See docs/clients.md.
    #[arg(long)]
    sotw_not_found: bool,
    /// Clients, by node.user_agent_name, that honour a ttl but do not declare it; `none` for none.
    /// May be repeated
    #[arg(long, value_name = "NAME", default_value = "envoy", action = ArgAction::Append)]
    ttl_user_agent: Vec<String>,
    /// Send the ttl of endpoints to SotW clients too. Dangerous: Envoy 1.40 crashes when such a ttl
    /// ends
    ///
    /// In delta it is always sent, and does no harm.
    #[arg(long)]
    sotw_endpoint_ttl: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

/// Why an option that names a type cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(in crate::cli) enum OptionError {
    #[error("{option}: {error}; a whole type URL is always accepted")]
    Type { option: &'static str, error: TypeError },
    #[error("--not-served and --refuse both name {type_url}; use only one of them")]
    Contradiction { type_url: TypeUrl },
    #[error("--store and --isolate file exclude each other: a folder is applied to a store as one commit")]
    StoreIsolation,
    #[error("--strict and --isolate file exclude each other: a warning may have its cause in several files")]
    StrictIsolation,
    #[error(
        "--rollout-state is in the folder that is served; its files are no resources, so give it another place"
    )]
    StateInFolder,
}

impl Types {
    /// Applies the options. The known types are those of the folder and those with a service.
    ///
    /// # Errors
    /// An option is invalid; the error names it.
    pub(in crate::cli) fn apply(
        &self,
        in_folder: &[TypeUrl],
        config: &mut ServerConfig,
    ) -> Result<(), OptionError> {
        let mut change = |option, word: &str, change: &dyn Fn(&mut TypeConfig)| {
            let type_url = named(option, word, in_folder)?;
            let default = || TypeConfig::of(type_url.as_str());
            let of_type = config.stream.types.entry(type_url.clone()).or_insert_with(default);
            let before = of_type.serving;
            change(of_type);
            if before != Serving::Served && before != of_type.serving {
                return Err(OptionError::Contradiction { type_url });
            }
            Ok(())
        };
        for word in &self.not_served {
            change("--not-served", word, &|of_type| of_type.serving = Serving::NotServed)?;
        }
        for word in &self.refuse {
            change("--refuse", word, &|of_type| of_type.serving = Serving::Refused)?;
        }
        for (word, switch) in &self.legacy_wildcard {
            let on = *switch == Switch::On;
            change("--legacy-wildcard", word, &|of_type| of_type.legacy_wildcard = on)?;
        }
        for word in &self.full_state {
            change("--full-state", word, &|of_type| of_type.full_state = true)?;
        }
        if self.sotw_endpoint_ttl {
            let endpoints = url::CLUSTER_LOAD_ASSIGNMENT;
            change("--sotw-endpoint-ttl", endpoints, &|of_type| of_type.ttl_in_sotw = true)?;
        }
        config.stream.sotw_not_found = self.sotw_not_found;
        let agents = self.ttl_user_agent.iter().filter(|name| *name != "none").cloned();
        config.ttl_user_agents = agents.collect::<BTreeSet<_>>();
        Ok(())
    }
}

fn named(option: &'static str, word: &str, in_folder: &[TypeUrl]) -> Result<TypeUrl, OptionError> {
    match type_name::parse(word, in_folder) {
        // Accept any type URL: the folder may have the type later.
        Err(TypeError::Unknown { .. }) if word.contains('/') && !word.ends_with('/') => Ok(word.into()),
        result => result.map_err(|error| OptionError::Type { option, error }),
    }
}

fn switch(text: &str) -> Result<(String, Switch), &'static str> {
    let expected = "write TYPE=on or TYPE=off, such as RDS=on";
    let (word, switch) = text.rsplit_once('=').ok_or(expected)?;
    Ok((word.into(), Switch::from_str(switch, false).map_err(|_| expected)?))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        types: Types,
    }

    fn parse(arguments: &str) -> Result<ServerConfig, String> {
        let words = ["xds"].into_iter().chain(arguments.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        let mut config = ServerConfig::default();
        let in_folder = ["example.com/acme.Thing".into()];
        line.types.apply(&in_folder, &mut config).map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn without_options_types_are_served_as_the_library_does() {
        assert_eq!(format!("{:?}", parse("").unwrap()), format!("{:?}", ServerConfig::default()));
    }

    #[test]
    fn a_type_has_what_all_options_say_of_it_whatever_it_is_called() {
        let config = parse(
            "--not-served sds --refuse Runtime --legacy-wildcard RouteConfiguration=on --legacy-wildcard thing=off \
             --full-state acme.Thing --full-state example.com/acme.Other --sotw-endpoint-ttl --sotw-not-found \
             --ttl-user-agent mesh --ttl-user-agent envoy",
        )
        .unwrap();
        let of = |type_url: &str| config.stream.types[type_url];
        let default = TypeConfig::of;
        assert_eq!(of(url::SECRET), TypeConfig { serving: Serving::NotServed, ..default(url::SECRET) });
        assert_eq!(of(url::RUNTIME), TypeConfig { serving: Serving::Refused, ..default(url::RUNTIME) });
        let routes = url::ROUTE_CONFIGURATION;
        assert_eq!(of(routes), TypeConfig { legacy_wildcard: true, ..default(routes) });
        let thing = "example.com/acme.Thing";
        assert_eq!(of(thing), TypeConfig { legacy_wildcard: false, full_state: true, ..default(thing) });
        assert!(of("example.com/acme.Other").full_state);
        assert!(of(url::CLUSTER_LOAD_ASSIGNMENT).ttl_in_sotw);
        assert!(config.stream.sotw_not_found);
        assert_eq!(config.ttl_user_agents, BTreeSet::from(["envoy".into(), "mesh".into()]));
        assert!(parse("--ttl-user-agent none").unwrap().ttl_user_agents.is_empty());
    }

    #[test]
    fn a_bad_value_is_told_what_to_write() {
        let error = |arguments: &str| parse(arguments).unwrap_err();
        assert_eq!(
            error("--not-served Secre"),
            "--not-served: no type is called \"Secre\"; known types: acme.Thing; a whole type URL is always accepted"
        );
        assert!(error("--full-state acme/").contains("--full-state: no type"), "an empty message name");
        for bad in ["RDS", "RDS=yes", "=", "RDS=ON"] {
            let error = error(&format!("--legacy-wildcard {bad}"));
            assert!(error.contains("write TYPE=on or TYPE=off, such as RDS=on"), "{error}");
        }
        assert_eq!(
            error("--refuse RDS --not-served RouteConfiguration"),
            format!("--not-served and --refuse both name {}; use only one of them", url::ROUTE_CONFIGURATION)
        );
    }
}
