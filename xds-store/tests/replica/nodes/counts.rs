//! What runs did, so that a simulator in which something never happens is seen.

/// What a run did.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) events: u64,
    /// The events of the longest run.
    pub(crate) most: u64,
    pub(crate) calls: u64,
    pub(crate) committed: u64,
    pub(crate) refused: u64,
    pub(crate) entries: u64,
    pub(crate) crashes: u64,
    pub(crate) compactions: u64,
    /// Answers to peeks of comparisons.
    pub(crate) peeks: u64,
    /// How often a variant was withheld, or served again.
    pub(crate) shown: u64,
    /// Commits whose peers were not there in time, and those whose were.
    pub(crate) acks: [u64; 2],
    /// Snapshots that were merged, and those that replaced the records.
    pub(crate) snapshots: [u64; 2],
    pub(crate) losses: u64,
    pub(crate) restores: u64,
    /// Folders that were copied and ran twice, or were set back, and ids that were taken for that.
    pub(crate) twins: u64,
    pub(crate) taken_ids: u64,
    /// Replicas that became the writer of their region: with all that the one before had, and the others.
    pub(crate) promotions: [u64; 2],
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.calls += other.calls;
        self.committed += other.committed;
        self.refused += other.refused;
        self.entries += other.entries;
        self.crashes += other.crashes;
        self.compactions += other.compactions;
        self.peeks += other.peeks;
        self.shown += other.shown;
        self.acks = [self.acks[0] + other.acks[0], self.acks[1] + other.acks[1]];
        self.snapshots = [self.snapshots[0] + other.snapshots[0], self.snapshots[1] + other.snapshots[1]];
        (self.losses, self.restores) = (self.losses + other.losses, self.restores + other.restores);
        (self.twins, self.taken_ids) = (self.twins + other.twins, self.taken_ids + other.taken_ids);
        let [whole, others] = other.promotions;
        self.promotions = [self.promotions[0] + whole, self.promotions[1] + others];
        self.most = self.most.max(other.events);
    }
}
