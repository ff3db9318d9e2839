//! The gRPC service Store.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use prost::Message;
use tonic::{Code, Request, Response, Status};
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::State;
use xds_proto::xds::store::v1::store_server::Store;
use xds_proto::xds::store::v1::violation::Why;
use xds_store::commit::{ChangeResult, Refused};
use xds_store::key::RecordKey;
use xds_store::read::{Filter, HistoryQuery, Knows, PageToken, Payload, Reads};
use xds_store::schema::VersionError;
use xds_store::store::Committed;
use xds_store::time::length_of;

use crate::access::Caller;
use crate::config::ApiConfig;
use crate::listing::{Listing, PAGE_BYTES, STEP};
use crate::queue::Acks;
use crate::reading::{Reading, failed, now};
use crate::referring::{blockers, references};
use crate::status::{committed_only, invalid, invalid_key, lacks, of_refused, readable, refusal};
use crate::watches::Watches;
use crate::watching::Watching;

/// The service Store of one running store.
#[derive(Debug)]
pub(crate) struct StoreService {
    reading: Reading,
    config: ApiConfig,
    watches: Arc<Watches>,
}

impl StoreService {
    pub(crate) fn new(reading: Reading, config: ApiConfig) -> Self {
        Self { reading, watches: Watches::new(config.watches_limit), config }
    }

    /// SR49: a record that is absent here, as peers have it.
    async fn peek(&self, key: RecordKey, knows: Knows, absent: Status) -> Result<proto::GetResponse, Status> {
        let found = self.reading.store.peek(&key).await;
        if found.is_empty() {
            return Err(absent);
        }
        let standing = self.reading.standing();
        let read = move |reads: &Reads<'_>| {
            let (nodes, states): (Vec<_>, Vec<_>) = found.into_iter().unzip();
            let peeked = reads.peeked(&key, &states, now(), &knows);
            let Some((record, from)) = peeked.map_err(|error| failed(&error, &standing))? else {
                return Err(absent);
            };
            let revision = reads.printed(reads.head().revision);
            // Where several nodes have a part of it, the first one is named.
            let peeked_from = nodes[from.unwrap_or_default()].clone();
            Ok(proto::GetResponse { record: Some(record), revision, peeked_from })
        };
        self.reading.local(read).await
    }

    async fn commit_of(
        &self,
        caller: &Caller,
        mut request: proto::CommitRequest,
    ) -> Result<proto::CommitResponse, Status> {
        let acks = self.acks(&request).await?;
        if request.rollout.is_some() && !self.config.rolls_out {
            let why = Why::Invalid(proto::Invalid { field: "rollout".to_owned() });
            let message = "this server rolls out nothing: start it with --rollout-state";
            return Err(refusal(Code::FailedPrecondition, message, None, why));
        }
        // The machine judges; the writer waits for peers.
        request.ack_peers = 0;
        let owner = owner_of(caller, std::mem::take(&mut request.owner))?;
        request.owner = owner;
        let keys: Vec<_> =
            request.changes.iter().map(|change| change.key.clone().unwrap_or_default()).collect();
        let (force, prune) = (request.force_schema, request.prune);
        let is_copy = request.is_copy;
        let violations_from = request.violations_from.filter(|_| request.dry_run);
        let refused = |refused| of_refused(self.with_writers(refused), &self.reading.standing(), caller);
        let draft = self.reading.store.draft(request, caller.client.identity()).map_err(refused)?;
        check_options(caller, force, prune, is_copy)?;
        let draft = draft.limited_to(caller.rights.write_access()).map_err(refused)?;
        let (committed, acked) = match self.reading.store.commit_acked(draft, acks).await {
            Err(why)
                if !why.violations.is_empty()
                    && let Some(from) = violations_from =>
            {
                let violations = readable(self.with_writers(why).violations, caller);
                return Ok(listed(violations, from));
            }
            other => other.map_err(refused)?,
        };
        let response = self.committed(caller, committed, keys);
        let response = proto::CommitResponse { acked_peers: wire(acked.peers), ..response };
        if acked.is_enough {
            return Ok(response);
        }
        let message = format!(
            "it is committed here at revision {}, and {} of {} peers confirmed in time that they have it",
            response.revision, acked.peers, acks.peers,
        );
        Err(committed_only(message, response))
    }

    /// SG22: where the writer of the region that owns a name is, if a peer has said so.
    fn with_writers(&self, mut refused: Refused) -> Refused {
        for violation in &mut refused.violations {
            if let Some(Why::Region(owned)) = &mut violation.why
                && let Some(peers) = self.reading.store.peers()
                && let Some((node, address)) = peers.writers.get(&owned.owner_region)
            {
                owned.writer_node.clone_from(node);
                owned.writer_address.clone_from(address);
                violation.message = format!("{} at {address}", violation.message);
            }
        }
        refused
    }

    /// What the answer of a commit waits for (SR17).
    async fn acks(&self, request: &proto::CommitRequest) -> Result<Acks, Status> {
        let timeout = match request.ack_timeout.map(length_of) {
            None => ACK_TIMEOUT,
            Some(Some(timeout)) if timeout <= ACK_TIMEOUT_LIMIT => timeout,
            Some(_) => return Err(invalid("ack_timeout", "ack_timeout is at most 60 s, and not negative")),
        };
        if request.dry_run {
            return Ok(Acks::default());
        }
        if request.ack_peers == 0 {
            return Ok(Acks { peers: self.config.ack_peers, timeout });
        }
        let peers = usize::try_from(request.ack_peers).unwrap_or(usize::MAX);
        let status = self.reading.store.peers();
        let there = status.as_ref().map_or(0, |status| status.peers.len());
        if there == 0 && status.is_some() {
            return Err(Status::unavailable("ack_peers: this node has heard of no peer yet"));
        }
        if peers > there {
            let message =
                format!("ack_peers: {peers} peers cannot confirm the commit: this store has {there}");
            return Err(invalid("ack_peers", message));
        }
        Ok(Acks { peers, timeout })
    }

    /// The answer of a commit. Effects on records that the caller may not read are only counted.
    fn committed(
        &self,
        caller: &Caller,
        committed: Committed,
        keys: Vec<proto::Key>,
    ) -> proto::CommitResponse {
        let results = committed.results.iter().zip(keys).map(|(result, key)| {
            // The draft was parsed, so the key can be.
            let key = RecordKey::parse(&key).map_or(key, |key| key.to_proto());
            result_of(key, result)
        });
        let effect_count = committed.effects.len() as u64;
        let effects = committed.effects.iter().filter(|effect| caller.may_read(&effect.key));
        let effects = effects.take(EFFECTS).map(|effect| result_of(effect.key.to_proto(), &effect.result));
        proto::CommitResponse {
            revision: self.reading.printed(committed.revision),
            results: results.collect(),
            effects: effects.collect(),
            effect_count,
            warnings: committed.warnings,
            ..proto::CommitResponse::default()
        }
    }
}

