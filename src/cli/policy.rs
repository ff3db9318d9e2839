//! The policy file: which client may read which resources.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use tokio::time::sleep;
use tracing::{error, info, warn};
use xds::{Access, Authorizer, Denied, Identity, NamePatterns, Peer, Reloads, StreamClient, TypeUrl};
use xds_store_server::{ApiClient, Replicate, Rights, StoreAuthorizer, TOKEN_PREFIX};

use document::Document;
pub(super) use document::{PolicyMistake, PolicyWarning};
use pattern::Pattern;
pub(super) use schema::schema;

mod document;
mod pattern;
mod schema;

/// A policy file, read again when it changes.
#[derive(Debug)]
pub(super) struct PolicyFile {
    path: PathBuf,
    current: ArcSwap<(String, Policy)>,
    /// New text that was seen once. It counts when the next look sees it too.
    seen: Mutex<Option<String>>,
    pub(super) reloads: Arc<Reloads>,
}

/// What a look at the file found.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// The policy in use.
    Same,
    /// New text. A program may still be writing it, so look again.
    Unsettled,
    /// A new policy, which is in use now.
    New,
}

/// Rules in order: the first one that matches a client decides what it may read.
#[derive(Debug)]
struct Policy {
    rules: Vec<Rule>,
    warnings: Vec<PolicyWarning>,
}

#[derive(Debug)]
struct Rule {
    client: Pattern,
    /// The pattern as written.
    text: String,
    /// The line of the pattern.
    line: u64,
    access: Access,
    /// Values may contain `{name}`, which stands for the text that the pattern captured.
    parameters: BTreeMap<String, String>,
    may_inspect: bool,
    store: StoreGrant,
    access_cache: Mutex<AccessCache>,
}

/// What a client may change in a store (ST52). Texts may contain `{name}`, as parameters may.
#[derive(Debug)]
struct StoreGrant {
    write: Vec<WriteGrant>,
    owner: Option<String>,
    operate: bool,
    replicate: Replicate,
}

/// `None`: all types, all names.
#[derive(Debug)]
struct WriteGrant {
    types: Option<Vec<TypeUrl>>,
    names: Option<Vec<String>>,
}

/// The access that a rule gives, by the values of its parameters. Clients with the same values
/// share one `Access`, and a stream that is authorized again gets the same one.
#[derive(Debug, Default)]
struct AccessCache {
    of_values: BTreeMap<Vec<String>, Arc<Access>>,
    /// At this size, entries that no stream uses any more are removed.
    swept_at: usize,
}

/// Why a policy file cannot be used. The last good policy stays in use.
#[derive(Debug, thiserror::Error)]
pub(super) enum PolicyError {
    #[error("cannot read the policy {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: std::io::Error },
    /// At least one error.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid(Vec<PolicyMistake>),
}

impl PolicyFile {
    pub(super) fn open(path: &Path) -> Result<Arc<Self>, PolicyError> {
        let reloads = Arc::new(Reloads::default());
        let text = read(path, &reloads)?;
        let policy = Policy::parse(&text, path)?;
        policy.log_warnings();
        let current = ArcSwap::from_pointee((text, policy));
        reloads.on_new();
        Ok(Arc::new(Self { path: path.to_owned(), current, seen: Mutex::default(), reloads }))
    }

    /// Reads the file again, until the future is dropped. If the file has an error, the last good
    /// policy stays in use.
    pub(super) async fn follow(self: Arc<Self>, every: Duration) {
        loop {
            self.reloads.due(every).await;
            let policy = Arc::clone(&self);
            let reloaded = self.reloads.blocking("policy", move || policy.reload()).await;
            let Ok(reloaded) = reloaded else { return };
            match reloaded {
                Ok(Look::New) => {
                    self.reloads.on_new();
                    info!(policy = %self.path.display(), "loaded a new policy");
                }
                Ok(Look::Same) => self.reloads.on_same(),
                // No request shortens this wait.
                Ok(Look::Unsettled) => {
                    sleep(LOOK_AGAIN_AFTER).await;
                    self.reloads.request();
                }
                Err(error) => {
                    if self.reloads.on_refused(error.to_string()) {
                        error.to_string().lines().take(LINES_LOGGED).for_each(|line| error!("{line}"));
                        warn!("the new policy is invalid; the last good one stays in use");
                    }
                }
            }
        }
    }

