//! A response as read from the wire, not yet compared with the watches.

use std::borrow::Cow;
use std::str;
use std::time::Duration;

use prost::Message;
use xds_proto::envoy::service::discovery::v3::resource::CacheControl;
use xds_proto::google::rpc::Status;

use super::rejection::{Reason, Rejection};
use crate::code::Code;
use crate::constraint::Constraints;
use crate::name::{ResourceName, TypeUrl};
use crate::protocol::Protocol;
use crate::wire::fields::{fields, text};
use crate::xdstp::XdstpName;

/// A response in slices of its frame.
#[derive(Debug, Default)]
pub(super) struct ReceivedResponse<'f> {
    pub(super) type_url: &'f str,
    pub(super) version: &'f str,
    pub(super) nonce: &'f str,
    pub(super) resources: Vec<ReceivedResource<'f>>,
    pub(super) removed: Vec<Removal>,
    pub(super) errors: Vec<ReportedError>,
    /// The invalid parts, whether or not they are watched.
    pub(super) rejections: Vec<Rejection>,
    /// The numbers and contents of fields that can be read only when the type is known. The field
    /// with the type may come after them.
    raw: Vec<(u32, &'f [u8])>,
}

/// One resource of a response.
#[derive(Debug)]
pub(super) struct ReceivedResource<'f> {
    /// In canonical text (X4).
    pub(super) name: Cow<'f, str>,
    pub(super) constraints: Constraints,
    /// Whether it came under a plain name, which does not say which clients it is for (T43c).
    pub(super) is_plain: bool,
    pub(super) payload: ReceivedPayload<'f>,
    /// Its own version; empty in SotW without a wrapper.
    pub(super) version: &'f str,
    pub(super) ttl: Option<Duration>,
    pub(super) aliases: Vec<ResourceName>,
    pub(super) do_not_cache: bool,
    pub(super) metadata: &'f [u8],
}

/// The payload of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReceivedPayload<'f> {
    /// The encoded message.
    Message(&'f [u8]),
    /// X14: the encoded locator of the resource that this name redirects to.
    Redirect(&'f [u8]),
    /// No payload: a heartbeat (S39, D26), or an alias that no resource has (D24).
    Absent,
}

/// One entry of `removed_resources` or `removed_resource_names`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Removal {
    pub(super) name: ResourceName,
    /// The constraints of the removed variant; `None` removes all variants (T30b).
    pub(super) constraints: Option<Constraints>,
}

/// One entry of `resource_errors` (S37).
#[derive(Debug)]
pub(super) struct ReportedError {
    pub(super) name: ResourceName,
    /// The parameters that the error is for (T36).
    pub(super) constraints: Constraints,
    pub(super) code: Code,
    pub(super) message: String,
}

/// C3: the bytes are not a response, so the client cannot ACK or NACK it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the response is not valid protobuf")]
pub struct Unreadable;

