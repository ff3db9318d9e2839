//! `xds resolve`: which variant some parameters get, and why.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};
use xds::folder::{Contents, Located};
use xds::matching::{Explanation, KeyTest};
use xds::{Parameters, ResourceName, TypeUrl, VariantSet};
use xds_core::XdstpName;

use super::check::{ReportFormat, location, parameters, when};
use super::{DescriptorOptions, Failure, FolderOptions, NOTHING, load, say, type_name};
use granted::{AsIdentity, Grant};
use xds::explain::{NearMiss, near_miss};

mod granted;

/// Show which variant of a resource given parameters get, and why
///
/// The parameters are those of a client: the ones that it sends, or that `xds serve` takes from its
/// node. Parameters that no variant names make no difference.
///
/// If no variant matches, the nearest variants are listed with the conditions that fail.
///
/// With --as and --policy: what a client with an identity may read, and by which rule.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Resolve {
    #[command(flatten)]
    source: FolderOptions,
    #[command(flatten)]
    descriptors: DescriptorOptions,
    /// Type URL, message name (RouteConfiguration, also with its package) or discovery service
    /// (RDS), in any case
    #[arg(value_name = "TYPE", required_unless_present = "identity", requires = "name")]
    type_name: Option<String>,
    /// Name of the resource
    #[arg(value_name = "NAME", required_unless_present = "identity")]
    name: Option<String>,
    /// Parameters of the client; a key given twice has the last value
    #[arg(value_name = "KEY=VALUE", value_parser = pair)]
    parameters: Vec<(String, String)>,
    #[command(flatten)]
    identity: AsIdentity,
    /// Print the resource too, as proto3 JSON
    #[arg(long)]
    payload: bool,
    /// Format of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ReportFormat::Text)]
    format: ReportFormat,
}

pub(super) fn pair(text: &str) -> Result<(String, String), &'static str> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE; a key that is absent is left out")?;
    Ok((key.into(), value.into()))
}

/// The variant of a name that parameters get, and why.
struct Resolution<'a> {
    type_url: TypeUrl,
    name: ResourceName,
    parameters: Parameters,
    tests: Vec<KeyTest>,
    found: Option<&'a Located>,
    /// If no variant matches: the variants that are nearest to matching.
    nearest: Vec<(&'a Located, NearMiss)>,
    payload: Option<Value>,
    grant: Option<Grant>,
    /// Why the identity may not read the resource.
    denied: Option<String>,
}