    /// Uses the policy in the file if two looks in a row see the same text. The first half of a
    /// policy may permit more than the whole: without `names` a client may read all names.
    fn reload(&self) -> Result<Look, PolicyError> {
        let text = read(&self.path, &self.reloads)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if text == self.current.load().0 {
            *seen = None;
            return Ok(Look::Same);
        }
        if seen.replace(text.clone()).as_ref() != Some(&text) {
            return Ok(Look::Unsettled);
        }
        drop(seen);
        let policy = Policy::parse(&text, &self.path)?;
        policy.log_warnings();
        self.current.store(Arc::new((text, policy)));
        Ok(Look::New)
    }
}

impl Authorizer for PolicyFile {
    fn authorize(&self, peer: &Peer, _: &StreamClient) -> Result<Arc<Access>, Denied> {
        // Only the certificate counts, not what the client says of itself.
        self.current.load().1.access(peer)
    }

    fn may_inspect(&self, peer: &Peer) -> bool {
        self.current.load().1.rule(peer).is_some_and(|(rule, _)| rule.may_inspect)
    }
}

impl StoreAuthorizer for PolicyFile {
    fn rights(&self, client: &ApiClient) -> Arc<Rights> {
        Arc::new(self.current.load().1.rights(client))
    }
}

impl Policy {
    fn parse(text: &str, path: &Path) -> Result<Self, PolicyError> {
        let Document { rules, warnings } = document::parse(text, path).map_err(PolicyError::Invalid)?;
        Ok(Self { rules, warnings })
    }

    fn log_warnings(&self) {
        let shown = self.warnings.iter().take(LINES_LOGGED);
        shown.for_each(|warning| warn!(kind = warning.kind(), "{warning}"));
        if let Some(not_shown) = self.warnings.len().checked_sub(LINES_LOGGED).filter(|more| *more > 0) {
            warn!(not_shown, "the policy has more warnings; `xds check --policy` lists all");
        }
    }

    /// The first rule that matches a peer, with the text that its pattern captured.
    fn rule(&self, peer: &Peer) -> Option<(&Rule, BTreeMap<&str, String>)> {
        let names = peer.identity.as_ref().map(|identity| identity.names());
        let rules = self.rules.iter().filter(|rule| !rule.is_for_tokens());
        rules.into_iter().find_map(|rule| Some((rule, rule.client.find(names)?)))
    }

    /// What a client of the store's API may do (ST52). Rules for certificates give tokens nothing,
    /// not even those for `*`, and rules for tokens give certificates nothing.
    fn rights(&self, client: &ApiClient) -> Rights {
        let (names, is_token) = match client {
            ApiClient::Local => return Rights::everything(),
            ApiClient::Token(_) => (vec![client.identity()], true),
            ApiClient::Certificate(names) => (names.clone(), false),
        };
        let rules = self.rules.iter().filter(|rule| rule.is_for_tokens() == is_token);
        let found = rules.into_iter().find_map(|rule| Some((rule, rule.client.find(Some(&names))?)));
        found.map_or_else(Rights::nothing, |(rule, found)| rule.rights(&found))
    }

    fn access(&self, peer: &Peer) -> Result<Arc<Access>, Denied> {
        let Some((rule, found)) = self.rule(peer) else {
            let text = match peer.name() {
                "" => "no rule of the policy matches clients without a certificate".to_owned(),
                name => format!("no rule of the policy matches {name}"),
            };
            return Err(Denied(text));
        };
        Ok(rule.access(&found))
    }
}

/// What an identity may read.
#[derive(Debug)]
pub(super) struct Granted {
    /// The number of the rule, from 1.
    pub(super) rule: usize,
    /// The line of the rule in the policy.
    pub(super) line: u64,
    /// The pattern of the rule.
    pub(super) client: String,
    pub(super) access: Arc<Access>,
    pub(super) may_inspect: bool,
}

