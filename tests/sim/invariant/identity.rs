//! Every response has a type with a subscription, and a nonce that is new on its stream (S2, D7,
//! S24).

use std::collections::BTreeSet;

use super::Violation;
use crate::connection::Seen;
use crate::wire::Received;

pub(crate) fn check(
    received: &Received,
    nonces: &mut BTreeSet<String>,
    seen: Option<&Seen>,
) -> Result<(), Violation> {
    let violation = |what: &str| Err(Violation::new("identity", format!("{what}: {received}")));
    if received.nonce.is_empty() || !nonces.insert(received.nonce.clone()) {
        return violation("S2, D7: the nonce is not new");
    }
    // In delta an empty first request of a type without a legacy wildcard is answered (S21), but no
    // client here sends one.
    if seen.is_none_or(|seen| seen.ideal.asked.is_empty()) {
        return violation("S24: the type has no subscription");
    }
    Ok(())
}