fn wire(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn result_of(key: proto::Key, result: &ChangeResult) -> proto::Result {
    let (revision, uid) = match result.record {
        Some((revision, uid)) => (revision.to_string(), uid.to_string()),
        None => Default::default(),
    };
    let blocked_by = result.blocked_by.clone();
    proto::Result { key: Some(key), outcome: result.outcome.into(), revision, uid, blocked_by }
}

type Watched = Pin<Box<dyn Stream<Item = Result<proto::WatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Store for StoreService {
    type WatchStream = Watched;

    async fn get(&self, request: Request<proto::GetRequest>) -> Result<Response<proto::GetResponse>, Status> {
        let (caller, request) = taken(request)?;
        let level = request.level();
        let proto::GetRequest { key, at_least, knows, peek, .. } = request;
        let wire_key = key.unwrap_or_default();
        let key = RecordKey::parse(&wire_key).map_err(|error| invalid_key(wire_key, &error))?;
        if !caller.may_read(&key) {
            let message = format!("this client may not read {key:?}");
            return Err(lacks("read", Some(key.to_proto()), message));
        }
        let knows = match &*knows {
            "" => Knows::default(),
            text => Knows::of(&key, text.parse().map_err(|error| invalid_knows(&error))?),
        };
        let standing = self.reading.standing();
        let peeked = peek.then(|| (key.clone(), knows.clone()));
        let read = move |reads: &Reads<'_>| {
            let failed = |error| failed(&error, &standing);
            let record = reads.read(&key, now(), Payload::With, &knows).map_err(failed)?;
            if record.is_none() {
                let why = Why::Condition(proto::ConditionFailed::default());
                return Err(refusal(
                    Code::NotFound,
                    format!("{key:?} does not exist"),
                    Some(key.to_proto()),
                    why,
                ));
            }
            let revision = reads.printed(reads.head().revision);
            Ok(proto::GetResponse { record, revision, peeked_from: String::new() })
        };
        let mut response = match (self.reading.at_level(level, at_least, read).await, peeked) {
            (Err(absent), Some((key, knows))) if absent.code() == Code::NotFound => {
                self.peek(key, knows, absent).await?
            }
            (response, _) => response?,
        };
        if let Some(record) = response.record.as_mut().filter(|record| record.state() == State::Deleting) {
            record.blocked_by =
                blockers(&self.reading, caller, record.key.clone().unwrap_or_default()).await?;
        }
        Ok(Response::new(response))
    }

    async fn list(
        &self,
        request: Request<proto::ListRequest>,
    ) -> Result<Response<proto::ListResponse>, Status> {
        let (caller, request) = taken(request)?;
        let level = request.level();
        let proto::ListRequest { filter, page_size, page_token, at_least, without_payload, knows, .. } =
            request;
        let knows = Arc::new(Knows::parse(&knows).map_err(|error| invalid_knows(&error))?);
        let filter = parse_filter(filter)?;
        let limit = match page_size {
            0 => PAGE,
            size => usize::try_from(size).unwrap_or(usize::MAX).min(LARGEST_PAGE),
        };
        let payload = Payload::unless(without_payload);
        let begin = {
            let filter = Arc::clone(&filter);
            move |reads: &Reads<'_>| {
                if page_token.is_empty() {
                    return Ok((reads.head().revision, None));
                }
                let token = PageToken::parse(&page_token, reads, &filter)
                    .map_err(|error| invalid("page_token", error.to_string()))?;
                Ok((token.revision, Some(token.after)))
            }
        };
        let (at, after) = self.reading.at_level(level, at_least, begin).await?;
        let mut listing = Listing {
            reading: self.reading.clone(),
            caller,
            filter,
            payload,
            knows,
            at,
            after,
            has_left_out: false,
        };
        let page = listing.page(limit, PAGE_BYTES).await?;
        let revision = self.reading.printed(at);
        let next_page_token = page.token.unwrap_or_default();
        Ok(Response::new(proto::ListResponse { records: page.records, next_page_token, revision }))
    }

    async fn watch(&self, request: Request<proto::WatchRequest>) -> Result<Response<Watched>, Status> {
        let (caller, request) = taken(request)?;
        let proto::WatchRequest { filter, after, without_payload, knows, bookmark_every } = request;
        let knows = Arc::new(Knows::parse(&knows).map_err(|error| invalid_knows(&error))?);
        let filter = parse_filter(filter)?;
        let every = bookmark_every.filter(|every| *every != prost_types::Duration::default());
        let bookmark_every = match every.map(length_of) {
            None => BOOKMARK_EVERY,
            Some(Some(every)) if every >= SHORTEST_BOOKMARK => every,
            Some(_) => return Err(invalid("bookmark_every", "bookmark_every is at least 1 s")),
        };
        let place = self.watches.open(caller.client.identity())?;
        let payload = Payload::unless(without_payload);
        let times = (bookmark_every, self.config.authorize_every);
        let watching = match after.is_empty() {
            true => Watching::with_snapshot(self.reading.clone(), caller, filter, (payload, knows)).await?,
            false => Watching::after(self.reading.clone(), caller, filter, (payload, knows), after).await?,
        };
        Ok(Response::new(watching.into_stream(times, place)))
    }

    async fn commit(
        &self,
        request: Request<proto::CommitRequest>,
    ) -> Result<Response<proto::CommitResponse>, Status> {
        let (caller, request) = taken(request)?;
        self.commit_of(&caller, request).await.map(Response::new)
    }

    async fn history(
        &self,
        request: Request<proto::HistoryRequest>,
    ) -> Result<Response<proto::HistoryResponse>, Status> {
        let (caller, request) = taken(request)?;
        let proto::HistoryRequest { key, before, limit, without_payload } = request;
        let parse = |key: proto::Key| RecordKey::parse(&key).map_err(|error| invalid_key(key, &error));
        let key = key.map(parse).transpose()?;
        let payload = Payload::unless(without_payload);
        let limit = match limit {
            0 => HISTORY_PAGE,
            limit => usize::try_from(limit).unwrap_or(usize::MAX).min(LARGEST_HISTORY_PAGE),
        };
        let mut before = match before.is_empty() {
            true => None,
            false => Some(
                self.reading
                    .local(move |reads| {
                        reads.parse(&before).map_err(|error| invalid("before", error.to_string()))
                    })
                    .await?,
            ),
        };
        loop {
            let (key, caller, standing) = (key.clone(), caller.clone(), self.reading.standing());
            let step = move |reads: &Reads<'_>| {
                let query = HistoryQuery {
                    key: key.as_ref(),
                    before,
                    may_read: &|key| caller.may_read(key),
                    payload,
                    limit,
                    limit_bytes: PAGE_BYTES,
                    scan_limit: STEP,
                };
                let page = reads.history(query).map_err(|error| failed(&error, &standing))?;
                let floor = reads.head().floor;
                Ok((page, if floor == 0 { String::new() } else { reads.printed(floor) }))
            };
            let (page, floor) = self.reading.local(step).await?;
            if page.commits.is_empty() && page.next.is_some() {
                before = page.next;
                continue;
            }
            let next = page.next.map_or_else(String::new, |next| self.reading.printed(next));
            return Ok(Response::new(proto::HistoryResponse { commits: page.commits, next, floor }));
        }
    }

    async fn references(
        &self,
        request: Request<proto::ReferencesRequest>,
    ) -> Result<Response<proto::ReferencesResponse>, Status> {
        let (caller, request) = taken(request)?;
        references(&self.reading, caller, request).await.map(Response::new)
    }
}

