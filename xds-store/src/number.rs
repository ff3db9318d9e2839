//! The numbers of a record that grow and that nodes exchange: incarnation, generation, renewals, epochs (SR62). A
//! peer may send any of them. One that wrapped to 0 would lose every merge from then on, and nodes that refuse it
//! would stop at the entry that has it (SR15).

use std::fmt;

use xds_proto::xds::store::v1 as proto;

use crate::record::RecordState;

/// The largest number of a record. No node gets there by itself: a thousand million changes each second for 292 years.
pub(crate) const LAST: u64 = i64::MAX as u64;

/// The largest incarnation that new records follow: above it there is room for each record that a node will ever make.
pub(crate) const LAST_FLOOR: u64 = LAST / 2;

/// The number after this one; the last one again after the last.
pub(crate) fn after(number: u64) -> u64 {
    number.saturating_add(1).min(LAST)
}

/// The first number of a state, by its name in the message, that is above the last one.
pub(crate) fn out_of_range(state: &RecordState) -> Option<&'static str> {
    all(state).find(|(_, number)| *number > LAST).map(|(name, _)| name)
}

/// The first number of a page of a snapshot that is above what nodes reach, besides those of its records.
pub(crate) fn out_of_range_in_page(page: &proto::SnapshotResponse) -> Option<&'static str> {
    let (floors, rollout) = (page.deletion_floors.as_ref(), page.rollout.as_ref());
    let clock = page.clock.values().map(|position| ("clock", position.counter));
    let counters = page.counters.values().map(|counter| ("counters", *counter));
    let floors = floors.into_iter().flat_map(|of| of.counters.values());
    let others = floors.map(|counter| ("deletion_floors", *counter));
    let rollout = rollout.map(|of| ("rollout.counter", of.counter));
    let mut all = clock.chain(counters).chain(others).chain(rollout);
    let is_floor_too_large = page.incarnation_floor > LAST_FLOOR;
    is_floor_too_large
        .then_some("incarnation_floor")
        .or_else(|| all.find(|(_, number)| *number > LAST).map(|(name, _)| name))
}

/// The first number of a state that a peer made so large that no change can follow.
pub(crate) fn used_up(state: &RecordState) -> Option<UsedUp> {
    all(state).find(|(_, number)| *number >= LAST).map(|(name, number)| UsedUp { name, number })
}

/// A number that nothing can follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UsedUp {
    name: &'static str,
    number: u64,
}

impl UsedUp {
    /// Whether a deletion and a new record end this. A deletion needs no later number, but other nodes must take the
    /// one that it has.
    fn ends_with_record(self) -> bool {
        self.name != INCARNATION && self.number == LAST
    }
}

/// For people: what it is, and the cure.
impl fmt::Display for UsedUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its {} is {LAST} or more, as another node wrote it, and nothing can follow: ", self.name)?;
        f.write_str(match (self.ends_with_record(), self.number) {
            (true, _) => "delete the record and create it again",
            (false, LAST) => "delete the record and use another name, or restore a backup",
            (false, _) => "restore a backup, or join this node again to one without it",
        })
    }
}

fn all(state: &RecordState) -> impl Iterator<Item = (&'static str, u64)> {
    let written_by = state.written_by.as_ref();
    let owners = state.owners.iter().map(|owner| ("owners.epoch", owner.epoch));
    let of_record =
        [(INCARNATION, state.incarnation), ("generation", state.generation), ("renewal", state.renewal)];
    let of_writer = written_by.map(|by| [("written_by.epoch", by.epoch), ("written_by.counter", by.counter)]);
    of_record.into_iter().chain(owners).chain(of_writer.into_iter().flatten())
}

const INCARNATION: &str = "incarnation";
