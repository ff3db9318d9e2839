//! Stage 8: references are judged on the state after the commit (ST10).

use std::collections::{BTreeMap, BTreeSet};

use xds_core::ResourceName;
use xds_proto::xds::store::v1 as proto;

use super::effect::{ChangeResult, Judging};
use super::form::{Act, Draft, Put};
use super::refused::{RefusalCode, Refused, Violations};
use crate::index::Pending;
use crate::key::{NameDigest, RecordKey};
use crate::read;
use crate::record::RecordState;
use crate::refs::{self, Reference, ReferrerChanges};
use crate::rules::{Acts, Named};

/// A commit whose changes are all known.
pub(super) struct Referring<'a> {
    pub(super) judging: &'a Judging<'a>,
    pub(super) draft: &'a Draft,
    /// The changed records.
    pub(super) states: &'a BTreeMap<RecordKey, (RecordState, proto::Outcome)>,
    pub(super) pending: &'a Pending,
    pub(super) referrers: &'a ReferrerChanges,
    pub(super) deleting: &'a ReferrerChanges,
    /// See [`Changed`](super::changed::Changed).
    pub(super) reread: &'a BTreeMap<RecordKey, Box<[Reference]>>,
    /// The same.
    pub(super) causes: &'a BTreeMap<RecordKey, RecordKey>,
}

