//! What an identity may read, for `xds resolve --as`.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use xds::folder::Contents;
use xds::{Denied, ResourceName, TypeUrl};

use super::super::check::parameters;
use super::super::listen::ListenError;
use super::super::policy::Granted;
use super::super::{Failure, say};
use super::row;

#[derive(Debug, Args)]
pub(super) struct AsIdentity {
    /// Show what a client with this identity gets under the policy: a SPIFFE id, a DNS name, or
    /// `anonymous` for a client without a certificate
    ///
    /// Without TYPE and NAME: all that it may read. With them: whether it may read the resource,
    /// and which variant it gets with the parameters that the policy gives it.
    #[arg(id = "identity", long = "as", value_name = "IDENTITY", requires = "policy")]
    identity: Option<String>,
    /// The policy of the server (see docs/security.md)
    #[arg(long, value_name = "FILE", requires = "identity")]
    policy: Option<PathBuf>,
}

/// An identity, and what it may read.
#[derive(Debug)]
pub(super) struct Grant {
    identity: String,
    policy: PathBuf,
    pub(super) granted: Result<Granted, Denied>,
}

impl AsIdentity {
    /// `None` without `--as`.
    ///
    /// # Errors
    /// The policy cannot be used.
    pub(super) fn grant(&self) -> Result<Option<Grant>, Failure> {
        let Some((identity, policy)) = self.identity.clone().zip(self.policy.clone()) else {
            return Ok(None);
        };
        let granted =
            Granted::to(&identity, &policy).map_err(|error| Failure::Security(ListenError::Policy(error)))?;
        Ok(Some(Grant { identity, policy, granted }))
    }
}

impl Grant {
    /// The names of the folder that the identity may read, by type, with the number of all names.
    fn names<'a>(&self, contents: &'a Contents) -> Vec<(&'a TypeUrl, Vec<&'a ResourceName>, usize)> {
        let allows =
            |type_url, name| self.granted.as_ref().is_ok_and(|granted| granted.access.allows(type_url, name));
        let of_type = |type_url: &'a TypeUrl| {
            let all: Vec<_> = contents.names(type_url.as_str()).map(|(name, _)| name).collect();
            let count = all.len();
            (type_url, all.into_iter().filter(|name| allows(type_url, name)).collect(), count)
        };
        contents.types().map(of_type).collect()
    }

    /// Prints the rule and the parameters.
    pub(super) fn text(&self) {
        match &self.granted {
            Err(denied) => row("denied", std::slice::from_ref(&denied.0)),
            Ok(Granted { rule, line, client, access, may_inspect }) => {
                row("rule", &[format!("{rule}, client: {client}, at {}:{line}", self.policy.display())]);
                if access.parameters().iter().next().is_some() {
                    row("forced", &[access.parameters().to_string()]);
                }
                if *may_inspect {
                    row("inspect", &["CSDS and the admin page".into()]);
                }
            }
        }
    }

    /// Prints all that the identity may read.
    pub(super) fn list(&self, contents: &Contents) {
        say(&self.identity);
        self.text();
        let lines = self.names(contents).into_iter().map(|(type_url, names, all)| {
            let message = type_url.message_name();
            let listed: Vec<_> = names.iter().take(NAMES_LISTED).map(|name| name.as_str()).collect();
            let more = names.len().checked_sub(NAMES_LISTED).filter(|more| *more > 0);
            let more = more.map_or_else(String::new, |more| format!(", and {more} more"));
            match names.len() {
                0 => format!("{message}: none of {all}"),
                count if count == all => format!("{message}: all {all}"),
                count => format!("{message}: {count} of {all}: {}{more}", listed.join(", ")),
            }
        });
        row("reads", &lines.collect::<Vec<_>>());
    }

    /// All that the identity may read.
    pub(super) fn listed(&self, contents: &Contents) -> Value {
        let types = self.names(contents).into_iter().map(|(type_url, names, all)| {
            let names: Vec<_> = names.iter().map(|name| name.as_str()).collect();
            json!({ "type": type_url.as_str(), "names": names, "of": all })
        });
        let mut object = self.object();
        object["reads"] = types.collect();
        object
    }

    /// The identity and its rule.
    pub(super) fn object(&self) -> Value {
        match &self.granted {
            Err(denied) => json!({ "identity": self.identity, "rule": null, "denied": denied.0 }),
            Ok(Granted { rule, line, client, access, may_inspect }) => json!({
                "identity": self.identity,
                "rule": { "number": rule, "client": client, "place": place(&self.policy, *line) },
                "parameters": parameters(access.parameters()),
                "inspect": may_inspect,
                "denied": null,
            }),
        }
    }

    /// Why the identity does not get the resource; `None` if it may read it.
    pub(super) fn denial(&self, type_url: &TypeUrl, name: &ResourceName) -> Option<String> {
        match &self.granted {
            Err(denied) => Some(denied.0.clone()),
            Ok(granted) if granted.access.allows(type_url, name) => None,
            Ok(granted) => {
                let (rule, message) = (granted.rule, type_url.message_name());
                Some(format!("rule {rule} does not let it read {message} {:?}", name.as_str()))
            }
        }
    }
}

fn place(policy: &Path, line: u64) -> Value {
    json!({ "file": policy.display().to_string(), "line": line })
}

/// How many names of a type are listed; JSON has all.
const NAMES_LISTED: usize = 20;
