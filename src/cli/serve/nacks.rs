//! `--quarantine-nacks`: a content that clients reject is withheld (ST63).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::warn;
use xds::{
    Cache, ClientList, ClientStream, Event, Observer, ServerConfig, StreamClient, VariantId, Version,
    shortened,
};
use xds_core::server::{ReportStatus, TypeReport};
use xds_proto::xds::store::v1 as proto;
use xds_store::key::RecordKey;
use xds_store::read::{Payload, ReadError, Reads};
use xds_store_server::StoreHandle;

/// Counts the clients that reject a content, and has it quarantined when they are enough.
///
/// A rejection counts only if no other resource can be meant, and if there was room for the resource
/// (S6f, ST63). The certificate and the address identify a client, because a client can claim to be any
/// node.
#[derive(Debug)]
pub(super) struct NackQuorum {
    /// How many clients have to reject a content.
    needed: usize,
    cache: Arc<Cache>,
    hasher: RandomState,
    rejections: Mutex<Rejections>,
    due: mpsc::Sender<Due>,
}

/// The content of a record: a variant and its version.
type Content = (VariantId, Version);

#[derive(Debug, Default)]
struct Rejections {
    of_contents: BTreeMap<Content, Rejection>,
    /// The number of the last content.
    last: u64,
}

#[derive(Debug)]
struct Rejection {
    /// Grows from one content to the next.
    number: u64,
    /// The hashes of the clients.
    clients: BTreeSet<u64>,
    /// A client uses it, so it stays.
    is_accepted: bool,
}

/// A content that enough clients rejected.
#[derive(Debug, Clone)]
pub(super) struct Due {
    content: Content,
    reason: String,
    /// How many tries to decide failed.
    failed: usize,
}

#[derive(Debug)]
enum Decision {
    /// A client uses the content, so it stays.
    Accepted,
    /// It is not served any more.
    Withheld,
}

/// What the connected clients think of a content. If they differ, the last one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Opinion {
    /// None accepted it.
    Rejected,
    /// None accepted it, and some have not answered yet.
    Awaited,
    /// A stream did not report, so its client may have accepted it.
    Unknown,
    /// At least one accepted it.
    Accepted,
}

impl NackQuorum {
    /// Observes the streams of a server. [`follow`](Self::follow) decides on what enough clients
    /// rejected.
    pub(super) fn watch(
        needed: usize,
        cache: &Arc<Cache>,
        config: &mut ServerConfig,
    ) -> (Arc<Self>, mpsc::Receiver<Due>) {
        let (due, decisions) = mpsc::channel(DUE_LIMIT);
        let (cache, rejections) = (Arc::clone(cache), Mutex::default());
        let quorum = Arc::new(Self { needed, cache, hasher: RandomState::new(), rejections, due });
        config.add_observer(Arc::clone(&quorum));
        (quorum, decisions)
    }

    /// Quarantines contents, until the future is dropped.
    pub(super) async fn follow(
        self: Arc<Self>,
        decisions: mpsc::Receiver<Due>,
        store: StoreHandle,
        clients: ClientList,
    ) {
        let (store, clients) = (&store, &clients);
        let decide = |due: Due| async move { decide(store, clients, &due).await };
        self.decide_each(decisions, decide).await;
    }

    /// Decides until a decision is carried out, or the content has changed.
    async fn decide_each<D>(&self, mut decisions: mpsc::Receiver<Due>, decide: impl Fn(Due) -> D)
    where
        D: Future<Output = Result<Decision, String>>,
    {
        // Those that wait for another try, by their times.
        let mut failed: VecDeque<(Instant, Due)> = VecDeque::new();
        loop {
            let again = failed.front().map(|(at, _)| *at);
            let due = tokio::select! {
                due = decisions.recv() => match due {
                    // Each further NACK asks again.
                    Some(due) if failed.iter().any(|(_, other)| other.content == due.content) => continue,
                    Some(due) => due,
                    None => return,
                },
                () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {
                    let Some((_, due)) = failed.pop_front() else { continue };
                    due
                }
            };
            if self.rejections().of_contents.get(&due.content).is_none_or(|rejection| rejection.is_accepted) {
                continue;
            }
            match decide(due.clone()).await {
                Ok(Decision::Accepted) => {
                    if let Some(rejection) = self.rejections().of_contents.get_mut(&due.content) {
                        rejection.is_accepted = true;
                    }
                }
                // If it is served again, the next NACKs count again.
                Ok(Decision::Withheld) => _ = self.rejections().of_contents.remove(&due.content),
                // The clients that rejected it are sent nothing new, and do not reject it again.
                Err(error) => {
                    let (id, _) = &due.content;
                    warn!(
                        r#type = id.type_url.message_name(),
                        name = id.name.as_str(),
                        "not quarantined yet, although clients reject it; trying again in 10 s: {error}"
                    );
                    failed
                        .push_back((Instant::now() + TRY_AGAIN_AFTER, Due { failed: due.failed + 1, ..due }));
                }
            }
        }
    }