/// The caller, as the check before the services found it, and the message of a request.
pub(crate) fn taken<T>(mut request: Request<T>) -> Result<(Caller, T), Status> {
    let caller = request.extensions_mut().remove::<Caller>();
    let caller = caller.ok_or_else(|| Status::internal("the request was not checked"))?;
    Ok((caller, request.into_inner()))
}

fn parse_filter(filter: Option<proto::Filter>) -> Result<Arc<Filter>, Status> {
    Filter::parse(filter).map(Arc::new).map_err(|error| invalid("filter", error.to_string()))
}

fn invalid_knows(error: &VersionError) -> Status {
    invalid("knows", format!("knows: {error}"))
}

/// The owner that a commit acts as: the one that the policy fixes, or else the requested one.
fn owner_of(caller: &Caller, requested: String) -> Result<String, Status> {
    match &caller.rights.owner {
        None => Ok(requested),
        Some(fixed) if requested.is_empty() || requested == *fixed => Ok(fixed.clone()),
        Some(fixed) => Err(lacks(
            "owner",
            None,
            format!("this client acts as owner {fixed:?}, and not as {requested:?}"),
        )),
    }
}

/// The part of stage 2 of ST8 that concerns no certain record.
fn check_options(caller: &Caller, force: bool, prune: bool, is_copy: bool) -> Result<(), Status> {
    let rights = &caller.rights;
    if force && !rights.operate {
        return Err(lacks("operate", None, "force_schema needs the right to operate"));
    }
    if is_copy && !rights.operate {
        return Err(lacks("operate", None, "is_copy needs the right to operate"));
    }
    // A prune changes records that the commit does not name. The client needs the right to write
    // them as well, which the store checks when it finds them.
    let may_prune = rights.operate || rights.owner.is_some();
    if prune && !may_prune {
        let message = "prune needs a rule with `owner`, or the right to operate: it changes records that the commit \
                       does not name";
        return Err(lacks("owner", None, message));
    }
    Ok(())
}

