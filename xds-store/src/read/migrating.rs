//! How many records of a plan there are in each form.

use std::ops::ControlFlow;

use super::forms::stamp_of;
use super::{ReadError, Reads};
use crate::key::{RecordKey, stored};
use crate::phase::{Form, Plan, Stamp};
use crate::record::RecordState;

/// The records of a plan.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct FormCounts {
    /// Records of the old form.
    pub old: u64,
    /// Records of the new form.
    pub new: u64,
    /// Old records whose new one is missing, or is that of an earlier state.
    pub behind: u64,
    /// Those of them that have a new one: they are split (SV20).
    pub split: u64,
}

impl Reads<'_> {
    /// Counts the records of a plan that exist at `now`. This reads all records of its types.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn form_counts(&self, plan: &Plan, now: i64) -> Result<FormCounts, ReadError> {
        let mut counts = FormCounts::default();
        let types = [Form::Old, Form::New].map(|form| plan.type_url(form));
        let is_one = types[0] == types[1];
        for type_url in types.into_iter().take(if is_one { 1 } else { 2 }) {
            let (from, to) = stored::of_type(type_url);
            let mut failed = None;
            self.newest_of_each((&from, &to), self.head.revision, &mut |version| {
                let (key, form) = (&version.key, plan.form_of(&version.key));
                match form.filter(|_| version.exists(now)) {
                    Some(Form::New) => counts.new += 1,
                    Some(Form::Old) => {
                        counts.old += 1;
                        match self.stamp_of_new(plan, key, &version.state, now) {
                            // SV17: without a stamp, the new one is newer than the old one.
                            Ok(Some(Stamp::Current | Stamp::Missing)) => {}
                            Ok(None) => counts.behind += 1,
                            Ok(Some(Stamp::Outdated)) => {
                                counts.behind += 1;
                                counts.split += 1;
                            }
                            Err(error) => {
                                failed = Some(error);
                                return ControlFlow::Break(());
                            }
                        }
                    }
                    None => {}
                }
                ControlFlow::Continue(())
            })?;
            failed.map_or(Ok(()), Err)?;
        }
        Ok(counts)
    }

    /// The stamp of the new form of an old record; `None` if there is none.
    fn stamp_of_new(
        &self,
        plan: &Plan,
        key: &RecordKey,
        old: &RecordState,
        now: i64,
    ) -> Result<Option<Stamp>, ReadError> {
        let Ok(new) = plan.other_key(key, Form::Old) else { return Ok(None) };
        let new = self.get(&new, now)?;
        Ok(new.map(|new| stamp_of(Some(old), &new.state)))
    }
}