impl Resolve {
    pub(super) fn run(&self) -> Result<ExitCode, Failure> {
        let contents = load::contents(&self.source.open(self.descriptors.read()?));
        if let Some(errors) = contents.errors().filter(|_| contents.isolated() == 0) {
            return Err(Failure::Folder { folder: self.source.folder.clone(), errors });
        }
        let grant = self.identity.grant()?;
        let Some((type_name, written)) = self.type_name.as_deref().zip(self.name.as_deref()) else {
            let grant = grant.expect("TYPE and NAME are required without --as");
            match self.format {
                ReportFormat::Text => grant.list(&contents),
                ReportFormat::Json => say(format_args!("{:#}", grant.listed(&contents))),
            }
            return Ok(if grant.granted.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(NOTHING) });
        };
        let types: Vec<_> = contents.types().cloned().collect();
        let type_url = type_name::parse(type_name, &types).map_err(Failure::Type)?;
        // X4: any spelling of the name is accepted.
        let name = canonical_name(written);
        let Some(variants) = contents.get(type_url.as_str(), &name) else {
            self.unknown(&contents, &type_url, written);
            return Ok(ExitCode::from(NOTHING));
        };
        let resolution = self.resolution(&contents, type_url, name, variants, grant);
        match self.format {
            ReportFormat::Text => resolution.text(),
            ReportFormat::Json => say(format_args!("{:#}", resolution.object())),
        }
        Ok(if resolution.found.is_some() { ExitCode::SUCCESS } else { ExitCode::from(NOTHING) })
    }

    fn parameters(&self, grant: Option<&Grant>) -> Parameters {
        let claimed = self.parameters.iter().map(|(key, value)| (&**key, &**value)).collect();
        match grant.map(|grant| &grant.granted) {
            Some(Ok(granted)) => granted.access.overlay(&claimed),
            _ => claimed,
        }
    }

    /// Reports that the folder does not have the name.
    fn unknown(&self, contents: &Contents, type_url: &TypeUrl, written: &str) {
        let perhaps = contents.nearest_name(type_url.as_str(), written);
        if self.format == ReportFormat::Json {
            let object = json!({
                "type": type_url.as_str(),
                "name": written,
                "parameters": parameters(&self.parameters(None)),
                "variant": null,
                "tests": [],
                "nearest": [],
                "perhaps": perhaps,
            });
            return say(format_args!("{object:#}"));
        }
        let folder = self.source.folder.display();
        let perhaps = perhaps.map_or_else(String::new, |perhaps| format!(", perhaps {perhaps:?}"));
        eprintln!("error: {folder}: no {} {:?}{perhaps}", type_url.message_name(), written);
        let name = canonical_name(written);
        for other in contents.types().filter(|other| contents.get(other.as_str(), &name).is_some()) {
            eprintln!("  hint: the name is that of a resource of type {}", other.message_name());
        }
    }

    fn resolution<'a>(
        &self,
        contents: &Contents,
        type_url: TypeUrl,
        name: ResourceName,
        variants: &'a VariantSet<Arc<Located>>,
        grant: Option<Grant>,
    ) -> Resolution<'a> {
        let parameters = self.parameters(grant.as_ref());
        let denied = grant.as_ref().and_then(|grant| grant.denial(&type_url, &name));
        let Explanation { tests, found } = variants.explain(&parameters);
        let found = found.filter(|_| denied.is_none()).map(|(_, variant)| &**variant);
        let mut nearest = Vec::new();
        if found.is_none() && denied.is_none() {
            let miss = |(formula, variant): (_, &'a Arc<Located>)| {
                Some((&**variant, near_miss(formula, &parameters)?))
            };
            nearest = variants.iter().filter_map(miss).collect();
            nearest.sort_by_key(|(variant, miss)| (miss.failing.len(), variant.location.clone()));
            nearest.truncate(NEAREST_LISTED);
        }
        let payload = found.filter(|_| self.payload).and_then(|found| contents.payload_json(&found.resource));
        if self.payload && found.is_some() && payload.is_none() {
            eprintln!("warning: no descriptor for the type of the payload; see --descriptors");
        }
        Resolution { type_url, name, parameters, tests, found, nearest, payload, grant, denied }
    }
}

