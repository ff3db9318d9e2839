//! A variant that was received and found valid.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::constraint::Constraints;
use crate::name::{ResourceName, TypeUrl};
use crate::resource::VariantId;
use crate::variants::{Decoded, Variant};

/// Decodes a payload for the program, or returns the error, which becomes part of the NACK. Called
/// once for each payload that changed.
pub type Decode = Arc<dyn Fn(&ResourceName, &Bytes) -> Result<Decoded, String> + Send + Sync>;

/// A variant that was received and found valid, as watchers use it.
pub struct Accepted {
    /// Its type.
    pub type_url: TypeUrl,
    /// The name of the server that sent it; empty for a restored variant.
    pub server: Arc<str>,
    pub(super) variant: Arc<Variant>,
    /// The version that the server gave it: in delta its own, in SotW that of the response. Opaque
    /// (S31, D22).
    pub version: Arc<str>,
    /// Which stream of its server it came on: 1 for the first, and 0 for a restored variant.
    pub generation: u64,
    /// Whether it comes from an earlier run of the program, and no server has confirmed it since.
    pub is_restored: bool,
    /// When it arrived, since the start of the client.
    pub at: Duration,
}

impl Accepted {
    /// Its type, name and constraints.
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

    /// The constraints: which clients the variant is for.
    #[must_use]
    pub fn constraints(&self) -> &Constraints {
        self.variant.constraints()
    }

    /// The encoded message.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        self.variant.payload()
    }

    /// The variant as it is in the cache.
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
