//! How many records of each plan there are in each form. The numbers are kept, so they cost the same however many
//! records there are.

use std::collections::BTreeMap;

use super::{Index, Loading};
use crate::key::RecordKey;
use crate::phase::Form;
use crate::record::Present;

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

/// Those of all plans, by their numbers.
pub(super) type PlanCounts = BTreeMap<u32, FormCounts>;

impl FormCounts {
    /// Of one resource, by its records that exist.
    fn of(old: Option<&Present>, new: Option<&Present>) -> Self {
        let is_outdated = |(old, new): (&Present, &Present)| new.stamp.is_some() && !new.mirrors(old);
        let is_split = old.zip(new).is_some_and(is_outdated);
        let is_behind = is_split || (old.is_some() && new.is_none());
        let [old, new, behind, split] = [old.is_some(), new.is_some(), is_behind, is_split].map(u64::from);
        Self { old, new, behind, split }
    }

    fn add(&mut self, other: Self) {
        self.old += other.old;
        self.new += other.new;
        self.behind += other.behind;
        self.split += other.split;
    }

    fn subtract(&mut self, other: Self) {
        self.old -= other.old;
        self.new -= other.new;
        self.behind -= other.behind;
        self.split -= other.split;
    }
}

impl Index {
    /// How many records of the plan with this number there are. One whose time has come counts until its end
    /// is committed.
    pub(crate) fn form_counts(&self, plan: u32) -> FormCounts {
        self.form_counts.get(&plan).copied().unwrap_or_default()
    }

    /// A record changes, and that of its other form does not.
    pub(super) fn count_forms(&mut self, key: &RecordKey, before: Option<&Present>, after: &Present) {
        let Some((plan, form)) = self.schemas.form(key) else { return };
        let (number, other) = (plan.number(), plan.other_key(key, form).ok());
        let live = |record: &&Present| !record.is_deleted();
        let other = other.and_then(|other| self.get(&other)).filter(live);
        let of = |own: Option<&Present>| match form {
            Form::Old => FormCounts::of(own, other),
            Form::New => FormCounts::of(other, own),
        };
        let (before, after) = (of(before.filter(live)), of(Some(after).filter(live)));
        let counts = self.form_counts.entry(number).or_default();
        counts.add(after);
        counts.subtract(before);
    }

    /// Notes a record that is loaded. Its other form may come later.
    pub(super) fn load_form(&self, key: &RecordKey, record: &Present, loading: &mut Loading) {
        if !record.is_deleted() && self.schemas.form(key).is_some() {
            loading.forms.push(key.clone());
        }
    }

    /// Counts what was loaded.
    pub(super) fn count_loaded(&mut self, forms: &[RecordKey]) {
        for key in forms {
            let Some((plan, form)) = self.schemas.form(key) else { continue };
            let number = plan.number();
            let other = plan.other_key(key, form).ok();
            let live = |record: &&Present| !record.is_deleted();
            let own = self.get(key);
            let other = other.and_then(|other| self.get(&other)).filter(live);
            // Both records of a resource come: the old one counts what is of both.
            let counts = match form {
                Form::Old => FormCounts { new: 0, ..FormCounts::of(own, other) },
                Form::New => FormCounts { new: 1, ..FormCounts::default() },
            };
            self.form_counts.entry(number).or_default().add(counts);
        }
    }
}