impl Referring<'_> {
    /// Warnings for people.
    pub(super) fn check(&self, number: impl Fn(&RecordKey) -> Option<usize>) -> Result<Vec<String>, Refused> {
        let mut violations = Violations::default();
        let mut fields_left = FIELDS_READ;
        self.check_imports(&mut violations, &mut fields_left);
        violations.into_result()?;
        let mut violations = Violations::default();
        let mut warnings = self.check_added(&mut violations, &mut fields_left);
        self.check_removed(&mut violations, &mut fields_left, number)?;
        violations.into_result()?;
        warnings.extend(self.dangling());
        Ok(warnings)
    }

    /// SG12: the records that a changed rule makes refer to what does not exist. They stay as they are.
    fn dangling(&self) -> Vec<String> {
        let Self { judging, pending, .. } = self;
        let dangles = |key: &RecordKey, references: &[Reference]| {
            let before = judging.records.get(key).map_or(&[][..], |record| &record.references);
            references.iter().any(|one| {
                let had = refs::find(before, one.target).is_some_and(Acts::needs_target);
                one.acts.needs_target() && !had && !judging.records.exists_after(pending, one.target)
            })
        };
        let all: Vec<_> =
            self.reread.iter().filter(|(key, all)| dangles(key, all)).map(|(key, _)| key).collect();
        let shown = all.iter().filter(|key| self.draft.may_read(key)).take(WARNINGS);
        let mut warnings: Vec<_> =
            shown.map(|key| format!("by this rule, {key:?} names what does not exist")).collect();
        let more = all.len() - warnings.len();
        if more > 0 {
            warnings.push(format!("by this rule, {more} more records name what does not exist"));
        }
        warnings
    }

    /// SG3: what a put adds leads to a record. References that the record had before are not judged
    /// again.
    fn check_added(&self, violations: &mut Violations, fields_left: &mut usize) -> Vec<String> {
        let Self { judging, draft, states, .. } = self;
        let (mut warnings, mut more) = (Vec::new(), 0_usize);
        for (number, change) in draft.changes.iter().enumerate() {
            let key = &change.key;
            let Act::Put(put) = &change.act else { continue };
            if !states.contains_key(key) {
                continue;
            }
            let before = self.before(key);
            for Named { type_url: of_type, name, acts } in judging.rules.named(&put.resource) {
                let target = NameDigest::of(of_type, name.as_str());
                let had = refs::find(before, target).is_some_and(Acts::needs_target);
                if !acts.needs_target() || had {
                    continue;
                }
                let targets = judging.forms().named(of_type, &name);
                let exists = self.exists(&targets);
                let is_deleting = exists && self.is_deleting(&targets);
                let elsewhere = targets.first().filter(|target| judging.elsewhere(target).is_some());
                if exists && !is_deleting && elsewhere.is_none() {
                    continue;
                }
                let field = self.field(put, (of_type, &name), fields_left, Acts::needs_target);
                if let Some(target) = elsewhere.filter(|_| exists && !is_deleting) {
                    judging.note_added((key, target), (field, acts));
                    continue;
                }
                let at = if field.is_empty() { String::new() } else { format!(" ({field})") };
                let what = if is_deleting { "is being deleted" } else { "does not exist" };
                let named = format!("{key:?} names {of_type} {name}{at}, which {what}");
                if draft.allow_missing && !is_deleting {
                    if warnings.len() < WARNINGS {
                        warnings.push(named);
                    } else {
                        more += 1;
                    }
                    continue;
                }
                let message = if is_deleting {
                    named
                } else {
                    format!(
                        "{named}: put it first, or in the same commit, list it as `external` in a reference rule, or \
                         allow missing targets"
                    )
                };
                let target = Some(target_key(of_type, &name));
                let why = proto::MissingTarget { target, field, is_deleting, is_not_imported: false };
                let why = proto::violation::Why::MissingTarget(why);
                violations.add(RefusalCode::FailedPrecondition, (number, Some(key.to_proto())), message, why);
            }
        }
        if more > 0 {
            warnings.push(format!("{more} more references lead to what does not exist"));
        }
        warnings
    }

    /// The references that a record had before. SG12: a new rule does not make a reference a new one.
    pub(super) fn before(&self, key: &RecordKey) -> &[Reference] {
        let before = self.judging.records.get(key).filter(|record| record.exists(self.judging.now));
        let before = before.map(|record| self.reread.get(key).unwrap_or(&record.references));
        before.map_or(&[][..], |references| &references[..])
    }

    /// The first field of a put that names a resource and does this with it; empty if the commit has named enough.
    pub(super) fn field(
        &self,
        put: &Put,
        (type_url, name): (&str, &ResourceName),
        fields_left: &mut usize,
        is_of: impl Fn(Acts) -> bool,
    ) -> String {
        if *fields_left == 0 {
            return String::new();
        }
        *fields_left -= 1;
        let fields = self.judging.rules.fields(&put.resource, type_url, name).into_iter();
        fields.filter(|(_, acts)| is_of(*acts)).map(|(field, _)| field).next().unwrap_or_default()
    }

    /// SG4: a target that others still refer to stays.
    fn check_removed(
        &self,
        violations: &mut Violations,
        fields_left: &mut usize,
        number: impl Fn(&RecordKey) -> Option<usize>,
    ) -> Result<(), Refused> {
        let deleted = self.states.iter().filter(|(_, (state, _))| is_deleted(state));
        let mut seen = BTreeSet::new();
        for (target, _) in deleted {
            // A target with two forms is judged once (SV30).
            let targets: Vec<_> = self.judging.forms().all(target).collect();
            let is_seen = !seen.insert(target.name_digest());
            seen.extend(targets.iter().map(RecordKey::name_digest));
            if is_seen || self.exists(&targets) {
                continue;
            }
            let Blockers { by, count, is_here } = self.blockers(target, fields_left)?;
            let may_be_referred = self.judging.may_be_referred(target);
            if count == 0 && !may_be_referred {
                continue;
            }
            // SG34, SG40: a region that is silent counts as holding.
            let blocks = self.judging.blocks(target);
            let is_held = (self.judging.note_blocked(&blocks) || is_here) && count > 0;
            let mut silent_regions = self.judging.silent(&blocks);
            // SG6: the request names the first of the chain.
            let (mut root, mut chain) = (target, Vec::new());
            while let Some(cause) = self.causes.get(root) {
                chain.push((root, cause));
                root = cause;
            }
            let number = number(root);
            let shown = |key: &RecordKey| match number.is_some() && key == root || self.draft.may_read(key) {
                true => format!("{key:?}"),
                false if chain.is_empty() => "a record of this owner".to_owned(),
                false => "a record".to_owned(),
            };
            let key = (number.is_some() || self.draft.may_read(root)).then(|| root.to_proto());
            let mut message = match count {
                0 => format!("{} may be used by other regions", shown(target)),
                _ => format!("{} is used by {}: remove that first", shown(target), users(&by, count)),
            };
            if may_be_referred && !is_held {
                let (nodes, regions) = self.judging.unheard_nodes();
                silent_regions = regions.into_iter().chain(silent_regions).collect();
                silent_regions.sort_unstable();
                silent_regions.dedup();
                message += &format!(
                    ": this node became the writer of region {}, and has not heard what refers to it at node {nodes}: \
                     retry, for 5 minutes at most, or forget a node that is gone",
                    self.judging.head.region
                );
            } else if !silent_regions.is_empty() {
                message += &format!(" (no answer from region {})", silent_regions.join(", "));
            }
            if !chain.is_empty() {
                let links = chain
                    .iter()
                    .rev()
                    .map(|(key, cause)| format!("{} goes with {}, ", shown(key), shown(cause)));
                message = links.chain([message]).collect();
            }
            let why = proto::violation::Why::Referred(proto::Referred { by, count, silent_regions });
            let at = (number.unwrap_or(usize::MAX), key);
            let code = if is_held { RefusalCode::FailedPrecondition } else { RefusalCode::Unavailable };
            violations.add(code, at, message, why);
        }
        Ok(())
    }

    /// SG7: what the deletions in progress wait for.
    pub(super) fn show_blockers(&self, results: &mut [ChangeResult]) -> Result<(), Refused> {
        let mut fields_left = FIELDS_READ;
        for (change, result) in self.draft.changes.iter().zip(results) {
            if result.outcome == proto::Outcome::Deleting {
                result.blocked_by = self.blockers(&change.key, &mut fields_left)?.by;
            }
        }
        Ok(())
    }

    /// SG2: a target exists after the commit while any variant of it does.
    fn exists(&self, targets: &[RecordKey]) -> bool {
        let records = self.judging.records;
        targets.iter().any(|target| records.exists_after(self.pending, target.name_digest()))
    }

    /// Whether all variants of a target are being deleted after the commit.
    fn is_deleting(&self, targets: &[RecordKey]) -> bool {
        let records = self.judging.records;
        targets.iter().map(RecordKey::name_digest).all(|name| {
            let variants = match self.pending.variants.get(&name).or_else(|| records.constrained(name)) {
                Some(variants) => variants.len(),
                None => usize::from(records.exists_after(self.pending, name)),
            };
            let deleting = records.deleting(self.deleting, name);
            deleting.filter(|key| key.name_digest() == name).count() == variants
        })
    }

    /// What blocks the deletion of a target after the commit: what the client may read of it, and the
    /// number of all.
    fn blockers(&self, target: &RecordKey, fields_left: &mut usize) -> Result<Blockers, Refused> {
        let (mut by, mut count) = (Vec::new(), 0_u64);
        let records = self.judging.records;
        for target in self.judging.forms().all(target) {
            let name = target.name_digest();
            let referrers = records.referrers(self.referrers, name).filter(|(_, acts)| acts.needs_target());
            // What another region says of its record counts, and not the copy.
            for (source, acts) in referrers.filter(|(source, _)| !records.is_blocked_by(name, source)) {
                count += 1;
                // ST54.
                if by.len() < REFERRERS_LISTED && self.draft.may_read(source) {
                    let reference = self.reference((source, acts), &target, fields_left)?;
                    let source_region = self.judging.elsewhere(source).unwrap_or_default().to_owned();
                    by.push(proto::Reference { source_region, ..reference });
                }
            }
        }
        let is_here = count > 0;
        for (_, block) in self.judging.blocks(target) {
            count += 1;
            // ST54.
            let source = block.source().filter(|source| self.draft.may_read(source));
            if by.len() < REFERRERS_LISTED && source.is_some() {
                by.push(block.to_proto());
            }
        }
        Ok(Blockers { by, count, is_here })
    }

    fn reference(
        &self,
        (source, acts): (&RecordKey, Acts),
        target: &RecordKey,
        fields_left: &mut usize,
    ) -> Result<proto::Reference, Refused> {
        let mut field = (String::new(), acts);
        if *fields_left > 0 {
            *fields_left -= 1;
            let stored;
            let state = match (self.states.get(source), self.judging.records.get(source)) {
                (Some((state, _)), _) => state,
                (None, Some(record)) => {
                    stored = self.judging.state(source, record)?;
                    &stored
                }
                (None, None) => return Ok(proto::Reference::default()),
            };
            let (of_type, name) = (target.type_url(), target.name());
            let fields = refs::fields(source, state, (of_type.as_str(), &name), self.judging.rules);
            field = fields.into_iter().next().unwrap_or(field);
        }
        Ok(read::reference(source, target, field))
    }
}