impl<'f> ReceivedResponse<'f> {
    /// The names that it says something about, in no order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let resources = self.resources.iter().map(|resource| &*resource.name);
        let removed = self.removed.iter().map(|removal| removal.name.as_str());
        resources.chain(removed).chain(self.errors.iter().map(|error| error.name.as_str()))
    }

    /// Reads a response. Invalid parts become `rejections`.
    pub(super) fn read(frame: &'f [u8], protocol: Protocol) -> Result<Self, Unreadable> {
        let mut response = Self::default();
        for field in fields(frame) {
            let (number, value) = field.ok_or(Unreadable)?;
            match number {
                1 => response.version = utf8(value)?,
                4 => response.type_url = utf8(value)?,
                5 => response.nonce = utf8(value)?,
                2 | 6..=9 => response.raw.push((number, value)),
                _ => {}
            }
        }
        let type_url = TypeUrl::new(response.type_url);
        for (number, value) in std::mem::take(&mut response.raw) {
            match (protocol, number) {
                (Protocol::Sotw, 2) => response.read_any(value, &type_url)?,
                (Protocol::Delta, 2) => response.read_wrapper(value, &type_url)?,
                (Protocol::Delta, 6) => response.read_removed(value, &type_url)?,
                (Protocol::Delta, 8) => response.read_removed_variant(value, &type_url)?,
                (Protocol::Sotw, 7) | (Protocol::Delta, 9) => response.read_error(value, &type_url)?,
                _ => {}
            }
        }
        Ok(response)
    }

    /// S29, S30, T27: a resource in SotW is a message of the type, or a wrapper with one.
    fn read_any(&mut self, any: &'f [u8], type_url: &TypeUrl) -> Result<(), Unreadable> {
        let (any_type, value) = read_any(any)?;
        if any_type == RESOURCE && type_url.as_str() != RESOURCE {
            // C4: a wrapper in an `Any` is bytes to the response, so only this resource is
            // rejected.
            if self.read_wrapper(value, type_url).is_err() {
                self.rejections.push(Rejection::new(None, Reason::Malformed));
            }
            return Ok(());
        }
        if any_type != type_url.as_str() {
            self.rejections.push(wrong_type(None, any_type));
            return Ok(());
        }
        match payload_name(value, type_url) {
            Ok(name) => self.resources.push(ReceivedResource::bare(name, value)),
            Err(reason) => self.rejections.push(Rejection::new(None, reason)),
        }
        Ok(())
    }

    fn read_wrapper(&mut self, wrapper: &'f [u8], type_url: &TypeUrl) -> Result<(), Unreadable> {
        let mut received = ReceivedResource::bare(Cow::Borrowed(""), &[]);
        let (mut plain, mut located, mut payload) = ("", None, None);
        let mut aliases = Vec::new();
        for field in fields(wrapper) {
            let (number, value) = field.ok_or(Unreadable)?;
            match number {
                1 => received.version = utf8(value)?,
                2 => payload = Some(read_any(value)?),
                3 => plain = utf8(value)?,
                4 => aliases.push(utf8(value)?),
                6 => received.ttl = Some(duration(value)?),
                7 => {
                    let control = CacheControl::decode(value).map_err(|_| Unreadable)?;
                    received.do_not_cache = control.do_not_cache;
                }
                8 => located = Some(value),
                9 => received.metadata = value,
                _ => {}
            }
        }
        let wrapped = match located {
            Some(value) => Some(read_resource_name(value)?),
            None => None,
        };
        let named = match &wrapped {
            Some((name, _)) if !plain.is_empty() && plain != *name => {
                let reason = Reason::TwoNames { other: plain.to_owned() };
                self.rejections.push(Rejection::new(ResourceName::new(*name), reason));
                return Ok(());
            }
            Some((name, _)) if !name.is_empty() => check_name(name, type_url),
            Some(_) | None if !plain.is_empty() => check_name(plain, type_url),
            Some(_) | None => {
                let payload = payload.map(|(_, value)| value).unwrap_or_default();
                payload_name(payload, type_url)
            }
        };
        received.name = match named {
            Ok(name) => name,
            Err(reason) => {
                let invalid = wrapped.map_or(plain, |(name, _)| name);
                let name = (!invalid.is_empty()).then(|| ResourceName::new(invalid));
                self.rejections.push(Rejection::new(name, reason));
                return Ok(());
            }
        };
        if let Some((_, raw)) = wrapped {
            received.is_plain = false;
            match Constraints::from_wire(&raw) {
                Ok(constraints) => received.constraints = constraints,
                Err(error) => {
                    self.rejections.push(Rejection::new(ResourceName::new(&*received.name), error));
                    return Ok(());
                }
            }
        }
        received.payload = match payload {
            None => ReceivedPayload::Absent,
            Some((any_type, value)) if any_type == type_url.as_str() => ReceivedPayload::Message(value),
            // X14: only a new-style name can be a redirect.
            Some((RESOURCE_LOCATOR, value)) if XdstpName::is_new_style(&received.name) => {
                ReceivedPayload::Redirect(value)
            }
            Some((any_type, _)) => {
                self.rejections.push(wrong_type(Some(ResourceName::new(&*received.name)), any_type));
                return Ok(());
            }
        };
        let canonical = |alias| check_name(alias, type_url).unwrap_or(Cow::Borrowed(alias));
        received.aliases = aliases.into_iter().map(|alias| ResourceName::new(&*canonical(alias))).collect();
        self.resources.push(received);
        Ok(())
    }

    fn read_removed(&mut self, name: &'f [u8], type_url: &TypeUrl) -> Result<(), Unreadable> {
        let name = utf8(name)?;
        // D14: a name that no resource can have is unknown, so its removal is ignored.
        if let Ok(name) = check_name(name, type_url) {
            self.removed.push(Removal { name: ResourceName::new(&*name), constraints: None });
        }
        Ok(())
    }

    fn read_removed_variant(&mut self, value: &'f [u8], type_url: &TypeUrl) -> Result<(), Unreadable> {
        let (name, raw) = read_resource_name(value)?;
        match (check_name(name, type_url), Constraints::from_wire(&raw)) {
            (Ok(name), Ok(constraints)) => {
                self.removed
                    .push(Removal { name: ResourceName::new(&*name), constraints: Some(constraints) });
            }
            (Err(reason), _) => self.rejections.push(Rejection::new(ResourceName::new(name), reason)),
            (_, Err(error)) => self.rejections.push(Rejection::new(ResourceName::new(name), error)),
        }
        Ok(())
    }

    fn read_error(&mut self, value: &'f [u8], type_url: &TypeUrl) -> Result<(), Unreadable> {
        let name = text(value, 1).map(read_resource_name).transpose()?;
        let status = text(value, 2).map(Status::decode).transpose().map_err(|_| Unreadable)?;
        let status = status.unwrap_or_default();
        let Some((name, raw)) = name.filter(|(name, _)| !name.is_empty() && status.code != 0) else {
            self.rejections.push(Rejection::new(None, Reason::EmptyError));
            return Ok(());
        };
        match (check_name(name, type_url), Constraints::from_wire(&raw)) {
            (Ok(name), Ok(constraints)) => self.errors.push(ReportedError {
                name: ResourceName::new(&*name),
                constraints,
                code: Code(status.code),
                message: status.message,
            }),
            // X6: the server reports an invalid name. This client never subscribes to one.
            (Err(_), _) => {}
            (_, Err(error)) => self.rejections.push(Rejection::new(ResourceName::new(name), error)),
        }
        Ok(())
    }
}

