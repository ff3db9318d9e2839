//! Who calls, and what that client may do (ST50 to ST52).

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use http::{Extensions, HeaderMap, header};
use tonic::Status;
use xds_core::Access;
use xds_store::commit::WriteAccess;
use xds_store::key::RecordKey;

use crate::tokens::{TokenDigest, Tokens};

/// Gives clients their rights. The policy file of the program implements it.
pub trait StoreAuthorizer: Debug + Send + Sync {
    /// The rights of a client with a token or a certificate. The API asks for each call, and again
    /// during a watch.
    fn rights(&self, client: &ApiClient) -> Arc<Rights>;
}

/// A client of the API, as its credential identifies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiClient {
    /// A command on the same machine that can read the files of the store. It may do everything.
    Local,
    /// A token of the token file, by its name.
    Token(String),
    /// A certificate, by its names: the SPIFFE id, or its DNS names.
    Certificate(Vec<String>),
}

/// What a client may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rights {
    /// The records that it may read.
    pub read: Access,
    /// The records that it may write.
    pub write: Access,
    /// The named owner that it always acts as; `None`: any or none.
    pub owner: Option<String>,
    /// Force, configuration records and maintenance.
    pub operate: bool,
    /// The status of the store.
    pub inspect: bool,
    /// The nodes that it may replicate as.
    pub replicate: Replicate,
}

/// Which node of the cluster a client may be (SR50).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replicate {
    /// None.
    No,
    /// A node of this region.
    Region(String),
    /// Any node.
    Any,
}

/// The certificate of a connection. The program that accepts the connection adds it to the
/// extensions of each request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The SPIFFE id, or else the DNS names.
    pub names: Vec<String>,
    /// When it expires.
    pub expires: SystemTime,
}

/// Who may use the API of one store.
pub struct AccessControl {
    /// The token of commands on the same machine.
    local: Option<TokenDigest>,
    tokens: ArcSwap<Tokens>,
    authorizer: Option<Arc<dyn StoreAuthorizer>>,
}

/// The client of one call.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    control: Arc<AccessControl>,
    pub(crate) client: ApiClient,
    credential: Credential,
    pub(crate) rights: Arc<Rights>,
}

#[derive(Debug, Clone)]
enum Credential {
    Token(TokenDigest),
    /// When it expires.
    Certificate(SystemTime),
}

impl AccessControl {
    /// Only this token of commands on the same machine, which may do everything.
    #[must_use]
    pub fn local(token: &str) -> Self {
        Self { local: Some(TokenDigest::of(token.as_bytes())), ..Self::nobody() }
    }

    /// Nobody.
    #[must_use]
    pub fn nobody() -> Self {
        Self { local: None, tokens: ArcSwap::default(), authorizer: None }
    }

    /// Rights by policy. Without it a token of the token file may do everything, and a certificate
    /// nothing (ST52).
    #[must_use]
    pub fn with_authorizer(self, authorizer: Arc<dyn StoreAuthorizer>) -> Self {
        Self { authorizer: Some(authorizer), ..self }
    }

    /// Replaces the tokens of the token file. Watches of tokens that are no longer in it end.
    pub fn set_tokens(&self, tokens: Tokens) {
        self.tokens.store(Arc::new(tokens));
    }

    /// Whether these tokens are in use.
    #[must_use]
    pub fn has_tokens(&self, tokens: &Tokens) -> bool {
        **self.tokens.load() == *tokens
    }