impl Granted {
    /// What a client with this identity may read; `anonymous` is a client without a certificate.
    ///
    /// # Errors
    /// The policy cannot be used.
    pub(super) fn to(identity: &str, path: &Path) -> Result<Result<Self, Denied>, PolicyError> {
        let policy = Policy::parse(&read(path, &Reloads::default())?, path)?;
        let mut peer = Peer::default();
        if identity != pattern::ANONYMOUS {
            // As in a certificate, whose host names are in lower case.
            let is_host = !identity.contains("://");
            let name = if is_host { identity.to_ascii_lowercase() } else { identity.to_owned() };
            peer.identity = Some(Arc::new(Identity::new(vec![name], SystemTime::UNIX_EPOCH)));
        }
        Ok(policy.access(&peer).map(|access| {
            let names = peer.identity.as_ref().map(|identity| identity.names());
            let matches = |rule: &Rule| rule.client.find(names).is_some();
            let number = policy.rules.iter().position(matches).expect("a rule gave the access");
            let rule = &policy.rules[number];
            let (line, client, may_inspect) = (rule.line, rule.text.clone(), rule.may_inspect);
            Self { rule: number + 1, line, client, access, may_inspect }
        }))
    }
}

/// The number of rules and the warnings of a policy.
///
/// # Errors
/// The policy cannot be used.
pub(super) fn check(path: &Path) -> Result<(usize, Vec<PolicyWarning>), PolicyError> {
    let policy = Policy::parse(&read(path, &Reloads::default())?, path)?;
    Ok((policy.rules.len(), policy.warnings))
}

impl Rule {
    fn is_for_tokens(&self) -> bool {
        self.text.starts_with(TOKEN_PREFIX)
    }

    fn rights(&self, found: &BTreeMap<&str, String>) -> Rights {
        let StoreGrant { write: grants, owner, operate, replicate } = &self.store;
        let mut write = Access::nothing();
        for WriteGrant { types, names } in grants {
            let names = match names {
                None => NamePatterns::everything(),
                // A star in a captured text would make a prefix of a whole name.
                Some(names) => {
                    let is_safe = |name: &&String| {
                        names_in_braces(name).all(|key| found.get(key).is_none_or(|text| !text.contains('*')))
                    };
                    names.iter().filter(is_safe).map(|name| fill(name, found)).collect()
                }
            };
            write = match types {
                None => write.with_every_type(&names),
                Some(types) => {
                    types.iter().fold(write, |write, of| write.with_type(of.clone(), names.clone()))
                }
            };
        }
        let owner = owner.as_ref().map(|owner| fill(owner, found));
        let read = (*self.access(found)).clone();
        let (operate, replicate) = (*operate, replicate.clone());
        Rights { read, write, owner, operate, inspect: self.may_inspect, replicate }
    }

    fn access(&self, found: &BTreeMap<&str, String>) -> Arc<Access> {
        let values: Vec<_> = self.parameters.values().map(|value| fill(value, found)).collect();
        // The cache is consistent even if a thread panicked while it had the lock.
        let mut access_cache = self.access_cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(access) = access_cache.of_values.get(&values) {
            return Arc::clone(access);
        }
        if access_cache.of_values.len() >= access_cache.swept_at {
            access_cache.of_values.retain(|_, access| Arc::strong_count(access) > 1);
            access_cache.swept_at = 2 * access_cache.of_values.len() + FEW;
        }
        let parameters =
            self.parameters.keys().zip(&values).map(|(key, value)| (key.as_str(), value.as_str()));
        let access = Arc::new(self.access.clone().with_parameters(parameters.collect()));
        access_cache.of_values.insert(values, Arc::clone(&access));
        access
    }
}

/// The names in braces in a value.
fn names_in_braces(value: &str) -> impl Iterator<Item = &str> {
    value.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name)
}

/// Replaces the names in braces by the captured text. Braces in the captured text are not replaced
/// again: the client chose that text.
fn fill(value: &str, found: &BTreeMap<&str, String>) -> String {
    let (mut text, mut rest) = (String::new(), value);
    while let Some((before, after)) = rest.split_once('{') {
        let known = after.split_once('}').and_then(|(name, behind)| Some((found.get(name)?, behind)));
        text.push_str(before);
        match known {
            Some((of, behind)) => {
                text.push_str(of);
                rest = behind;
            }
            None => {
                text.push('{');
                rest = after;
            }
        }
    }
    text + rest
}