/// Effects in the answer of a commit.
const EFFECTS: usize = 1_000;
/// Records of a page.
const PAGE: usize = 500;
const LARGEST_PAGE: usize = 10_000;
/// Commits of a page of history.
const HISTORY_PAGE: usize = 50;
const LARGEST_HISTORY_PAGE: usize = 1_000;
const BOOKMARK_EVERY: Duration = Duration::from_secs(10);
const SHORTEST_BOOKMARK: Duration = Duration::from_secs(1);

/// How long a commit waits for peers (SR17).
const ACK_TIMEOUT: Duration = Duration::from_secs(5);
const ACK_TIMEOUT_LIMIT: Duration = Duration::from_secs(60);
/// The violations from a number on that fit into an answer.
fn listed(violations: Vec<proto::Violation>, from: u32) -> proto::CommitResponse {
    let violation_count = u32::try_from(violations.len()).unwrap_or(u32::MAX);
    let mut left = VIOLATIONS_LIMIT_BYTES;
    let fits = |violation: &proto::Violation| {
        let has_room = left > 0;
        left = left.saturating_sub(violation.encoded_len());
        has_room
    };
    let violations = violations.into_iter().skip(from as usize).take_while(fits).collect();
    proto::CommitResponse { violations, violation_count, ..Default::default() }
}

/// So that each client can read the answer.
const VIOLATIONS_LIMIT_BYTES: usize = 1024 * 1024;
