//! Troubles of clients: what they reject, and what they do not answer.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use xds_core::{TypeUrl, VariantId, shortened};
use xds_server::{ClientList, ClientStream, ConnectedClient, StandingNack};

use super::recent::{RecentCommits, RecordedOutcome};
use super::troubles::{Trouble, Troubles};
use crate::type_name::{service, short};

/// Adds the troubles of these clients, as long as the page exists.
pub(super) fn add(troubles: &Troubles, clients: ClientList, recent: &Arc<RecentCommits>) {
    let recent = Arc::downgrade(recent);
    troubles.add(move || {
        rejections(&clients).into_iter().chain(late(&recent)).chain(waiting(&clients)).collect()
    });
}

/// What several clients reject with the same words.
#[derive(Debug)]
struct Rejection {
    clients: u64,
    since: SystemTime,
    last_at: SystemTime,
}

/// The rejected resources, whether the client means each of them, and its message.
type RejectionKey = (TypeUrl, Arc<[VariantId]>, usize, bool, Arc<str>);

/// One trouble for each rejected response and message.
fn rejections(clients: &ClientList) -> Vec<Trouble> {
    let mut found = BTreeMap::<RejectionKey, Rejection>::new();
    for client in clients.list() {
        let mut counted = BTreeSet::new();
        for nack in client.streams().iter().flat_map(ClientStream::standing_nacks) {
            let StandingNack { type_url, variants, variant_count, is_certain, detail, since, last_at } = nack;
            let key: RejectionKey = (type_url, variants, variant_count, is_certain, detail);
            if !counted.insert(key.clone()) {
                continue;
            }
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

fn rejection(((type_url, variants, count, is_certain, detail), of): &(RejectionKey, Rejection)) -> Trouble {
    let verb = if of.clients == 1 { "rejects" } else { "reject" };
    Trouble {
        detail: detail.to_string(),
        since: Some(of.since),
        last_at: Some(of.last_at),
        count: of.clients,
        cure: "Correct the resource, or what the message names at the clients, such as a file; or restore the last \
               content of the resource. Until then these clients keep their last accepted resources."
            .into(),
        link: REJECTING.into(),
        ..Trouble::error(
            REJECTED,
            format!("{} {verb} {}", clients_count(of.clients), response(type_url, variants, *count, *is_certain)),
        )
    }
}

/// The rejected resources, or those that a client may mean.
fn response(type_url: &TypeUrl, variants: &[VariantId], count: usize, is_certain: bool) -> String {
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
    let more = match count.saturating_sub(names.len()) {
        _ if names.is_empty() => return format!("a response of {of_type}"),
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let names = names.join(", ");
    match count {
        1 => format!("{of_type} {names}"),
        _ if is_certain => format!("{of_type} {names}{more}"),
        _ => format!("some of {count} resources: {of_type} {names}{more}"),
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

/// Clients that have been sent nothing since they connected: they wait, and may serve nothing.
fn waiting(clients: &ClientList) -> Option<Trouble> {
    let is_served = |stream: &ClientStream| stream.counts().sent > 0 || stream.has_brought_resources();
    let is_unserved = |client: &ConnectedClient| !client.streams().iter().any(is_served);
    let unserved = clients.list().into_iter().filter(is_unserved).filter_map(|client| {
        let opened = client.streams().iter().map(ClientStream::opened_at).min()?;
        Some((shortened(&client.name().id, NAME_LIMIT_BYTES).into_owned(), opened))
    });
    waiting_of(unserved, SystemTime::now())
}

/// The same of clients that were sent nothing, with their ids and the times when they connected.
fn waiting_of(unserved: impl Iterator<Item = (String, SystemTime)>, now: SystemTime) -> Option<Trouble> {
    let is_old = |at: SystemTime| now.duration_since(at).is_ok_and(|age| age >= LATE_AFTER);
    let (mut count, mut since, mut ids) = (0, now, Vec::new());
    for (id, opened) in unserved.filter(|(_, opened)| is_old(*opened)) {
        (count, since) = (count + 1, since.min(opened));
        if ids.len() < WAITING_LISTED {
            ids.push(id);
        }
    }
    let have = if count == 1 { "has" } else { "have" };
    let more = if count > ids.len() as u64 { ", .." } else { "" };
    (count > 0).then(|| Trouble {
        detail: ids.join(", ") + more,
        since: Some(since),
        count,
        cure: "The page of each client lists its resources. They do not exist for this client, or the source has not \
               delivered them yet. Such a client may not be able to serve anything."
            .into(),
        link: "clients".into(),
        ..Trouble::warning(
            "clients_wait",
            format!("{} {have} been sent nothing for 30 s or longer", clients_count(count)),
        )
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

/// How many of the clients that wait are named.
const WAITING_LISTED: usize = 5;

/// How many commits to check for late clients: a client that is late for an older one is usually
/// late for one of these too.
const COMMITS_CHECKED: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_are_sent_nothing_for_half_a_minute_are_one_warning() {
        let now = SystemTime::now();
        let clients = |ages: &[u64]| {
            let ages = ages.iter().enumerate();
            waiting_of(ages.map(|(at, age)| (format!("e{at}"), now - Duration::from_secs(*age))), now)
        };
        assert_eq!(clients(&[0, 29]), None);
        let one = clients(&[29, 30]).unwrap();
        assert_eq!(one.what, "1 client has been sent nothing for 30 s or longer");
        assert_eq!((&*one.detail, one.since), ("e1", Some(now - Duration::from_secs(30))));
        let many = clients(&[40; 7]).unwrap();
        assert_eq!((&*many.detail, many.count), ("e0, e1, e2, e3, e4, ..", 7));
    }
}
