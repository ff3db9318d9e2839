//! New-style names (TP1): their parts, and when two of them are equal.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};
use std::str::FromStr;

use crate::name::{ResourceName, TypeUrl};

use escape::{Escaped, Piece};

pub use error::XdstpError;
pub use url::XdstpUrl;
pub(crate) use url::is_entry;

mod error;
mod escape;
mod url;

/// The parts of a new-style name: `xdstp://authority/type/id?context#directives` without the
/// directives (X2, X3).
///
/// Two texts are the same name when their decoded parts are equal, with the context parameters as a
/// set (X4). All context parameters count (X8). `Display` prints the canonical text, which is the
/// same for all of these texts and is the key of a cache:
///
/// ```
/// use xds_core::{XdstpError, XdstpName};
///
/// let requested = "xdstp://a.example/acme.Thing/shop/%63art?zone=1&env=prod";
/// let name = XdstpName::of(requested)?.expect("it starts with xdstp:");
/// assert_eq!(name.to_string(), "xdstp://a.example/acme.Thing/shop/cart?env=prod&zone=1");
/// let glob = name.glob().expect("it is not a glob itself");
/// assert_eq!(glob.as_str(), "xdstp://a.example/acme.Thing/shop/*?env=prod&zone=1");
///
/// assert_eq!(XdstpName::of("shop/cart"), Ok(None));
/// assert!(matches!(XdstpName::of("xdstp://a.example"), Err(XdstpError::MissingType { column: 18 })));
/// # Ok::<(), XdstpError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XdstpName {
    authority: String,
    resource_type: String,
    id: String,
    context: BTreeMap<String, String>,
}

impl XdstpName {
    /// Reads the name of a request or a resource; `None` for an old-style name, which is compared
    /// byte for byte (X1). For old-style names only the first bytes are read.
    ///
    /// # Errors
    /// X6: no resource can have this name. X3: nor can it have directives, which are for clients.
    pub fn of(text: &str) -> Result<Option<Self>, XdstpError> {
        if Self::is_new_style(text) { text.parse().map(Some) } else { Ok(None) }
    }

