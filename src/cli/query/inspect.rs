//! `xds get --as-client`: what a connected client has, as the server reports it by CSDS.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;
use xds::client::bootstrap::Server;
use xds::client::inspect;
use xds::{TypeUrl, printable, printable_lines};
use xds_proto::envoy::service::status::v3::client_config::GenericXdsConfig;
use xds_proto::envoy::service::status::v3::{ClientConfig, ClientStatusRequest, ConfigStatus};
use xds_proto::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use xds_proto::envoy::r#type::matcher::v3::{NodeMatcher, StringMatcher};

use super::writer::{EventWriter, OutputFormat};
use super::{NOTHING, QueryError};

/// The client, and which of its resources to show.
#[derive(Debug)]
pub(super) struct Inspection {
    pub(super) id: String,
    /// All types without one.
    pub(super) type_url: Option<TypeUrl>,
    /// Names of resources; `*` for all.
    pub(super) names: Vec<String>,
}

impl Inspection {
    /// Prints the resources. A name that the client does not subscribe to is exit code 3, and so is
    /// a client that is not connected.
    pub(super) async fn run(
        &self,
        server: &Server,
        within: Duration,
        mut writer: EventWriter,
    ) -> Result<ExitCode, QueryError> {
        let match_pattern = Some(MatchPattern::Exact(self.id.clone()));
        let node_id = Some(StringMatcher { match_pattern, ignore_case: false });
        let request = ClientStatusRequest {
            node_matchers: vec![NodeMatcher { node_id, ..NodeMatcher::default() }],
            ..ClientStatusRequest::default()
        };
        let asked = timeout(within, inspect(server, request)).await;
        let clients = asked.map_err(|_| QueryError::Silent(within))?.map_err(QueryError::Inspect)?;
        if clients.is_empty() {
            eprintln!("error: no client with the node id {:?} is connected to this server", self.id);
            return Ok(ExitCode::from(NOTHING));
        }
        let mut missing: Vec<_> = self.names.iter().filter(|name| *name != "*").cloned().collect();
        for client in &clients {
            let shown = client.generic_xds_configs.iter().filter(|resource| self.shows(resource));
            for resource in shown {
                missing.retain(|name| !is_named(resource, name));
                let mut text = text(&mut writer, client, resource);
                if writer.format != OutputFormat::Yaml {
                    text = printable_lines(&text).into_owned();
                }
                io::stdout().lock().write_all(text.as_bytes()).map_err(QueryError::Output)?;
            }
        }
        for name in &missing {
            eprintln!("error: {name}: the client does not subscribe to it");
        }
        Ok(if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(NOTHING) })
    }

    fn shows(&self, resource: &GenericXdsConfig) -> bool {
        let is_type = |type_url: &TypeUrl| type_url.as_str() == resource.type_url;
        self.type_url.as_ref().is_none_or(is_type)
            && self.names.iter().any(|name| name == "*" || is_named(resource, name))
    }
}

/// C19: the constraints of a variant follow its name.
fn is_named(resource: &GenericXdsConfig, name: &str) -> bool {
    resource.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(" ["))
}

fn text(writer: &mut EventWriter, client: &ClientConfig, resource: &GenericXdsConfig) -> String {
    writer.type_url = resource.type_url.as_str().into();
    let content = resource.xds_config.as_ref().map(|any| writer.fields(&any.value));
    let failure = resource.error_state.as_ref();
    if writer.format == OutputFormat::Json {
        let node = client.node.as_ref();
        let object = json!({
            "client": node.map(|node| &node.id),
            "cluster": node.map(|node| &node.cluster),
            "type": resource.type_url,
            "name": resource.name,
            "version": Some(&resource.version_info).filter(|version| !version.is_empty()),
            "status": resource.config_status().as_str_name(),
            "detail": failure.map(|failure| &failure.details),
            "resource": content.map(Value::Object),
        });
        return format!("{object}\n");
    }
    let (sign, status) = match resource.config_status() {
        ConfigStatus::Synced => ('+', "ACKed".to_owned()),
        ConfigStatus::Stale => ('+', "sent, not answered yet".to_owned()),
        ConfigStatus::NotSent if resource.version_info.is_empty() => ('-', "does not exist".to_owned()),
        ConfigStatus::NotSent => ('-', "not sent yet".to_owned()),
        _ => ('!', format!("rejected: {}", failure.map_or("", |failure| &failure.details))),
    };
    // C19: the constraints of a variant follow its name.
    let end = resource.name.find(" [").unwrap_or(resource.name.len());
    let (name, constraints) = resource.name.split_at(end);
    let label = format!("{}{}", writer.label(name), printable(constraints));
    let version = match resource.version_info.as_str() {
        "" => String::new(),
        version => format!("  version {}", printable(version)),
    };
    let comment = if writer.format == OutputFormat::Yaml { "---\n# " } else { "" };
    let mut text = format!("{comment}{sign} {label}{version}  {}\n", printable(&status));
    let indent = if writer.format == OutputFormat::Yaml { "" } else { "  " };
    for line in content.iter().flat_map(|fields| writer.lines_of(fields)) {
        text.push_str(&format!("{indent}{line}\n"));
    }
    text
}
