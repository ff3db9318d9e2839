//! The rollout that runs, and how the last ones ended.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::State;
use serde_json::{Value, json};
use xds_core::VariantId;
use xds_server::RolloutStatus;

use super::AdminState;
use super::answer::{ApiError, JsonAnswer, JsonBody, when};

/// `/api/rollout`.
pub(super) async fn rollout(State(state): State<Arc<AdminState>>) -> JsonAnswer {
    let rollouts = state.rollouts.as_ref();
    let rollouts = rollouts.ok_or_else(|| ApiError::missing("this server has no rollouts"))?;
    Ok(JsonBody(rollout_status(&rollouts.status())))
}

/// The state of rollouts as JSON, as `/api/rollout` has it. Times are milliseconds since 1970.
#[must_use]
pub fn rollout_status(status: &RolloutStatus) -> Value {
    let at_ms = |at: SystemTime| {
        at.duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
    };
    let first = |variants: &[VariantId]| {
        let variants = variants.iter().take(VARIANTS_SHOWN).map(
            |id| json!({ "type": id.type_url.as_str(), "name": id.name.as_str(), "when": when(&id.constraints) }),
        );
        variants.collect::<Value>()
    };
    let running = status.running.as_ref().map(|running| {
        json!({
            "step": running.step + 1, "audience": running.audience.to_string(),
            "ends_at_ms": at_ms(running.ends_at),
            "clients": running.affected, "acked": running.acked,
            "variants": running.variants.len(), "first_variants": first(&running.variants),
        })
    });
    let refused = status.refused.iter().map(|refused| {
        json!({
            "reason": &*refused.reason, "at_ms": at_ms(refused.at),
            "variants": refused.variants.len(), "first_variants": first(&refused.variants),
        })
    });
    json!({
        "steps": status.steps.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "running": running,
        "refused": refused.collect::<Value>(), "waiting": status.waiting,
        "promoted": status.counts.promoted, "refused_total": status.counts.refused,
        "replaced": status.counts.replaced, "not_stored": status.not_stored.as_deref(),
    })
}

/// How many variants the status lists.
const VARIANTS_SHOWN: usize = 20;
