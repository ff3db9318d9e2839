//! What nodes ask each other about records (SR49, SR51): their states, and digests to compare them.

use std::ops::ControlFlow;

use bytes::Bytes;
use prost::Message;
use xds_proto::xds::store::v1 as proto;

use super::{Knows, Payload, ReadError, Reads, RecordVersion};
use crate::checked;
use crate::clock::{Chain, Clock, Position};
use crate::entry::{is_exchanged, parse_state};
use crate::key::{RecordKey, stored};
use crate::log::{StoredFetching, StoredOrigin};
use crate::merge::merge;
use crate::record::{Local, RecordRevision, RecordState};
use crate::region::{key_of, read_fetching};

/// Of how many buckets a node tells the digests (SR51).
pub const BUCKETS: usize = 256;

impl Reads<'_> {
    /// Up to where this view has the entries of each origin.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn clock(&self) -> Result<Clock, ReadError> {
        let mut clock = Clock::default();
        let mut failed = None;
        let (from, to) = stored::ORIGINS;
        self.view.range(from, to, &mut |stored_key, value| {
            let Some(origin) = stored::parse_origin(stored_key) else { return ControlFlow::Continue(()) };
            match checked::decode::<StoredOrigin>(stored_key, value.bytes) {
                Ok(StoredOrigin { counter, chain, .. }) => {
                    let chain = Chain::from_wire(&chain).unwrap_or_default();
                    clock.set(origin, Position { counter, chain });
                    ControlFlow::Continue(())
                }
                Err(damaged) => {
                    failed = Some(damaged);
                    ControlFlow::Break(())
                }
            }
        })?;
        failed.map_or(Ok(()), Err)?;
        let head = self.head();
        let chain = Chain::from_wire(&head.chain).unwrap_or_default();
        clock.set(&head.node, Position { counter: head.counter, chain });
        Ok(clock)
    }

    /// The answer to a peek: the states of these keys as other nodes have them, deleted and quarantined ones
    /// included. It has at least one key, and ends behind 4 MiB.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn peek(&self, keys: &[RecordKey]) -> Result<proto::PeekResponse, ReadError> {
        self.peek_in((&self.head().region, &[]), keys)
    }

    /// The same for a node of a region, which fetches names with these prefixes (SG27): what is not for it does not
    /// exist here (SG25).
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn peek_in(
        &self,
        (region, fetching): (&str, &[String]),
        keys: &[RecordKey],
    ) -> Result<proto::PeekResponse, ReadError> {
        let policies = self.policies()?;
        let fetching: Vec<_> = fetching.iter().map(String::as_str).collect();
        let mut answer = proto::PeekResponse { clock: self.clock()?.to_wire(), ..Default::default() };
        let mut bytes = 0;
        for key in keys {
            if bytes >= PEEK_BYTES {
                break;
            }
            let between = (&*self.head().region, region);
            let is_told = is_exchanged(key)
                && (policies.is_told(key, between.0, between.1)
                    || policies.is_given(key, between, &fetching));
            let state = if is_told { self.state_of_others(key)? } else { None };
            bytes += state.as_ref().map_or(0, Message::encoded_len);
            answer.records.extend(state);
            answer.keys_done += 1;
        }
        Ok(answer)
    }

    /// A record that is absent here, as the states of some peers and of this store make it, with the number of
    /// the first state that says all of it; `None` if it does not exist by them (SR49). States that no node of
    /// this version has are left out.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn peeked(
        &self,
        key: &RecordKey,
        states: &[RecordState],
        now: i64,
        knows: &Knows,
    ) -> Result<Option<(proto::Record, Option<usize>)>, ReadError> {
        let is_it = |state: &&RecordState| matches!(parse_state(state), Ok((found, _)) if found == *key);
        let all = self.state_of_others(key)?.into_iter().chain(states.iter().filter(is_it).cloned());
        let Some(state) = all.reduce(|one, other| merge(&one, &other)) else { return Ok(None) };
        let version = RecordVersion {
            key: key.clone(),
            changed_at: 0,
            committed_at: Some(0),
            state,
            lifecycle_of_others: 0,
        };
        if !version.exists(now) {
            return Ok(None);
        }
        let from = states.iter().position(|state| *state == version.state);
        let record = self.answer_to(&version, Payload::With, knows)?;
        // It is not in this store yet, so no commit of it changed the record.
        Ok(Some((proto::Record { store_revision: String::new(), changed_at: None, ..record }, from)))
    }

    /// The newest state of a record as other nodes have it, where its date may not have ended it yet (SR5).
    fn state_of_others(&self, key: &RecordKey) -> Result<Option<RecordState>, ReadError> {
        let Some(version) = self.last(key)? else { return Ok(None) };
        let mut state = version.state;
        if state.lifecycle() == proto::State::Deleted {
            let at = stored::record(key, version.changed_at);
            let value = self.view.get(&at)?;
            let local = value.map(|value| checked::decode::<Local>(&at, value.bytes)).transpose()?;
            match local.unwrap_or_default().lifecycle_of_others() {
                proto::State::Unspecified => {}
                proto::State::Deleted => return Ok(None),
                lifecycle => state.lifecycle = lifecycle.into(),
            }
        }
        Ok(Some(state))
    }

    /// SR51: what a peer compares with its own: digests of all buckets, or records of some, at most `limit` of
    /// them and none behind `until`. Deleted records are in no bucket, because nodes forget them at different
    /// times; a record that its date has ended here counts as deleted. Names that are fetched come with their
    /// deletions (SG27): the node that fetches them may hear of an older state later, from one that lacks the
    /// deletion.
    ///
    /// This reads all records: they are compared once a day, so digests that each commit changes would cost more,
    /// and would not find what is damaged in the engine.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn digest(
        &self,
        request: &proto::DigestRequest,
        until: Option<&RecordKey>,
        limit: usize,
    ) -> Result<proto::DigestResponse, ReadError> {
        let mut answer = proto::DigestResponse { clock: self.clock()?.to_wire(), ..Default::default() };
        // Each takes 2 KB, and many buckets of a small store have no record.
        let mut hashers: Vec<Option<Box<blake3::Hasher>>> = vec![None; BUCKETS];
        let policies = self.policies()?;
        let fetching: Vec<_> = request.fetching.iter().map(|names| names.prefix.as_str()).collect();
        let between = (request.source_region.as_str(), request.region.as_str());
        let after = request.after.as_ref().and_then(|key| RecordKey::parse(key).ok());
        let from = after.map_or_else(|| Bytes::from_static(stored::RECORDS.0), |after| stored::after(&after));
        let (to, revision) = (stored::RECORDS.1, self.head().revision);
        let is_of_all = request.records_of.is_empty();
        let (mut bytes, mut floor) = (0, self.head().incarnation_floor);
        self.newest_of_each((&from, to), revision, &mut |RecordVersion { key, state, .. }| {
            if until.is_some_and(|until| key > *until) {
                return ControlFlow::Break(());
            }
            let of_owner = &request.owner_region;
            let is_counted = (policies.is_told(&key, between.0, between.1)
                || policies.is_given(&key, between, &fetching))
                && (of_owner.is_empty() || policies.owner_of(&key) == Some(of_owner))
                && is_exchanged(&key)
                && (request.name_prefixes.is_empty() || {
                    let name = key.name();
                    request.name_prefixes.iter().any(|prefix| name.as_str().starts_with(prefix))
                });
            if state.lifecycle() == proto::State::Deleted {
                floor = floor.max(state.incarnation);
            }
            if !is_counted || (fetching.is_empty() && state.lifecycle() == proto::State::Deleted) {
                return ControlFlow::Continue(());
            }
            let wire_key = key.to_proto();
            let encoded = wire_key.encode_to_vec();
            let bucket = blake3::hash(&encoded).as_bytes()[0];
            let digest = RecordRevision::of(&state).to_bytes();
            if is_of_all {
                let hasher = hashers[usize::from(bucket)].get_or_insert_default();
                hasher.update(&encoded).update(&digest);
            } else if request.records_of.contains(&u32::from(bucket)) {
                if answer.records.len() >= limit || bytes >= PAGE_BYTES {
                    answer.more = true;
                    return ControlFlow::Break(());
                }
                bytes += encoded.len() + digest.len();
                let revision = Bytes::copy_from_slice(&digest);
                answer.records.push(proto::RecordDigest { key: Some(wire_key), revision });
            }
            ControlFlow::Continue(())
        })?;
        if is_of_all {
            let first = |hash: blake3::Hash| Bytes::copy_from_slice(&hash.as_bytes()[..16]);
            let empty = first(blake3::hash(&[]));
            let digest = |hasher: Option<Box<blake3::Hasher>>| match hasher {
                Some(hasher) => first(hasher.finalize()),
                None => empty.clone(),
            };
            answer.buckets = hashers.into_iter().map(digest).collect();
            answer.is_fetching = self.is_fetching()?;
            answer.complete = self.complete(&request.fetching, &request.region)?;
            answer.incarnation_floor = if answer.complete.is_empty() { 0 } else { floor };
        }
        Ok(answer)
    }

    /// Whether this store lacks names that a policy gave to its region (SG27).
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn is_fetching(&self) -> Result<bool, ReadError> {
        Ok(!read_fetching(self.view)?.is_empty())
    }

    /// SG27: of names that a node of a region fetches, the prefixes whose policy is the same here, and of which this
    /// store has all names; or all that are left: nobody could give it more but the region of that node, or that region
    /// owns the names, gave them to this store, and lacks some itself.
    fn complete(&self, fetching: &[proto::Fetching], region: &str) -> Result<Vec<String>, ReadError> {
        if fetching.is_empty() {
            return Ok(Vec::new());
        }
        let (own, policies) = (read_fetching(self.view)?, self.policies()?);
        let mut complete = Vec::new();
        for proto::Fetching { prefix, revision } in fetching {
            let Some(key) = key_of(prefix) else { continue };
            let here = self.last(&key)?.map(|version| RecordRevision::of(&version.state).to_bytes());
            let is_same = here.as_ref().map_or(&[][..], |here| here) == &revision[..];
            let is_other = self.head().region != region;
            let is_of_owner = policies.policy_of(prefix).is_some_and(|policy| policy.owner() == region);
            let is_all = |fetched: &StoredFetching| match is_other {
                true => fetched.is_last || (is_of_owner && fetched.region == region),
                false => fetched.is_lost,
            };
            let mut is_lacking = false;
            for (of, _) in own.iter().filter(|(_, fetched)| !is_all(fetched)) {
                is_lacking |= self.share_names(of, prefix)?;
            }
            if is_same && !is_lacking {
                complete.push(prefix.clone());
            }
        }
        Ok(complete)
    }

    /// SG21: whether a name may be of both prefixes: they are equal, or the longer one has no policy of its own.
    fn share_names(&self, one: &str, other: &str) -> Result<bool, ReadError> {
        let (short, long) = if one.len() < other.len() { (one, other) } else { (other, one) };
        if short == long || !long.starts_with(short) {
            return Ok(short == long);
        }
        let policy = key_of(long).map(|key| self.last(&key)).transpose()?.flatten();
        Ok(policy.is_none_or(|version| version.state.lifecycle() == proto::State::Deleted))
    }
}

/// An answer to a peek ends behind so many bytes.
const PEEK_BYTES: usize = 4 << 20;
/// A page of records ends behind so many bytes.
const PAGE_BYTES: usize = 1 << 20;