impl<'f> ReceivedResource<'f> {
    fn bare(name: Cow<'f, str>, payload: &'f [u8]) -> Self {
        Self {
            name,
            constraints: Constraints::NONE,
            is_plain: true,
            payload: ReceivedPayload::Message(payload),
            version: "",
            ttl: None,
            aliases: Vec::new(),
            do_not_cache: false,
            metadata: &[],
        }
    }
}

/// The type and the value of an `Any`.
fn read_any(any: &[u8]) -> Result<(&str, &[u8]), Unreadable> {
    let (mut type_url, mut payload) = ("", &[][..]);
    for field in fields(any) {
        match field.ok_or(Unreadable)? {
            (1, value) => type_url = utf8(value)?,
            (2, value) => payload = value,
            _ => {}
        }
    }
    Ok((type_url, payload))
}

/// The name and the encoded constraints of a `ResourceName`.
fn read_resource_name(message: &[u8]) -> Result<(&str, Cow<'_, [u8]>), Unreadable> {
    let (mut name, mut constraints) = ("", Cow::Borrowed(&[][..]));
    for field in fields(message) {
        match field.ok_or(Unreadable)? {
            (1, value) => name = utf8(value)?,
            // T9: protobuf merges a message field that occurs twice. Reading the concatenated bytes
            // does the same.
            (2, value) if constraints.is_empty() => constraints = Cow::Borrowed(value),
            (2, value) => constraints.to_mut().extend_from_slice(value),
            _ => {}
        }
    }
    Ok((name, constraints))
}

/// Checks a name, and returns it in canonical text. A new-style name must be of the type (X2, X6)
/// and have no directives (X3). All its context parameters are part of the name (X8). Old-style
/// names are opaque (X1).
pub(super) fn check_name<'n>(name: &'n str, type_url: &TypeUrl) -> Result<Cow<'n, str>, Reason> {
    if name.is_empty() {
        return Err(Reason::NoName);
    }
    if name.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(Reason::ControlCharacter);
    }
    let Some(new_style) = XdstpName::of(name)? else { return Ok(Cow::Borrowed(name)) };
    new_style.check_type(type_url)?;
    Ok(Cow::Owned(new_style.to_string()))
}

/// The name in a payload: field 1, as in every Envoy type that has a name.
fn payload_name<'f>(payload: &'f [u8], type_url: &TypeUrl) -> Result<Cow<'f, str>, Reason> {
    let name = text(payload, 1).and_then(|name| str::from_utf8(name).ok()).ok_or(Reason::NoName)?;
    check_name(name, type_url)
}

fn wrong_type(name: Option<ResourceName>, found: &str) -> Rejection {
    Rejection::new(name, Reason::WrongType { found: found.to_owned() })
}

fn duration(message: &[u8]) -> Result<Duration, Unreadable> {
    let duration = prost_types::Duration::decode(message).map_err(|_| Unreadable)?;
    // A negative TTL has already ended. In a build with checks of overflow, the conversion panics at the lowest one.
    Ok(if duration.seconds < 0 { Duration::ZERO } else { duration.try_into().unwrap_or_default() })
}

fn utf8(bytes: &[u8]) -> Result<&str, Unreadable> {
    str::from_utf8(bytes).map_err(|_| Unreadable)
}

const RESOURCE: &str = "type.googleapis.com/envoy.service.discovery.v3.Resource";
const RESOURCE_LOCATOR: &str = "type.googleapis.com/xds.core.v3.ResourceLocator";
