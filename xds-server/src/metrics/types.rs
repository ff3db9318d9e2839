//! Which types have their own label, and the counters per type that streams update.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use ahash::RandomState;
use arc_swap::ArcSwap;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use xds_core::TypeUrl;
use xds_proto::service::SERVICES;

/// The type label of all metrics by type.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub(super) struct TypeLabel {
    pub(super) r#type: Arc<str>,
}

/// The counters of one type.
#[derive(Debug)]
pub(super) struct TypeCounters {
    pub(super) label: TypeLabel,
    pub(super) responses: Counter,
    pub(super) response_bytes: Counter,
    pub(super) acks: Counter,
    pub(super) nacks: Counter,
    pub(super) names_denied: Counter,
}

/// The types by their URL. A look-up costs one hash of the URL; it does not wait or allocate. The
/// table changes when a type is committed for the first time.
#[derive(Debug)]
pub(super) struct Types {
    table: ArcSwap<HashMap<TypeUrl, Arc<TypeCounters>, RandomState>>,
    other: Arc<TypeCounters>,
    families: Families,
    /// Held while a type is added.
    writer: Mutex<()>,
}

#[derive(Debug, Default)]
struct Families {
    responses: Family<TypeLabel, Counter>,
    response_bytes: Family<TypeLabel, Counter>,
    acks: Family<TypeLabel, Counter>,
    nacks: Family<TypeLabel, Counter>,
    names_denied: Family<TypeLabel, Counter>,
}

impl Types {
    /// The types that have a service of their own; they are counted from zero.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let families = Families::default();
        let Families { responses, response_bytes, acks, nacks, names_denied } = &families;
        registry.register("xds_server_responses", "Responses sent on streams", responses.clone());
        registry.register(
            "xds_server_response_bytes",
            "Bytes of those responses, without what gRPC adds",
            response_bytes.clone(),
        );
        registry.register("xds_server_acks", "Responses that clients accepted", acks.clone());
        registry.register("xds_server_nacks", "Responses that clients rejected", nacks.clone());
        let help = "Names that clients subscribed to and may not read";
        registry.register("xds_server_names_denied", help, names_denied.clone());
        let other = families.of_type(OTHER);
        let types = Self { table: ArcSwap::default(), other, families, writer: Mutex::default() };
        types.learn(SERVICES.iter().map(|row| row.type_url.into()));
        types
    }

    /// The counters of a type, or those that all other types share.
    pub(super) fn with<R>(&self, type_url: &TypeUrl, count: impl FnOnce(&TypeCounters) -> R) -> R {
        let table = self.table.load();
        count(table.get(type_url).unwrap_or(&self.other))
    }

    pub(super) fn label(&self, type_url: &TypeUrl) -> TypeLabel {
        self.with(type_url, |of_type| of_type.label.clone())
    }

    /// Gives committed types their own labels, as long as there are fewer than [`TYPES_LIMIT`].
    pub(super) fn learn(&self, committed: impl Iterator<Item = TypeUrl>) {
        let mut unknown = committed.filter(|type_url| !self.table.load().contains_key(type_url)).peekable();
        if unknown.peek().is_none() || self.table.load().len() >= TYPES_LIMIT {
            return;
        }
        // The table is consistent even after a panic.
        let _writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut table = HashMap::clone(&self.table.load());
        for type_url in unknown.take(TYPES_LIMIT.saturating_sub(table.len())) {
            let text = type_url.as_str();
            let of_type = self.families.of_type(text.strip_prefix("type.googleapis.com/").unwrap_or(text));
            table.insert(type_url, of_type);
        }
        self.table.store(Arc::new(table));
    }
}

impl Families {
    fn of_type(&self, name: &str) -> Arc<TypeCounters> {
        let label = TypeLabel { r#type: name.into() };
        Arc::new(TypeCounters {
            responses: self.responses.get_or_create_owned(&label),
            response_bytes: self.response_bytes.get_or_create_owned(&label),
            acks: self.acks.get_or_create_owned(&label),
            nacks: self.nacks.get_or_create_owned(&label),
            names_denied: self.names_denied.get_or_create_owned(&label),
            label,
        })
    }
}

/// The label of all types without their own label.
const OTHER: &str = "#other";

/// How many types have their own label. A proxy may have any type that its clients subscribe to.
pub const TYPES_LIMIT: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_types_of_services_and_those_that_were_committed_have_a_label_and_so_many_at_most() {
        let types = Types::register(&mut Registry::default());
        let label = |text: &str| types.label(&text.into()).r#type.to_string();
        assert_eq!(label(xds_proto::type_url::CLUSTER), "envoy.config.cluster.v3.Cluster");
        assert_eq!(label("example.com/acme.Thing"), "#other");
        types.learn(["example.com/acme.Thing".into(), "type.googleapis.com/acme.Other".into()].into_iter());
        assert_eq!(
            (label("example.com/acme.Thing"), label("type.googleapis.com/acme.Other")),
            ("example.com/acme.Thing".to_owned(), "acme.Other".to_owned())
        );
        types.learn((0..2 * TYPES_LIMIT).map(|number| TypeUrl::new(format!("example.com/t{number}"))));
        assert_eq!(types.table.load().len(), TYPES_LIMIT);
        assert_eq!(label(&format!("example.com/t{}", 2 * TYPES_LIMIT - 1)), "#other");
        assert_eq!(label("example.com/acme.Thing"), "example.com/acme.Thing");
    }
}