    /// Notes a rejection. Returns the content if enough clients rejected it.
    fn note(&self, content: Content, client: u64, detail: &str) -> Option<Due> {
        let mut rejections = self.rejections();
        let Rejections { of_contents, last } = &mut *rejections;
        if !of_contents.contains_key(&content) && of_contents.len() >= CONTENTS_LIMIT {
            self.make_room(of_contents);
        }
        let rejection = of_contents.entry(content.clone()).or_insert_with(|| {
            *last += 1;
            Rejection { number: *last, clients: BTreeSet::new(), is_accepted: false }
        });
        if rejection.clients.len() < self.needed {
            rejection.clients.insert(client);
        }
        let is_due = rejection.clients.len() >= self.needed && !rejection.is_accepted;
        is_due.then(|| {
            let reason = format!("{} clients rejected it, and none accepted it: {detail}", self.needed);
            let reason = shortened(&reason, REASON_LIMIT_BYTES).into_owned();
            Due { content, reason, failed: 0 }
        })
    }

    /// Forgets contents that are not served any more, and then those that matter least, so that a
    /// client that rejects many contents does not keep others from being noted.
    fn make_room(&self, of_contents: &mut BTreeMap<Content, Rejection>) {
        let snapshot = self.cache.snapshot();
        of_contents.retain(|(id, version), _| {
            let variants = snapshot.get(&id.type_url, &id.name);
            let variant = variants.and_then(|variants| variants.get(&id.constraints));
            variant.is_some_and(|variant| variant.version() == *version)
        });
        if let Some(excess) = of_contents.len().checked_sub(CONTENTS_KEPT) {
            let mut ranks: Vec<_> = of_contents.values().map(Rejection::rank).collect();
            ranks.sort_unstable();
            of_contents.retain(|_, rejection| rejection.rank() >= ranks[excess]);
        }
    }

