//! New-style names with directives, as in configuration (X9).

use std::str::FromStr;

use super::XdstpError;
use super::XdstpName;
use super::escape::{self, Piece};

/// A name in configuration: with directives for the client, which are never sent to a server
/// (X3, X9).
///
/// ```
/// use xds_core::XdstpUrl;
///
/// let url: XdstpUrl = "xdstp://a/acme.ThingCollection/all#entry=red".parse()?;
/// assert_eq!(url.name.to_string(), "xdstp://a/acme.ThingCollection/all");
/// assert_eq!((url.entry.as_deref(), url.alternative), (Some("red"), None));
/// # Ok::<(), xds_core::XdstpError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XdstpUrl {
    /// The name without the directives.
    pub name: XdstpName,
    /// `alt`: the URL to use when the authority cannot be reached (X10), decoded. It is not parsed
    /// here: it may have another scheme, and directives of its own.
    pub alternative: Option<String>,
    /// `entry`: the name of an inline entry of a list collection (X11).
    pub entry: Option<String>,
}

impl FromStr for XdstpUrl {
    type Err = XdstpError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, directives) = XdstpName::read(text)?;
        let mut url = Self { name, alternative: None, entry: None };
        let mut rest = directives;
        while let Some(piece) = rest {
            let (directive, next) = piece.split(',');
            rest = next;
            url.take(&directive)?;
        }
        Ok(url)
    }
}

impl XdstpUrl {
    /// X9: each directive at most once, and no unknown ones.
    fn take(&mut self, piece: &Piece<'_>) -> Result<(), XdstpError> {
        let column = piece.column();
        let (slot, directive, value) = if let Some(value) = piece.behind("alt=") {
            if value.is_empty() {
                return Err(XdstpError::MissingAlternative { column: value.column() });
            }
            (&mut self.alternative, "alt", value)
        } else if let Some(value) = piece.behind("entry=") {
            (&mut self.entry, "entry", value)
        } else {
            let found = piece.split('=').0.decoded()?.into_owned();
            return Err(XdstpError::UnknownDirective { column, found });
        };
        if slot.is_some() {
            return Err(XdstpError::RepeatedDirective { column, directive });
        }
        let text = value.decoded()?.into_owned();
        if directive == "entry" && !is_entry(&text) {
            return Err(XdstpError::BadEntry { column: value.column(), found: text });
        }
        *slot = Some(text);
        Ok(())
    }
}

/// Whether a text is a valid name of an inline entry of a list collection (X9, X11).
pub(crate) fn is_entry(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| escape::is_unreserved(byte) || b"/:".contains(&byte))
}
