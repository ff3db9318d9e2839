//! Troubles of clients: what they reject, and what they do not answer.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use xds_core::{TypeUrl, VariantId, shortened};
use xds_server::{ClientList, ClientStream, StandingNack};

use super::recent::{RecentCommits, RecordedOutcome};
use super::troubles::{Trouble, Troubles};
use crate::type_name::{service, short};

/// Adds the troubles of these clients, as long as the page exists.
pub(super) fn add(troubles: &Troubles, clients: ClientList, recent: &Arc<RecentCommits>) {
    let recent = Arc::downgrade(recent);
    troubles.add(move || rejections(&clients).into_iter().chain(late(&recent)).collect());
}

/// What several clients reject with the same words.
#[derive(Debug)]
struct Rejection {
    clients: u64,
    since: SystemTime,
    last_at: SystemTime,
}

/// The rejected response and the message.
type RejectionKey = (TypeUrl, Arc<[VariantId]>, usize, Arc<str>);

/// One trouble for each rejected response and message.
fn rejections(clients: &ClientList) -> Vec<Trouble> {
    let mut found = BTreeMap::<RejectionKey, Rejection>::new();
    for client in clients.list() {
        for nack in client.streams().iter().flat_map(ClientStream::standing_nacks) {
            let StandingNack { type_url, variants, variant_count, detail, since, last_at } = nack;
            let key = (type_url, variants, variant_count, detail);
            let of = found.entry(key).or_insert(Rejection { clients: 0, since, last_at });
            (of.clients, of.since, of.last_at) =
                (of.clients + 1, of.since.min(since), of.last_at.max(last_at));
        }
    }
    let mut found: Vec<_> = found.into_iter().collect();
    // Each client may send other words, so only those of most clients are listed.
    found.sort_by_key(|(_, of)| Reverse(of.clients));
    let (more, of_more) =
        (found.len().saturating_sub(REJECTIONS_LISTED), found.iter().skip(REJECTIONS_LISTED));
    let of_more: u64 = of_more.map(|(_, of)| of.clients).sum();
    let mut troubles: Vec<_> = found.iter().take(REJECTIONS_LISTED).map(rejection).collect();
    if more > 0 {
        let what = format!("{} reject responses with {more} other messages", clients_count(of_more));
        troubles.push(Trouble { count: of_more, link: REJECTING.into(), ..Trouble::error(REJECTED, what) });
    }
    troubles
}

fn rejection(((type_url, variants, count, detail), of): &(RejectionKey, Rejection)) -> Trouble {
    let verb = if of.clients == 1 { "rejects" } else { "reject" };
    Trouble {
        detail: detail.to_string(),
        since: Some(of.since),
        last_at: Some(of.last_at),
        count: of.clients,
        cure: "Correct the resource that the message names, or restore its last content. Until then these clients \
               keep their last accepted resources."
            .into(),
        link: REJECTING.into(),
        ..Trouble::error(
            REJECTED,
            format!("{} {verb} {}", clients_count(of.clients), response(type_url, variants, *count)),
        )
    }
}

/// The resources of a response.
fn response(type_url: &TypeUrl, variants: &[VariantId], count: usize) -> String {
    let of_type = service(type_url).unwrap_or_else(|| short(type_url));
    let variant = |id: &VariantId| match id.constraints.is_unconstrained() {
        true => shortened(id.name.as_str(), NAME_LIMIT_BYTES).into_owned(),
        false => {
            let constraints = id.constraints.to_string();
            let [name, when] =
                [id.name.as_str(), &constraints].map(|text| shortened(text, NAME_LIMIT_BYTES).into_owned());
            format!("{name} [{when}]")
        }
    };
    let names: Vec<_> = variants.iter().map(variant).collect();
    match count.saturating_sub(names.len()) {
        _ if names.is_empty() => format!("a response of {of_type}"),
        0 => format!("{of_type} {}", names.join(", ")),
        more => format!("a response with {of_type} {} and {more} more", names.join(", ")),
    }
}

/// The commit that most clients have not answered in time.
fn late(recent: &Weak<RecentCommits>) -> Option<Trouble> {
    let (recent, now) = (recent.upgrade()?.list(), SystemTime::now());
    let is_old = |at: SystemTime| now.duration_since(at).is_ok_and(|age| age >= LATE_AFTER);
    let old = recent.iter().filter(|entry| is_old(entry.at)).take(COMMITS_CHECKED);
    let counted = old.map(|entry| (entry.counts().pending, entry));
    let (pending, entry) = counted.filter(|(pending, _)| *pending > 0).max_by_key(|(pending, _)| *pending)?;
    let RecordedOutcome::Committed { commit, .. } = &entry.outcome else { return None };
    let have = if pending == 1 { "has" } else { "have" };
    let (clients, revision) = (clients_count(pending as u64), commit.revision);
    Some(Trouble {
        since: Some(entry.at),
        count: pending as u64,
        cure: "These clients do not answer. Check whether they hang, and whether they can reach this server."
            .into(),
        link: format!("commit?revision={revision}&outcome=pending"),
        ..Trouble::warning("clients_late", format!("{clients} {have} not answered revision {revision}"))
    })
}

fn clients_count(count: u64) -> String {
    format!("{count} client{}", if count == 1 { "" } else { "s" })
}

const REJECTED: &str = "clients_reject";

/// The view of clients that reject something.
const REJECTING: &str = "clients?rejecting=true";

/// The longest name and the longest condition in the sentence.
const NAME_LIMIT_BYTES: usize = 128;

/// Rejections with different words that are listed.
const REJECTIONS_LISTED: usize = 20;

/// A client that has not answered a commit after this time is late, as in the metrics.
const LATE_AFTER: Duration = Duration::from_secs(30);

/// How many commits to check for late clients: a client that is late for an older one is usually
/// late for one of these too.
const COMMITS_CHECKED: usize = 10;