    /// The client of a request, by its headers alone (ST51).
    pub(crate) fn caller(
        self: &Arc<Self>,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Result<Caller, Status> {
        let mut presented = headers.get_all(header::AUTHORIZATION).iter();
        let (client, credential) = match (presented.next(), presented.next()) {
            (Some(header), None) => {
                let token = bearer(header.as_bytes()).ok_or_else(unauthenticated)?;
                let digest = TokenDigest::of(token);
                let client = self.client_of(&digest).ok_or_else(unauthenticated)?;
                (client, Credential::Token(digest))
            }
            // A proxy in between might use one of them, and this server the other.
            (Some(_), Some(_)) => return Err(unauthenticated()),
            (None, _) => {
                let certificate = extensions.get::<ClientCertificate>();
                let ClientCertificate { names, expires } = certificate.ok_or_else(unauthenticated)?.clone();
                // No certificate is taken for a token.
                let names: Vec<_> =
                    names.into_iter().filter(|name| !name.starts_with(TOKEN_PREFIX)).collect();
                if names.is_empty() || expires < SystemTime::now() {
                    return Err(unauthenticated());
                }
                (ApiClient::Certificate(names), Credential::Certificate(expires))
            }
        };
        let rights = self.rights(&client);
        Ok(Caller { control: Arc::clone(self), client, credential, rights })
    }

    fn client_of(&self, digest: &TokenDigest) -> Option<ApiClient> {
        let is_local = self.local.as_ref().is_some_and(|local| local.is(digest));
        let tokens = self.tokens.load();
        // Both are compared always, so the time does not show which one it was.
        let name = tokens.find(digest);
        if is_local { Some(ApiClient::Local) } else { name.map(|name| ApiClient::Token(name.to_owned())) }
    }

    fn rights(&self, client: &ApiClient) -> Arc<Rights> {
        match (client, &self.authorizer) {
            (ApiClient::Local, _) | (ApiClient::Token(_), None) => Arc::new(Rights::everything()),
            (_, Some(authorizer)) => authorizer.rights(client),
            (ApiClient::Certificate(_), None) => Arc::new(Rights::nothing()),
        }
    }
}

impl Caller {
    /// Whether its credential and its rights are what they were when the call began (ST53).
    pub(crate) fn is_unchanged(&self) -> bool {
        let is_valid = match &self.credential {
            Credential::Token(digest) => self.control.client_of(digest).as_ref() == Some(&self.client),
            Credential::Certificate(expires) => *expires >= SystemTime::now(),
        };
        is_valid && self.control.rights(&self.client) == self.rights
    }

    pub(crate) fn may_read(&self, key: &RecordKey) -> bool {
        self.rights.read.allows(&key.type_url(), &key.name())
    }
}

impl ApiClient {
    /// Its name in the log and in history. It begins with its kind, but for `local`: so no client
    /// has the name of another one, or of what the store commits itself, such as `expiry`.
    #[must_use]
    pub fn identity(&self) -> String {
        match self {
            Self::Local => "local".to_owned(),
            Self::Token(name) => format!("{TOKEN_PREFIX}{name}"),
            Self::Certificate(names) => match names.first().map_or("", String::as_str) {
                id if id.contains("://") => id.to_owned(),
                name => format!("dns:{name}"),
            },
        }
    }
}

impl Rights {
    /// Everything, as any owner.
    #[must_use]
    pub fn everything() -> Self {
        let everything = Access::everything();
        let (write, replicate) = (everything.clone(), Replicate::Any);
        Self { read: everything, write, owner: None, operate: true, inspect: true, replicate }
    }

    /// Nothing.
    #[must_use]
    pub fn nothing() -> Self {
        let nothing = Access::nothing();
        let (write, replicate) = (nothing.clone(), Replicate::No);
        Self { read: nothing, write, owner: None, operate: false, inspect: false, replicate }
    }

    /// The records that the client may write. Configuration needs `operate` (ST55).
    pub(crate) fn write_access(&self) -> WriteAccess {
        let (records, read) = (self.write.clone(), self.read.clone());
        WriteAccess { records, configuration: self.operate, read }
    }
}

impl Debug for AccessControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessControl").field("authorizer", &self.authorizer).finish_non_exhaustive()
    }
}

/// One text for a missing and for a wrong token (ST51).
fn unauthenticated() -> Status {
    Status::unauthenticated(
        "no identity that this server knows: the token is wrong or revoked, or there is neither a token (metadata \
         `authorization: Bearer TOKEN`) nor a client certificate",
    )
}

