//! Troubles of clients: what they reject, and what they do not answer.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use xds_core::TypeUrl;
use xds_server::{ClientList, ConnectedClient, LastNack};

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

/// One trouble for each rejected type and message.
fn rejections(clients: &ClientList) -> Vec<Trouble> {
    let mut found = BTreeMap::<(TypeUrl, Arc<str>), Rejection>::new();
    for client in clients.list() {
        for LastNack { type_url, detail, at, .. } in standing(&client) {
            let of =
                found.entry((type_url, detail)).or_insert(Rejection { clients: 0, since: at, last_at: at });
            (of.clients, of.since, of.last_at) = (of.clients + 1, of.since.min(at), of.last_at.max(at));
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

fn rejection(((type_url, detail), of): &((TypeUrl, Arc<str>), Rejection)) -> Trouble {
    let name = service(type_url).unwrap_or_else(|| short(type_url));
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
        ..Trouble::error(REJECTED, format!("{} {verb} {name} responses", clients_count(of.clients)))
    }
}

/// The NACKs of a client that no ACK of the same type followed.
fn standing(client: &ConnectedClient) -> impl Iterator<Item = LastNack> {
    let nacks = client.streams().iter().filter_map(xds_server::ClientStream::last_nack);
    nacks.filter(|nack| !nack.is_followed_by_ack)
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

/// Rejections with different words that are listed.
const REJECTIONS_LISTED: usize = 20;

/// A client that has not answered a commit after this time is late, as in the metrics.
const LATE_AFTER: Duration = Duration::from_secs(30);

/// How many commits to check for late clients: a client that is late for an older one is usually
/// late for one of these too.
const COMMITS_CHECKED: usize = 10;
