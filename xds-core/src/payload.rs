//! The message in a resource: decoded once, and kept with the variant for all readers.

use std::sync::Arc;

use bytes::Bytes;
use prost::{DecodeError, Message, Name};

use crate::variants::{Decoded, Variant};

/// A message type that programs watch and read: any message of prost that knows its name.
pub trait ResourceType: Message + Name + Default + Send + Sync + 'static {}

impl<T> ResourceType for T where T: Message + Name + Default + Send + Sync + 'static {}

/// The value that watchers and readers make of payloads: a message, or the bytes as they are.
pub trait Payload: Sized + Send + Sync + 'static {
    /// The value of a variant. A message is decoded at the first call, and is freed with the
    /// variant. If a program uses two message types for one type URL, only messages of the first one
    /// are kept.
    ///
    /// # Errors
    /// The payload is not a message of the type.
    fn of(variant: &Variant) -> Result<Arc<Self>, DecodeError>;
}

impl<T> Payload for T
where
    T: ResourceType,
{
    fn of(variant: &Variant) -> Result<Arc<Self>, DecodeError> {
        variant.decoded(|payload| -> Kept<T> { Ok(Arc::new(Self::decode(payload.clone())?)) })
    }
}

/// The form in which a variant keeps a message.
type Kept<T> = Result<Arc<T>, DecodeError>;

/// Decodes a payload when it arrives, for the variant that will keep the message.
///
/// # Errors
/// The payload is not a message of the type.
pub fn decode_message<T>(payload: &Bytes) -> Result<Decoded, DecodeError>
where
    T: ResourceType,
{
    let message = T::decode(payload.clone())?;
    Ok(Arc::new(Kept::Ok(Arc::new(message))))
}

/// The encoded message, as it was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raw(pub Bytes);

impl Payload for Raw {
    fn of(variant: &Variant) -> Result<Arc<Self>, DecodeError> {
        Ok(Arc::new(Self(variant.payload().clone())))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use prost::bytes::{Buf, BufMut};
    use prost::encoding::{DecodeContext, WireType, skip_field};

    use super::*;
    use crate::name::Revision;
    use crate::resource::Resource;

    /// Counts how often it was decoded.
    #[derive(Debug, Default, PartialEq)]
    struct Counted;

    static DECODED: AtomicUsize = AtomicUsize::new(0);

    impl Message for Counted {
        fn encode_raw(&self, _: &mut impl BufMut) {}

        fn merge_field(
            &mut self,
            tag: u32,
            wire_type: WireType,
            buf: &mut impl Buf,
            context: DecodeContext,
        ) -> Result<(), DecodeError> {
            DECODED.fetch_add(1, Ordering::Relaxed);
            skip_field(wire_type, tag, buf, context)
        }

        fn encoded_len(&self) -> usize {
            0
        }

        fn clear(&mut self) {}
    }

    impl Name for Counted {
        const NAME: &'static str = "Counted";
        const PACKAGE: &'static str = "acme";
    }

    /// Two message types of one type URL.
    #[derive(Clone, PartialEq, Message)]
    struct Thing {
        #[prost(string, tag = "1")]
        name: String,
    }

    #[derive(Clone, PartialEq, Message)]
    struct SameThing {
        #[prost(string, tag = "1")]
        name: String,
    }

    impl Name for Thing {
        const NAME: &'static str = "Thing";
        const PACKAGE: &'static str = "acme";
    }

    impl Name for SameThing {
        const NAME: &'static str = "Thing";
        const PACKAGE: &'static str = "acme";
    }

    fn variant(payload: &'static [u8]) -> Variant {
        let resource = Resource::new("type.googleapis.com/acme.Thing", "a", payload).unwrap();
        Variant::new(resource, Revision::ZERO, Revision::ZERO)
    }

    #[test]
    fn a_payload_is_decoded_once_for_all_readers_and_freed_with_its_variant() {
        let variant = variant(b"\x0a\x01a");
        let first = Counted::of(&variant).unwrap();
        let others = std::thread::scope(|scope| {
            let read = || scope.spawn(|| Counted::of(&variant).unwrap());
            let readers: Vec<_> = (0..8).map(|_| read()).collect();
            readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(others.iter().all(|other| Arc::ptr_eq(other, &first)));
        assert_eq!(DECODED.load(Ordering::Relaxed), 1);
        drop(others);
        let kept = Arc::downgrade(&first);
        drop(first);
        assert!(kept.upgrade().is_some());
        drop(variant);
        assert!(kept.upgrade().is_none());
    }

    #[test]
    fn a_message_that_was_decoded_on_arrival_is_the_one_that_is_read() {
        let variant = variant(b"\x0a\x01a");
        let decoded = decode_message::<Thing>(variant.payload()).unwrap();
        let arrived = Arc::clone(decoded.downcast_ref::<Kept<Thing>>().unwrap().as_ref().unwrap());
        variant.keep_decoded(decoded);
        assert!(Arc::ptr_eq(&Thing::of(&variant).unwrap(), &arrived));
    }

    #[test]
    fn another_message_type_of_the_same_type_url_is_read_too() {
        let variant = variant(b"\x0a\x01a");
        let first = Thing::of(&variant).unwrap();
        assert_eq!(SameThing::of(&variant).unwrap().name, "a");
        assert_eq!(Raw::of(&variant).unwrap().0, *variant.payload());
        assert!(Arc::ptr_eq(&Thing::of(&variant).unwrap(), &first));
    }

    #[test]
    fn a_payload_that_is_no_message_is_an_error_at_each_read() {
        let variant = variant(b"\xff");
        let error = Thing::of(&variant).unwrap_err();
        assert_eq!(Thing::of(&variant).unwrap_err(), error);
    }
}