/// The token in a header.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked(BEARER.len())?;
    scheme.eq_ignore_ascii_case(BEARER).then(|| token.trim_ascii())
}

const BEARER: &[u8] = b"bearer ";

/// The start of the name of a token in history and in the policy.
pub const TOKEN_PREFIX: &str = "token:";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn caller(control: &Arc<AccessControl>, header: Option<&str>, names: &[&str]) -> Result<Caller, Status> {
        let mut headers = HeaderMap::new();
        if let Some(header) = header {
            headers.insert(header::AUTHORIZATION, header.parse().unwrap());
        }
        let mut extensions = Extensions::new();
        if !names.is_empty() {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let expires = SystemTime::now() + Duration::from_secs(60);
            extensions.insert(ClientCertificate { names, expires });
        }
        control.caller(&headers, &extensions)
    }

    fn control() -> Arc<AccessControl> {
        let control = AccessControl::local("the-local-token-of-this-server");
        control.set_tokens(Tokens::parse("ci 0123456789abcdef\n").unwrap());
        Arc::new(control)
    }

    #[test]
    fn st51_a_missing_and_a_wrong_token_get_one_text() {
        let control = control();
        let wrong = [
            None,
            Some("Bearer wrong-wrong-wrong"),
            Some("Bearer "),
            Some("Basic 0123456789abcdef"),
            Some("0123456789abcdef"),
            Some("Bearer 0123456789abcde"),
        ];
        let statuses: Vec<_> =
            wrong.iter().map(|header| caller(&control, *header, &[]).unwrap_err()).collect();
        assert!(statuses.iter().all(|status| status.code() == tonic::Code::Unauthenticated));
        assert!(statuses.iter().all(|status| status.message() == statuses[0].message()));
        // A wrong token does not fall back to the certificate.
        assert!(caller(&control, Some("Bearer wrong"), &["spiffe://t/a"]).is_err());
        let mut twice = HeaderMap::new();
        twice.append(header::AUTHORIZATION, "Bearer 0123456789abcdef".parse().unwrap());
        twice.append(header::AUTHORIZATION, "Bearer 0123456789abcdef".parse().unwrap());
        assert!(control.caller(&twice, &Extensions::new()).is_err());
    }

    #[test]
    fn st52_without_a_policy_a_token_may_do_everything_and_a_certificate_nothing() {
        let control = control();
        let ci = caller(&control, Some("bearer 0123456789abcdef"), &["spiffe://t/a"]).unwrap();
        assert_eq!((ci.client.identity(), &*ci.rights), ("token:ci".into(), &Rights::everything()));
        let local = caller(&control, Some("Bearer the-local-token-of-this-server"), &[]).unwrap();
        assert_eq!((local.client.identity(), &*local.rights), ("local".into(), &Rights::everything()));
        let certificate = caller(&control, None, &["spiffe://t/a"]).unwrap();
        assert_eq!(certificate.client.identity(), "spiffe://t/a");
        assert_eq!(caller(&control, None, &["local"]).unwrap().client.identity(), "dns:local");
        assert_eq!(*certificate.rights, Rights::nothing());
        // A certificate cannot have the name of a token.
        assert!(caller(&control, None, &["token:ci"]).is_err());
    }

    #[test]
    fn st53_a_token_that_is_removed_is_no_longer_valid() {
        let control = control();
        let ci = caller(&control, Some("Bearer 0123456789abcdef"), &[]).unwrap();
        assert!(ci.is_unchanged());
        control.set_tokens(Tokens::parse("ci 0123456789abcdef\nother fedcba9876543210\n").unwrap());
        assert!(ci.is_unchanged());
        control.set_tokens(Tokens::parse("ci fedcba9876543210\n").unwrap());
        assert!(!ci.is_unchanged());
    }
}