    /// Whether a text is a new-style name. All other names are opaque (X1).
    #[must_use]
    pub fn is_new_style(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// The authority that manages the name; may be empty.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The name of the message, as in [`TypeUrl::message_name`].
    #[must_use]
    pub fn resource_type(&self) -> &str {
        &self.resource_type
    }

    /// The id of the resource at the authority: segments between slashes. A segment, or the whole
    /// id, may be empty.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The context parameters in the order of their keys. They are part of the name and never
    /// parameters of TP2 (T47).
    #[must_use]
    pub fn context(&self) -> &BTreeMap<String, String> {
        &self.context
    }

    /// Checks that the name has the type of its request or resource (X2).
    ///
    /// # Errors
    /// [`XdstpError::WrongType`]
    pub fn check_type(&self, type_url: &TypeUrl) -> Result<(), XdstpError> {
        if self.resource_type == type_url.message_name() {
            return Ok(());
        }
        let (found, expected) = (self.resource_type.clone(), type_url.message_name().into());
        Err(XdstpError::WrongType { found, expected })
    }

    /// Whether it stands for all names that differ from it only in the last segment of the id
    /// (X12).
    #[must_use]
    pub fn is_glob(&self) -> bool {
        self.parent_and_last().1 == GLOB
    }

    /// The canonical text of the glob that includes this name; `None` for a glob (X12).
    #[must_use]
    pub fn glob(&self) -> Option<ResourceName> {
        let (parent, last) = self.parent_and_last();
        (last != GLOB).then(|| ResourceName::new(Canonical { name: self, parent, last: GLOB }.to_string()))
    }

    /// The canonical text as the key of a cache (X3, X4).
    #[must_use]
    pub fn canonical(&self) -> ResourceName {
        ResourceName::new(self.to_string())
    }

    /// The id up to its last slash, with the slash, and the last segment.
    fn parent_and_last(&self) -> (&str, &str) {
        self.id.split_at(self.id.rfind('/').map_or(0, |slash| slash + 1))
    }

    /// Reads the name at the start of a text, and the part after the `#`, if there is one.
    fn read(text: &str) -> Result<(Self, Option<Piece<'_>>), XdstpError> {
        let whole = Piece::of(text);
        let rest = whole.behind(SCHEME).ok_or(XdstpError::NotXdstp)?;
        // X6: RFC 3986 allows URIs without an authority, but these names need its slashes.
        let rest = rest.behind("//").ok_or_else(|| XdstpError::MissingSlashes { column: rest.column() })?;
        let (name, directives) = rest.split('#');
        let (path, context) = name.split('?');
        let (authority, path) = path.split('/');
        let Some(path) = path else { return Err(XdstpError::MissingType { column: authority.end_column() }) };
        let (resource_type, id) = path.split('/');
        let name = Self {
            authority: authority.decoded()?.into_owned(),
            resource_type: Self::read_type(&resource_type)?,
            id: id.map(|id| id.decoded()).transpose()?.map(Cow::into_owned).unwrap_or_default(),
            context: context.map(Self::read_context).transpose()?.unwrap_or_default(),
        };
        Ok((name, directives))
    }

    fn read_type(piece: &Piece<'_>) -> Result<String, XdstpError> {
        let decoded = piece.decoded()?;
        if decoded.is_empty() {
            return Err(XdstpError::MissingType { column: piece.column() });
        }
        // Clients disagree whether an escaped slash ends the type, so it is refused.
        if !decoded.bytes().all(escape::is_unreserved) {
            return Err(XdstpError::BadType { column: piece.column(), found: decoded.into_owned() });
        }
        Ok(decoded.into_owned())
    }

    /// X4: for a key that occurs twice the last value counts. A key without `=` has the empty
    /// value.
    fn read_context(piece: Piece<'_>) -> Result<BTreeMap<String, String>, XdstpError> {
        let mut context = BTreeMap::new();
        let mut rest = Some(piece);
        while let Some(piece) = rest {
            let (pair, next) = piece.split('&');
            rest = next;
            if !pair.is_empty() {
                let (key, value) = pair.split('=');
                let value = value.map(|value| value.decoded()).transpose()?.unwrap_or_default();
                context.insert(key.decoded()?.into_owned(), value.into_owned());
            }
        }
        Ok(context)
    }
}

/// The canonical text of the glob that includes a name; `None` for globs and for old-style names
/// (X12).
pub(crate) fn glob_of(name: &ResourceName) -> Option<ResourceName> {
    XdstpName::of(name.as_str()).ok()??.glob()
}

/// The canonical text of a name in a payload (X4), without its directives (X3). An invalid
/// new-style name stays as it is; no resource can have it.
pub(crate) fn canonical(name: &str) -> ResourceName {
    let url = XdstpName::is_new_style(name).then(|| name.parse::<XdstpUrl>().ok()).flatten();
    url.map_or_else(|| ResourceName::new(name), |url| url.name.canonical())
}

/// Like [`XdstpName::of`], but refuses old-style names.
impl FromStr for XdstpName {
    type Err = XdstpError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, directives) = Self::read(text)?;
        match directives {
            None => Ok(name),
            // X3: directives are for the client that resolves the name. A server never gets them.
            Some(directives) => Err(XdstpError::Directives { column: directives.column() - 1 }),
        }
    }
}

/// Prints the canonical text (X4), which reads back as the same name.
impl Display for XdstpName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (parent, last) = self.parent_and_last();
        Canonical { name: self, parent, last }.fmt(f)
    }
}

/// The canonical text of a name with another last segment.
struct Canonical<'a> {
    name: &'a XdstpName,
    parent: &'a str,
    last: &'a str,
}

impl Display for Canonical<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, parent, last } = self;
        write!(f, "{SCHEME}//{}/{}", Escaped(&name.authority, AUTHORITY), name.resource_type)?;
        if !(parent.is_empty() && last.is_empty()) {
            write!(f, "/{}{}", Escaped(parent, ID), Escaped(last, ID))?;
        }
        for (at, (key, value)) in name.context.iter().enumerate() {
            f.write_char(if at == 0 { '?' } else { '&' })?;
            write!(f, "{}={}", Escaped(key, CONTEXT), Escaped(value, CONTEXT))?;
        }
        Ok(())
    }
}

/// X1
const SCHEME: &str = "xdstp:";

/// X12
const GLOB: &str = "*";

/// The characters that Envoy escapes in each part (X5).
const AUTHORITY: &[u8] = b"%/?#";
const ID: &[u8] = b"%:?#[]";
const CONTEXT: &[u8] = b"%#[]&=";

#[cfg(test)]
mod tests;
