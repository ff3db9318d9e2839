//! A ceiling of the store, as a commit (SV33).

use std::ops::ControlFlow;

use xds_proto::xds::store::v1 as proto;

use super::changed::Changed;
use super::effect::{ChangeResult, Judging, tombstone, unchanged};
use super::form::{Act, Draft, DraftChange};
use super::refused::{RefusalCode, Refused, Violations};
use crate::key::{RecordKey, is_configuration, stored};
use crate::phase::{Ceiling, Form, Phase};
use crate::record::{RecordState, content_digest};
use crate::schema::SchemaVersion;
use crate::time;

impl Draft {
    /// Sets or lifts a ceiling. This needs the right to operate, which the caller checks.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the type is none, or one of configuration.
    pub fn set_ceiling(ceiling: Ceiling, identity: String, dry_run: bool) -> Result<Self, Refused> {
        let key = Ceiling::key(&ceiling.type_url).filter(|_| !is_configuration(&ceiling.type_url));
        let key = key.ok_or_else(|| {
            let message = format!("{:?} is no type that can have a ceiling", ceiling.type_url);
            Refused::whole(RefusalCode::InvalidArgument, message)
        })?;
        let change = DraftChange { key, expected: None, act: Act::Ceiling(ceiling) };
        Ok(Self::of_store(change, identity, dry_run))
    }
}

impl Judging<'_> {
    pub(super) fn set_ceiling(
        &self,
        ceiling: &Ceiling,
        key: &RecordKey,
        changed: &mut Changed,
    ) -> Result<ChangeResult, Refused> {
        let before = self.records.get(key);
        let live = before.filter(|record| record.exists(self.now));
        let Some(version) = ceiling.version else {
            let Some(record) = live else { return Ok(unchanged(key, proto::Outcome::Absent, None)) };
            return Ok(changed.set(self, key, tombstone(self.state(key, record)?), proto::Outcome::Deleted));
        };
        self.check_below(&ceiling.type_url, version)?;
        let payload = Ceiling::payload(&ceiling.type_url, version).into();
        let (incarnation, generation) = self.next_generation(live, before);
        let mut state = RecordState {
            key: Some(key.to_proto()),
            lifecycle: proto::State::Live.into(),
            incarnation,
            generation,
            created_at: Some(time::to_proto(live.map_or(self.now, |record| record.created_at))),
            content: Some(proto::Content { payload, ..proto::Content::default() }),
            origin: self.head.node.clone(),
            ..RecordState::default()
        };
        state.digest = content_digest(&state);
        if live.is_some_and(|record| record.content == state.digest[..]) {
            return Ok(unchanged(key, proto::Outcome::Unchanged, live));
        }
        let outcome = if live.is_some() { proto::Outcome::Updated } else { proto::Outcome::Created };
        Ok(changed.set(self, key, state, outcome))
    }

    /// What an older server could not read prevents the ceiling: newer records, and plans that have begun.
    fn check_below(&self, type_url: &str, version: SchemaVersion) -> Result<(), Refused> {
        let mut violations = Violations::default();
        let mut closed = |count, message: String| {
            let gate = proto::ClosedGate { gate: "needs_newer".to_owned(), count, ..Default::default() };
            let why = proto::violation::Why::Gate(gate);
            violations.add(RefusalCode::FailedPrecondition, (0, None), message, why);
        };
        let phases = self.records.index.phases();
        for plan in self.schemas.plans() {
            let is_of_type = [Form::Old, Form::New].iter().any(|form| plan.type_url(*form) == type_url);
            let phase = phases.phase(plan);
            if is_of_type && phase != Phase::F0 && version.major() < plan.new_version().major() {
                closed(1, format!("the plan {} is in {phase:?}: go back to F0 first", plan.name()));
            }
        }
        let ((from, to), mut newer, mut last) = (stored::of_type(type_url), 0_u64, None);
        self.range((&from, &to), &mut |stored_key| {
            let key = stored::parse_record(stored_key).map(|(key, _)| key);
            if key != last {
                let record = key.as_ref().and_then(|key| self.records.get(key));
                let is_newer = record.is_some_and(|it| it.exists(self.now) && it.schema > version);
                newer += u64::from(is_newer);
                last = key;
            }
            if newer < COUNTED { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if newer > 0 {
            let at_least = if newer == COUNTED { "at least " } else { "" };
            closed(newer, format!("{at_least}{newer} records of {type_url} have a version above {version}"));
        }
        violations.into_result()
    }
}

/// Records that are counted at most, so that commits do not wait for long.
const COUNTED: u64 = 1_000;
