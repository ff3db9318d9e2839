//! The authorities of new-style names, and the dynamic parameters of the document and of each
//! authority.

use std::collections::BTreeMap;

use xds_core::Parameters;

use super::json::{JsonValue, Object};
use super::{BootstrapError, ListenerTemplate, Server, server};

/// The servers for the new-style names of one authority, and the settings of subscriptions to them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Authority {
    /// The servers, the most preferred first (C15). If empty, [the top-level
    /// list](super::Bootstrap::servers) applies.
    pub servers: Vec<Server>,
    /// The listener name of a gRPC client whose target has this authority. Default
    /// [`ListenerTemplate::of_authority`] (C18).
    pub client_listener_template: Option<ListenerTemplate>,
    /// The parameters for subscriptions to names of this authority. The top-level parameters are
    /// not added to them (T40, X17).
    pub parameters: Parameters,
    /// Whether the client falls back to the next server as soon as one is not reachable, even if
    /// all resources are cached (P4.9). Default false.
    pub fallback_on_reachability_only: bool,
}

impl Authority {
    fn read(name: &str, json: JsonValue<'_>) -> Result<Self, BootstrapError> {
        let authority = json.object()?;
        let reachability_only = authority.get("fallback_on_reachability_only");
        Ok(Self {
            servers: server::read_list(authority.get("xds_servers"))?,
            client_listener_template: read_template(name, &authority)?,
            parameters: read_parameters(authority.get("dynamic_parameters"))?,
            fallback_on_reachability_only: reachability_only
                .map(JsonValue::bool)
                .transpose()?
                .unwrap_or_default(),
        })
    }
}

pub(super) fn read_all(json: Option<JsonValue<'_>>) -> Result<BTreeMap<String, Authority>, BootstrapError> {
    let Some(json) = json else { return Ok(BTreeMap::new()) };
    let mut authorities = BTreeMap::new();
    for (name, json) in json.object()?.entries() {
        // W2: no name can have such an authority.
        if name.contains(|letter: char| letter.is_ascii_control()) {
            return Err(BootstrapError::ControlCharacter { path: json.path() });
        }
        authorities.insert(name.to_owned(), Authority::read(name, json)?);
    }
    Ok(authorities)
}

/// Draft of gRFC A67. P3.7: a value that is not a string is an error; without the error, the
/// parameter would be missing silently.
pub(super) fn read_parameters(json: Option<JsonValue<'_>>) -> Result<Parameters, BootstrapError> {
    let Some(json) = json else { return Ok(Parameters::new()) };
    let mut parameters = Vec::new();
    for (key, value) in json.object()?.entries() {
        // W2: no constraint can have such a key.
        if key.contains(|letter| letter < ' ') {
            return Err(BootstrapError::ControlCharacter { path: value.path() });
        }
        parameters.push((key, value.string()?));
    }
    Ok(Parameters::from_iter(parameters))
}

fn read_template(name: &str, authority: &Object<'_>) -> Result<Option<ListenerTemplate>, BootstrapError> {
    const KEY: &str = "client_listener_resource_name_template";
    let Some(text) = authority.text(KEY)? else { return Ok(None) };
    // C18: a template may only make names of its own authority.
    let prefix = ListenerTemplate::prefix_of_authority(name);
    if !text.starts_with(&prefix) {
        let path = authority.path_of(KEY);
        return Err(BootstrapError::ForeignTemplate { path, found: text.to_owned(), prefix });
    }
    Ok(Some(ListenerTemplate::new(text)))
}