    /// No code panics while it holds the lock, so the data of a poisoned lock is consistent.
    fn rejections(&self) -> MutexGuard<'_, Rejections> {
        self.rejections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rejection {
    /// Those with the fewest clients come first, then the oldest. If a content that a client accepts
    /// is forgotten, a later decision only finds that out again.
    fn rank(&self) -> (bool, usize, u64) {
        (!self.is_accepted, self.clients.len(), self.number)
    }
}

impl Observer for NackQuorum {
    fn on_event(&self, _: &StreamClient, event: Event<'_>) {
        let Event::Rejected { type_url, alone: Some(variant), peer, detail, .. } = event else { return };
        let (name, constraints) = (variant.name().clone(), variant.constraints().clone());
        let id = VariantId { type_url: type_url.clone(), name, constraints };
        let client = self.hasher.hash_one((peer.name(), peer.network()));
        if let Some(due) = self.note((id, variant.version()), client, detail) {
            // If too many wait, a later NACK asks again.
            _ = self.due.try_send(due);
        }
    }
}

/// Quarantines a content, unless a client accepts it.
///
/// # Errors
/// It is still served.
async fn decide(store: &StoreHandle, clients: &ClientList, due: &Due) -> Result<Decision, String> {
    let content = Arc::new(due.content.clone());
    match opinion_in_time(|| ask(clients, &content)).await {
        Opinion::Accepted => {
            let (id, _) = &due.content;
            let (r#type, name) = (id.type_url.message_name(), id.name.as_str());
            warn!(r#type, name, "not quarantined: clients reject it, but others accept it");
            Ok(Decision::Accepted)
        }
        Opinion::Unknown if due.failed < UNKNOWN_TRIES => {
            Err("a client may accept it, but its stream does not report".to_owned())
        }
        Opinion::Unknown | Opinion::Awaited | Opinion::Rejected => {
            quarantine(store, due).await?;
            Ok(Decision::Withheld)
        }
    }
}

/// What the clients think of a content. Waits for those that have not answered, at most 5 s, and in
/// each round for streams that do not report, at most 2 s.
async fn opinion_in_time<A>(ask: impl Fn() -> Vec<A>) -> Opinion
where
    A: Future<Output = Opinion> + Send + 'static,
{
    let mut known = Opinion::Rejected;
    for wait in WAITS {
        sleep(wait).await;
        known = opinion(ask()).await;
        if matches!(known, Opinion::Accepted | Opinion::Rejected) {
            break;
        }
    }
    known
}

/// What all streams together think: one that accepts is enough, then it counts whether all reported.
async fn opinion<A>(asks: Vec<A>) -> Opinion
where
    A: Future<Output = Opinion> + Send + 'static,
{
    // All at once: one stream that does not report hides no other.
    let mut asked: JoinSet<_> = asks.into_iter().map(|ask| timeout(REPORT_WAIT, ask)).collect();
    let mut all = Opinion::Rejected;
    while let Some(one) = asked.join_next().await {
        all = all.max(one.map_or(Opinion::Unknown, |one| one.unwrap_or(Opinion::Unknown)));
        if all == Opinion::Accepted {
            break;
        }
    }
    all
}

/// Asks all streams for what their clients think of a content.
fn ask(clients: &ClientList, content: &Arc<Content>) -> Vec<impl Future<Output = Opinion> + Send + 'static> {
    let clients = clients.list();
    let streams = clients.iter().flat_map(|client| client.streams().iter().cloned());
    let ask = |stream: ClientStream| {
        let content = Arc::clone(content);
        async move { stream.report().await.map_or(Opinion::Unknown, |types| opinion_in(&types, &content)) }
    };
    streams.map(ask).collect()
}

/// What one stream reports of a content.
fn opinion_in(types: &[TypeReport], (id, version): &Content) -> Opinion {
    let resources = types.iter().filter(|of| of.type_url == id.type_url).flat_map(|of| &of.resources);
    let is_it = |content: &xds::Variant| {
        *content.name() == id.name
            && *content.constraints() == id.constraints
            && content.version() == *version
    };
    let of_it = resources.filter(|of| of.content.as_ref().is_some_and(|(of, _)| is_it(of)));
    let opinions = of_it.map(|resource| match resource.status {
        ReportStatus::Synced => Opinion::Accepted,
        ReportStatus::Stale => Opinion::Awaited,
        ReportStatus::NotSent | ReportStatus::Rejected { .. } => Opinion::Rejected,
    });
    opinions.max().unwrap_or(Opinion::Rejected)
}

/// Commits the quarantine of a content, unless the store has another one already.
async fn quarantine(
    store: &StoreHandle,
    Due { content: (id, version), reason, .. }: &Due,
) -> Result<(), String> {
    let key = store.schemas().stored_key(RecordKey::of(id));
    let (of, reader, version) = (key.clone(), store.clone(), version.to_string());
    let revision = tokio::task::spawn_blocking(move || revision(&reader, &of, &version)).await;
    let Some(revision) = revision.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?
    else {
        return Ok(());
    };
    let quarantine = proto::Quarantine { reason: reason.clone(), ..proto::Quarantine::default() };
    let change = proto::Change {
        key: Some(key.to_proto()),
        condition: Some(proto::Condition { is: Some(proto::condition::Is::Revision(revision)) }),
        act: Some(proto::change::Act::Quarantine(quarantine)),
    };
    let changes = vec![change];
    let message = "clients reject it (--quarantine-nacks)".to_owned();
    let request = proto::CommitRequest { changes, message, ..proto::CommitRequest::default() };
    let draft = store.draft(request, IDENTITY.to_owned()).map_err(|refused| refused.message)?;
    match store.commit(draft).await {
        Ok(_) => {
            let (r#type, name, when) =
                (id.type_url.message_name(), id.name.as_str(), id.constraints.to_string());
            warn!(
                r#type,
                name, when, reason, "quarantined: clients get the last good content, if there is one"
            );
            Ok(())
        }
        // If somebody changed it meanwhile, the next try finds that out. Contention of the servers of
        // one store looks the same (ST19).
        Err(refused) => Err(refused.message),
    }
}

/// The revision of a record that serves this version of its content; `None` if it serves another
/// one, or is quarantined. Blocks.
fn revision(store: &StoreHandle, key: &RecordKey, version: &str) -> Result<Option<String>, ReadError> {
    let view = store.view()?;
    let reads = Reads::new(&*view)?;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
    let Some(record) = reads.get(key, now)? else { return Ok(None) };
    let record = reads.answer(&record, Payload::Without)?;
    let is_it = record.quarantined.is_none() && record.version == version;
    Ok(is_it.then_some(record.revision))
}

/// Who the log of the store says made the commit. No token or certificate has this name.
const IDENTITY: &str = "nacks";
/// When to look at what clients say about a content: those that are slower may accept it.
const WAITS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(500), Duration::from_millis(1500), Duration::from_secs(3)];
/// How long a round waits for reports. A stream reports at once, whatever its client does, unless
/// the machine is overloaded.
const REPORT_WAIT: Duration = Duration::from_secs(2);
/// How many tries may fail because streams do not report.
const UNKNOWN_TRIES: usize = 6;
/// When to decide again if it did not work.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// How many rejected contents are remembered.
const CONTENTS_LIMIT: usize = 1_000;
/// How many remain at most when there are too many: it takes long to find the ones that matter least.
const CONTENTS_KEPT: usize = 750;
/// How many contents may wait for a decision.
const DUE_LIMIT: usize = 64;
const REASON_LIMIT_BYTES: usize = 1024;

#[cfg(test)]
mod tests {
    use std::future;

    use xds::{Resource, ResourceName, Transaction, TypeUrl};

    use super::*;

    /// Of a cache that serves this many contents, with the contents.
    fn quorum(needed: usize, served: usize) -> (NackQuorum, Vec<Content>) {
        let cache = Cache::new();
        let type_url = TypeUrl::new("x/acme.Thing");
        let mut transaction = Transaction::new();
        for number in 0..served {
            let name = ResourceName::new(number.to_string());
            transaction.put(Resource::new(type_url.clone(), name, "content").unwrap());
        }
        cache.commit(transaction).unwrap();
        let snapshot = cache.snapshot();
        let content = |number: usize| {
            let id = VariantId::unconstrained(type_url.clone(), ResourceName::new(number.to_string()));
            let version = snapshot.get(&type_url, &id.name).unwrap().get(&id.constraints).unwrap().version();
            (id, version)
        };
        let contents = (0..served).map(content).collect();
        let (due, _) = mpsc::channel(DUE_LIMIT);
        (
            NackQuorum { needed, cache, hasher: RandomState::new(), rejections: Mutex::default(), due },
            contents,
        )
    }

    #[test]
    fn st63_a_client_that_rejects_many_contents_does_not_hide_what_others_reject() {
        let (quorum, contents) = quorum(2, CONTENTS_LIMIT + 1);
        let (rejected, many) = contents.split_last().unwrap();
        assert!(quorum.note(many[1].clone(), 2, "bad").is_none());
        for content in many {
            quorum.note(content.clone(), 1, "bad");
        }
        assert!(quorum.note(rejected.clone(), 1, "bad").is_none());
        assert!(quorum.rejections().of_contents.len() <= CONTENTS_KEPT + 1);
        // The one with the most clients is kept although it is old.
        assert!(quorum.rejections().of_contents.contains_key(&many[1]));
        let due = quorum.note(rejected.clone(), 2, "bad").unwrap();
        assert_eq!(due.reason, "2 clients rejected it, and none accepted it: bad");
    }

    #[tokio::test(start_paused = true)]
    async fn st63_a_quarantine_that_failed_is_tried_again_without_further_nacks() {
        let (quorum, contents) = quorum(1, 1);
        let (sender, decisions) = mpsc::channel(DUE_LIMIT);
        let due = quorum.note(contents[0].clone(), 1, "bad").unwrap();
        sender.try_send(due.clone()).unwrap();
        // A further NACK does not add a try.
        sender.try_send(due.clone()).unwrap();
        let (start, tries) = (Instant::now(), Mutex::new(vec![]));
        let decide = |of: Due| {
            assert_eq!(of.content, due.content);
            let mut tries = tries.lock().unwrap();
            tries.push((start.elapsed().as_secs(), of.failed));
            let is_failed = tries.len() < 3;
            async move { if is_failed { Err("the disk is full".to_owned()) } else { Ok(Decision::Withheld) } }
        };
        _ = timeout(Duration::from_secs(100), quorum.decide_each(decisions, decide)).await;
        assert_eq!(*tries.lock().unwrap(), [(0, 0), (10, 1), (20, 2)]);
        assert!(quorum.rejections().of_contents.is_empty());
    }

    /// The opinion of streams, of which those with `None` do not report, and how long it took.
    async fn asked(streams: &[Option<Opinion>]) -> (Opinion, Duration) {
        let start = Instant::now();
        let ask = |stream: &Option<Opinion>| {
            let stream = *stream;
            async move {
                match stream {
                    Some(opinion) => opinion,
                    None => future::pending().await,
                }
            }
        };
        let opinion = opinion_in_time(|| streams.iter().map(ask).collect()).await;
        (opinion, start.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn st63_streams_that_do_not_report_neither_hide_an_acceptance_nor_count_as_a_rejection() {
        let mut streams = vec![None; 100];
        streams.push(Some(Opinion::Rejected));
        assert_eq!(asked(&streams).await, (Opinion::Unknown, Duration::from_secs(5 + 4 * 2)));
        streams.push(Some(Opinion::Awaited));
        assert_eq!(asked(&streams).await.0, Opinion::Unknown);
        streams.push(Some(Opinion::Accepted));
        assert_eq!(asked(&streams).await, (Opinion::Accepted, Duration::ZERO));
        let answered = [Some(Opinion::Rejected), Some(Opinion::Rejected)];
        assert_eq!(asked(&answered).await, (Opinion::Rejected, Duration::ZERO));
        let slow = [Some(Opinion::Rejected), Some(Opinion::Awaited)];
        assert_eq!(asked(&slow).await, (Opinion::Awaited, Duration::from_secs(5)));
    }
}