impl Resolution<'_> {
    fn text(&self) {
        let Self { type_url, name, parameters, found, payload, .. } = self;
        say(format_args!("{} {:?} for {parameters}", type_url.message_name(), name.as_str()));
        self.grant.iter().for_each(Grant::text);
        if let Some(denied) = &self.denied {
            return row("variant", &[format!("none: {denied}")]);
        }
        match found {
            Some(found) => {
                let id = found.resource.id();
                let variant =
                    when(&id.constraints).unwrap_or_else(|| "the only one, without constraints".into());
                row("variant", &[variant]);
                row("place", &[found.location.to_string()]);
                row("digest", &[found.resource.version().to_string()]);
            }
            None => row("variant", &["none: for such clients the resource does not exist".into()]),
        }
        row("because", &self.tests.iter().map(because).collect::<Vec<_>>());
        let is_unused = |(key, _): &(&Arc<str>, &Arc<str>)| !self.tests.iter().any(|test| test.key == **key);
        let unused: Vec<_> = parameters.iter().filter(is_unused).map(|(key, _)| key.to_string()).collect();
        if !unused.is_empty() {
            row("unused", &[format!("{}: made no difference", unused.join(", "))]);
        }
        for (variant, NearMiss { failing, matching }) in &self.nearest {
            let constraints = &variant.resource.id().constraints;
            let mut lines = vec![format!("{constraints} at {}", variant.location)];
            lines.extend(failing.iter().map(|condition| format!("  needs {condition}")));
            lines.extend(matching.iter().map(|matching| format!("  matches {matching}")));
            row("nearest", &lines);
        }
        if let Some(payload) = payload {
            say(format_args!("{payload:#}"));
        }
    }

    fn object(&self) -> Value {
        let Self { type_url, name, parameters: given, tests, found, nearest, payload, grant, denied } = self;
        let variant = found.map(|found| {
            json!({
                "when": when(&found.resource.id().constraints),
                "place": location(&found.location),
                "digest": found.resource.version().to_string(),
                "payload": payload,
            })
        });
        let test = |test: &KeyTest| json!({ "key": &*test.key, "value": test.value.as_deref(), "named": test.is_named });
        let near = |(variant, miss): &(&Located, NearMiss)| {
            let fails: BTreeMap<_, _> = miss
                .failing
                .iter()
                .map(|condition| (condition.formula().to_string(), condition.found.as_deref()))
                .collect();
            json!({
                "when": when(&variant.resource.id().constraints),
                "place": location(&variant.location),
                "fails": fails,
                "witness": miss.matching.as_ref().map(parameters),
            })
        };
        json!({
            "type": type_url.as_str(),
            "name": name.as_str(),
            "parameters": parameters(given),
            "variant": variant,
            "tests": tests.iter().map(test).collect::<Vec<_>>(),
            "nearest": nearest.iter().map(near).collect::<Vec<_>>(),
            "perhaps": null,
            "as": grant.as_ref().map(Grant::object),
            "denied": denied,
        })
    }
}

fn canonical_name(written: &str) -> ResourceName {
    let new_style = XdstpName::of(written).ok().flatten();
    new_style.map_or_else(|| ResourceName::from(written), |new_style| new_style.canonical())
}

fn because(test: &KeyTest) -> String {
    match (&test.value, test.is_named) {
        (None, _) => format!("{} is absent", test.key),
        (Some(value), true) => format!("{} is {value:?}, which some variant names", test.key),
        (Some(value), false) => format!("{} is {value:?}, which no variant names", test.key),
    }
}

/// Prints lines with a word before the first; prints nothing without lines.
fn row(word: &str, lines: &[String]) {
    for (number, line) in lines.iter().enumerate() {
        say(format_args!("  {:<8} {line}", if number == 0 { word } else { "" }));
    }
}

/// How many of the nearest variants are listed.
const NEAREST_LISTED: usize = 3;

const EXAMPLES: &str = "\
Examples:
  xds resolve examples/variants RDS web-routes env=prod version=v2
  xds resolve config Cluster payments                   the variant for clients without parameters
  xds resolve config CDS payments env=prod --payload    with its content
  xds resolve config --as spiffe://example.org/env/prod/sa/web --policy policy.yaml
  xds resolve config CDS payments --as spiffe://example.org/ops/me --policy policy.yaml
  xds resolve config CDS payments env=prod --format json | jq .variant.place

JSON: one object with
  type, name, parameters
  variant   {when, place: {file, line}, digest, payload}; null if none matches
  tests     [{key, value, named}]: the keys looked at; `named`: some variant names this value
  nearest   [{when, place, fails: {condition: value found}, witness}]: variants that nearly match
  perhaps   a similar name, if this one does not exist
  as        {identity, rule: {number, client, place}, parameters, inspect, denied}, with --as
  denied    why the identity may not read the resource
Without TYPE and NAME: `as`, with reads: [{type, names, of}]; `of` counts all names of the type.
  `when` is null for the variant that is for all clients. Fields may be added.

Exit codes:
  0  a variant matches
  1  a file cannot be read
  2  invalid input, also a folder with errors
  3  no variant matches, or the policy denies it";