/// What blocks the deletion of a target.
struct Blockers {
    /// The first ones that the client may read.
    by: Vec<proto::Reference>,
    /// The number of all.
    count: u64,
    /// Whether there are others than those of other regions, which can be asked.
    is_here: bool,
}

/// What a field names.
pub(super) fn target_key(type_url: &str, name: &ResourceName) -> proto::Key {
    proto::Key { type_url: type_url.to_owned(), name: name.as_str().to_owned(), when: String::new() }
}

fn is_deleted(state: &RecordState) -> bool {
    state.lifecycle() == proto::State::Deleted
}

/// The referrers that the client may read, and the number of the others.
fn users(by: &[proto::Reference], count: u64) -> String {
    let named = by.iter().filter_map(|reference| {
        let key = RecordKey::parse(reference.source.as_ref()?).ok()?;
        let field = Some(&reference.field).filter(|field| !field.is_empty());
        let region = Some(&reference.source_region).filter(|region| !region.is_empty());
        let field = field.map(|field| format!(" ({field})")).unwrap_or_default();
        let region = region.map(|region| format!(" of region {region}")).unwrap_or_default();
        Some(format!("{key:?}{field}{region}"))
    });
    let named: Vec<_> = named.collect();
    let others = count.saturating_sub(named.len() as u64);
    match (named.is_empty(), others) {
        (false, 0) => named.join(", "),
        (false, others) => format!("{} and {others} more", named.join(", ")),
        (true, 1) => "1 record".to_owned(),
        (true, others) => format!("{others} records"),
    }
}

/// The referrers that a refusal lists for each target.
const REFERRERS_LISTED: usize = 20;
/// Warnings of one commit that name their reference.
const WARNINGS: usize = 20;
/// The fields that one refusal reads from payloads, each of which costs a pass over the payload.
const FIELDS_READ: usize = 100;
