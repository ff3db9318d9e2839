//! One step of the job that puts new names in place of old ones into other records (SV30), and of the job that
//! takes that back (SV27).

use prost::Message;
use xds_core::ResourceName;
use xds_proto::xds::store::v1 as proto;

use super::changed::Changed;
use super::copy::{Copied, STEP_BYTES};
use super::effect::Judging;
use super::owner;
use super::owning::uid;
use super::refused::Refused;
use crate::content;
use crate::key::RecordKey;
use crate::phase::{Form, PassPosition, Plan};
use crate::record::{RecordState, content_digest, owner_key, resource_owners};
use crate::rules::Rules;

/// The two names of a resource, and the records that have them.
struct Names<'a> {
    type_url: &'a str,
    from: ResourceName,
    to: ResourceName,
    /// The key that owners have, and its uid if it has a record.
    owner: (RecordKey, Option<String>),
    /// The key that they get, and its uid.
    new_owner: (RecordKey, String),
    rules: &'a Rules,
}

/// What becomes of a record that names a form.
enum Rewritten {
    /// Nothing: it does not count, or names the other form already.
    Stays,
    Changed(Box<RecordState>),
    /// Its payload cannot have the other name.
    Failed,
}

impl Judging<'_> {
    /// Looks at the next new records of a plan, at most `limit`, and changes at most as many records that
    /// name them: in F4 they get the new names, and before it the old ones. If there are more, the next step
    /// looks at the same record again. The step is judged on the present state, so it never overwrites a
    /// newer write.
    ///
    /// # Errors
    /// The engine cannot be read, or the changes do not go together with other records.
    pub(crate) fn rewrite(&self, plan: &Plan, from: &PassPosition, limit: usize) -> Result<Copied, Refused> {
        let is_back = !self.records.index.phases().phase(plan).ignores_old();
        let (keys, mut next) = self.keys(plan, from, limit)?;
        let (mut changed, mut looked_at, mut failed) = (Changed::default(), 0, Vec::new());
        let (mut count, mut bytes, mut last) = (0, 0, from.after.clone());
        for key in keys {
            let old = plan.other_key(&key, Form::New).ok();
            let keys = old.map(|old| if is_back { (key.clone(), old) } else { (old, key.clone()) });
            let keys = keys.and_then(|(named, to)| Some((named, self.forms().live(&to)?, to)));
            if let Some((named, record, to)) = keys {
                let named_uid = self.records.get(&named).map(|record| uid(&named, record));
                let names = Names {
                    type_url: plan.type_url(Form::New),
                    from: named.name(),
                    to: to.name(),
                    owner: (named.clone(), named_uid),
                    new_owner: (to.clone(), uid(&to, record)),
                    rules: self.rules,
                };
                let (mut is_done, mut failed_here) = (true, Vec::new());
                let index = self.records.index;
                let referrers = index.referrers.of(named.name_digest()).map(|(referrer, _)| referrer);
                for referrer in referrers.chain(index.owned_by(&named)) {
                    if count >= limit || bytes > STEP_BYTES {
                        is_done = false;
                        break;
                    }
                    match self.rewritten(referrer, &names, &changed)? {
                        Rewritten::Stays => {}
                        Rewritten::Failed => {
                            let why = format!("it keeps the name {}, which cannot be replaced", names.from);
                            failed_here.push((referrer.clone(), why));
                        }
                        Rewritten::Changed(state) => {
                            count += 1;
                            bytes += state.encoded_len();
                            let result = changed.set(self, referrer, *state, proto::Outcome::Updated);
                            // SV16: the new form keeps its content, and gets another stamp.
                            if let Some(mirror) = self.mirror_of(referrer) {
                                self.mirror(referrer, &mirror, result, &mut changed, &mut Vec::new())?;
                            }
                        }
                    }
                }
                if !is_done {
                    next = Some(PassPosition { after: last, ..from.clone() });
                    break;
                }
                failed.extend(failed_here);
            }
            looked_at += 1;
            last = Some(key);
        }
        if changed.is_empty() {
            return Ok(Copied { judged: None, next, looked_at, failed });
        }
        self.follow_references(None, &mut changed)?;
        let judged = Some(self.finish(changed, Vec::new(), Vec::new(), None)?);
        Ok(Copied { judged, next, looked_at, failed })
    }

    fn rewritten(&self, key: &RecordKey, names: &Names<'_>, changed: &Changed) -> Result<Rewritten, Refused> {
        let forms = self.forms();
        let Some(record) = forms.live(key) else { return Ok(Rewritten::Stays) };
        // The other form follows the leading one. What is being deleted accepts no changes (SG9).
        let follows = forms.side(key).is_some_and(|side| side.form != forms.leading(key, &side));
        if follows || record.is_deleting() {
            return Ok(Rewritten::Stays);
        }
        // SV34.
        if record.schema.major() > self.schemas.server_version(key).major() {
            return Ok(Rewritten::Failed);
        }
        let before = match changed.state(key) {
            Some(state) => state.clone(),
            None => self.state(key, record)?,
        };
        let mut state = before.clone();
        let served = state.quarantined.as_mut().and_then(|quarantined| quarantined.serve.as_mut());
        for content in state.content.iter_mut().chain(served) {
            if names.put(key, content).is_err() {
                return Ok(Rewritten::Failed);
            }
        }
        let is_content = state != before;
        // SG20.
        names.put_owner(&mut state);
        if state == before {
            return Ok(Rewritten::Stays);
        }
        if !is_content {
            return Ok(Rewritten::Changed(Box::new(state)));
        }
        (state.incarnation, state.generation) = self.next_generation(Some(record), Some(record));
        state.origin.clone_from(&self.head.node);
        // As in a put: the old form has not followed this content yet.
        state.mirror_of.clear();
        state.digest = content_digest(&state);
        Ok(Rewritten::Changed(Box::new(state)))
    }
}

impl Names<'_> {
    /// Puts the other name into the fields that have this one.
    ///
    /// # Errors
    /// The payload is no resource, or keeps the name.
    fn put(&self, key: &RecordKey, content: &mut proto::Content) -> Result<(), ()> {
        let id = key.id();
        let resource = content::resource(&id, content).map_err(|_| ())?;
        let payload = self.rules.renamed(&resource, self.type_url, (&self.from, &self.to));
        let Some(payload) = payload else {
            let is_left = !self.rules.fields(&resource, self.type_url, &self.from).is_empty();
            return if is_left { Err(()) } else { Ok(()) };
        };
        content.payload = payload;
        content::resource(&id, content).map(drop).map_err(|_| ())
    }

    /// Makes the record of the other name an owner in place of the one that has this name. A record with
    /// another uid than both is another owner (SG19).
    fn put_owner(&self, state: &mut RecordState) {
        let (key, key_uid) = &self.owner;
        let (new_key, new_uid) = &self.new_owner;
        let is_it = |owner: &proto::ResourceOwner| {
            let is_uid = owner.uid == *new_uid || key_uid.as_ref().is_none_or(|uid| owner.uid == *uid);
            is_uid && owner_key(owner).as_ref() == Some(key)
        };
        let mut owners: Vec<proto::ResourceOwner> = Vec::new();
        for owner in resource_owners(state) {
            let mut owner = owner.clone();
            if is_it(&owner) {
                (owner.key, owner.uid) = (Some(new_key.to_proto()), new_uid.clone());
            }
            if !owners.contains(&owner) {
                owners.push(owner);
            }
        }
        owner::set_resources(state, &owners);
    }
}
