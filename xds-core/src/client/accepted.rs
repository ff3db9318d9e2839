//! A variant that was received and found valid.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::constraint::Constraints;
use crate::name::{ResourceName, TypeUrl};
use crate::resource::VariantId;
use crate::variants::Variant;

/// A payload as the program uses it; what it is, only the typed layer knows.
pub type Decoded = Arc<dyn Any + Send + Sync>;

/// Makes a payload usable, or says what is wrong with it. Called once per payload that is new.
pub type Decode = Arc<dyn Fn(&ResourceName, &Bytes) -> Result<Decoded, String> + Send + Sync>;

/// A variant that was received and found valid, as watchers use it.
pub struct Accepted {
    /// Its type.
    pub type_url: TypeUrl,
    /// The server that brought it; empty for what was restored.
    pub server: Arc<str>,
    pub(super) variant: Arc<Variant>,
    /// What the typed layer made of the payload; `None` where the type is watched as bytes only.
    pub decoded: Option<Decoded>,
    /// The version under which it came: its own in delta, that of the response in SotW. Opaque
    /// (S31, D22).
    pub version: Arc<str>,
    /// Which stream of its server brought it: the number of streams there were before.
    pub generation: u64,
    /// It stems from an earlier life of the program, and no server said since that it still holds.
    pub is_restored: bool,
    /// When it came, since the start of the client.
    pub at: Duration,
}

impl Accepted {
    /// What it is known by.
    #[must_use]
    pub fn id(&self) -> VariantId {
        let (type_url, name) = (self.type_url.clone(), self.name().clone());
        VariantId { type_url, name, constraints: self.constraints().clone() }
    }

    /// The name of the resource.
    #[must_use]
    pub fn name(&self) -> &ResourceName {
        self.variant.name()
    }

    /// Whom this variant is for.
    #[must_use]
    pub fn constraints(&self) -> &Constraints {
        self.variant.constraints()
    }

    /// The encoded message.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        self.variant.payload()
    }

    /// The variant, as the cache holds it.
    #[must_use]
    pub fn variant(&self) -> &Arc<Variant> {
        &self.variant
    }
}

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accepted")
            .field("variant", &self.variant)
            .field("version", &self.version)
            .field("generation", &self.generation)
            .field("is_restored", &self.is_restored)
            .finish_non_exhaustive()
    }
}