/// The largest file, in bytes.
const FILE_LIMIT_BYTES: usize = 16 << 20;

/// When to look again whether a new policy is complete.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The most errors, or warnings, in the log at once; `xds check --policy` shows all.
const LINES_LOGGED: usize = 100;

/// This many unused entries are not worth a search.
const FEW: usize = 100;

fn read(path: &Path, reloads: &Reloads) -> Result<String, PolicyError> {
    let _reading = reloads.reading(&path.display().to_string());
    xds_file::read_to_string(path, FILE_LIMIT_BYTES)
        .map_err(|error| PolicyError::Unreadable { path: path.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use xds::{Parameters, type_url as url};

    use super::*;

    const TEXT: &str = r#"
rules:
- client: spiffe://example.org/env/{env}/sa/{service}
  parameters: { env: "{env}", who: "{service}-{env}" }
  read:
  - types: [LDS, RDS]
    names: ["{no template here}", "web/*"]
  - types: [CDS]
- client: "{host}.ops.example.org"
  read: [{}]
  inspect: true
- client: anonymous
  read:
  - names: [public/*]
"#;

    fn peer(names: &[&str]) -> Peer {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let identity = (!names.is_empty()).then(|| Arc::new(Identity::new(names, SystemTime::now())));
        let mut peer = Peer::default();
        peer.identity = identity;
        peer
    }

    fn policy(text: &str) -> Result<Policy, PolicyError> {
        Policy::parse(text, Path::new("policy.yaml"))
    }

    #[test]
    fn the_first_rule_for_a_client_says_what_it_may_read_and_what_it_is() {
        let policy = policy(TEXT).unwrap();
        let access = policy.access(&peer(&["spiffe://example.org/env/prod/sa/web"])).unwrap();
        let forced = Parameters::from_iter([("env", "prod"), ("who", "web-prod")]);
        assert_eq!(access.parameters(), &forced);
        let allows =
            |access: &Access, type_url: &str, name: &str| access.allows(&type_url.into(), &name.into());
        assert!(allows(&access, url::LISTENER, "web/a") && allows(&access, url::CLUSTER, "any"));
        assert!(!allows(&access, url::LISTENER, "other") && !allows(&access, url::SECRET, "web/a"));
        let open = policy.access(&peer(&[])).unwrap();
        assert!(allows(&open, url::CLUSTER, "public/a") && !allows(&open, url::CLUSTER, "web/a"));
        assert!(policy.rule(&peer(&["a.ops.example.org"])).unwrap().0.may_inspect);
        assert!(allows(&policy.access(&peer(&["x", "a.ops.example.org"])).unwrap(), url::SECRET, "s"));
    }

    #[test]
    fn clients_of_a_rule_and_its_parameters_share_what_they_may_read_and_get_it_again() {
        let policy = policy(TEXT).unwrap();
        let access = |name: &str| policy.access(&peer(&[name])).unwrap();
        let (one, same) =
            (access("spiffe://example.org/env/a/sa/b"), access("spiffe://example.org/env/a/sa/b"));
        assert!(Arc::ptr_eq(&one, &same));
        assert_ne!(one, access("spiffe://example.org/env/b/sa/b"));
        assert!(Arc::ptr_eq(&access("x.ops.example.org"), &access("y.ops.example.org")));
        // Entries that no stream uses are removed.
        let names: Vec<_> =
            (0..10 * FEW).map(|number| format!("spiffe://example.org/env/a/sa/{number}")).collect();
        names.iter().for_each(|name| drop(access(name)));
        let access_cache = policy.rules[0].access_cache.lock().unwrap().of_values.len();
        assert!(access_cache <= 2 * FEW, "{access_cache}");
        assert!(Arc::ptr_eq(&one, &access("spiffe://example.org/env/a/sa/b")), "a stream still has it");
    }

    #[test]
    fn st52_a_token_gets_the_rights_of_its_rule_and_of_no_other() {
        let policy = policy(
            "rules:
- client: '*'
  read: [{}]
  write: [{}]
- client: token:ci-{team}
  read: [{types: [CDS]}]
  write: [{types: [CDS], names: ['{team}/*', 'shared']}]
  owner: '{team}'
- client: token:Admin
  operate: true
  inspect: true
- {client: token:north-node, replicate: north}
- {client: token:any-node, replicate: '*'}
",
        )
        .unwrap();
        assert!(policy.warnings.is_empty(), "{:?}", policy.warnings);
        let rights = |name: &str| policy.rights(&ApiClient::Token(name.to_owned()));
        let writes = |rights: &Rights, name: &str| rights.write.allows(&url::CLUSTER.into(), &name.into());
        let shop = rights("ci-shop");
        assert!(writes(&shop, "shop/a") && writes(&shop, "shared") && !writes(&shop, "ads/a"));
        assert!(!shop.write.allows(&url::SECRET.into(), &"shop/a".into()));
        assert_eq!((shop.owner.as_deref(), shop.operate, shop.inspect), (Some("shop"), false, false));
        assert!(!writes(&rights("ci-*"), "ads/a"), "a star in a captured text is no pattern");
        let admin = rights("Admin");
        assert_eq!((admin.operate, admin.inspect, &admin.write), (true, true, &Access::nothing()));
        let replicate = ["north-node", "any-node", "Admin"].map(|name| rights(name).replicate);
        assert_eq!(replicate, [Replicate::Region("north".into()), Replicate::Any, Replicate::No]);
        // `*` is for certificates.
        assert_eq!(rights("other"), Rights::nothing());
        let certificate = policy.rights(&ApiClient::Certificate(vec!["a.example".into()]));
        assert!(writes(&certificate, "ads/a"));
        let streams = policy.access(&peer(&["token:Admin"])).unwrap();
        assert!(
            streams.allows(&url::CLUSTER.into(), &"a".into()),
            "the rule of a token is for the API alone"
        );
        let wrong = Policy::parse("rules: [{client: 'token:a', owner: '{team}'}]", Path::new("p.yaml"));
        assert!(wrong.unwrap_err().to_string().contains("owner uses {team}, which client: token:a"));
    }

    /// `- types: [SDS]` without the `names` after it lets a client read all secrets, so text that a
    /// program is still writing must not count.
    #[test]
    fn half_a_policy_is_not_used() {
        let path = std::env::temp_dir().join(format!("xds-half-policy-{}.yaml", std::process::id()));
        let rule = "rules:\n- client: anonymous\n  read:\n  - types: [SDS]\n";
        let names = |names: &str| format!("{rule}    names: [{names}]\n");
        std::fs::write(&path, names("shop/a")).unwrap();
        let file = PolicyFile::open(&path).unwrap();
        let reads = |name: &str| {
            let access = file.current.load().1.access(&peer(&[])).unwrap();
            access.allows(&url::SECRET.into(), &name.into())
        };
        assert_eq!(file.reload().unwrap(), Look::Same);
        std::fs::write(&path, rule).unwrap();
        assert_eq!(file.reload().unwrap(), Look::Unsettled);
        assert!(!reads("pay/a"), "the rest of the file may come");
        std::fs::write(&path, names("shop/a, shop/b")).unwrap();
        assert_eq!(file.reload().unwrap(), Look::Unsettled);
        assert_eq!(file.reload().unwrap(), Look::New);
        assert!(reads("shop/b") && !reads("pay/a"));
        // An error is found once the text is complete, and each time from then on.
        std::fs::write(&path, "rules: [").unwrap();
        assert_eq!(file.reload().unwrap(), Look::Unsettled);
        assert!(file.reload().is_err() && file.reload().is_err());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_a_pattern_found_is_not_taken_for_a_name_in_braces() {
        let found = BTreeMap::from([("env", "{service}".to_owned()), ("service", "prod".to_owned())]);
        assert_eq!(fill("{env}-{service}", &found), "{service}-prod");
        assert_eq!(fill("a{env}{x}{", &found), "a{service}{x}{");
    }

    #[test]
    fn who_has_no_rule_is_denied() {
        let denied = policy(TEXT).unwrap().access(&peer(&["spiffe://elsewhere/env/prod/sa/web"]));
        assert_eq!(denied.unwrap_err().0, "no rule of the policy matches spiffe://elsewhere/env/prod/sa/web");
        let only = policy("rules: [{client: a.b, read: [{}]}]").unwrap();
        assert!(only.access(&peer(&[])).unwrap_err().0.contains("without a certificate"));
    }
}
