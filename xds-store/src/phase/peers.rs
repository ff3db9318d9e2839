//! How far the plans of other nodes are (SV15, SV42).

use std::collections::BTreeMap;
use std::fmt;

use super::{Phase, Plan};

/// The phases that peers said last.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct PeerPhases(BTreeMap<String, PeerPhase>);

/// What one peer said.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct PeerPhase {
    is_up: bool,
    /// By the numbers of the plans. `None`: it has said nothing since the start. Nothing: it joins.
    phases: Option<BTreeMap<u32, u32>>,
}

/// A plan that is more than one phase further at this node than at a peer, or less far (SV42).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PhaseGap {
    /// The number of the plan.
    pub plan: u32,
    /// Its name.
    pub name: String,
    /// Its phase here.
    pub phase: Phase,
    /// The peer: the id of its node, or its address.
    pub peer: String,
    /// The phase there.
    pub peer_phase: u32,
}

impl PeerPhases {
    /// A peer, by the id of its node or its address, says this, or said it before it was down.
    pub fn insert(&mut self, peer: &str, is_up: bool, phases: Option<BTreeMap<u32, u32>>) {
        self.0.insert(peer.to_owned(), PeerPhase { is_up, phases });
    }

    /// The peer that answers whose phase of a plan is farthest from this one, if that is more than one away.
    pub(crate) fn gap(&self, plan: &Plan, phase: Phase) -> Option<PhaseGap> {
        let up = self.far(plan, phase).filter(|(peer, _)| self.0.get(*peer).is_some_and(|peer| peer.is_up));
        let (peer, peer_phase) = up.max_by_key(|(_, of_peer)| of_peer.abs_diff(phase.number()))?;
        let (number, name) = (plan.number(), plan.name().to_owned());
        Some(PhaseGap { plan: number, name, phase, peer: peer.to_owned(), peer_phase })
    }

    /// Whether a peer, also one that is down, may read what the last phase of a plan removes.
    pub(crate) fn has_far(&self, plan: &Plan, phase: Phase) -> bool {
        self.far(plan, phase).next().is_some()
    }

    fn far(&self, plan: &Plan, phase: Phase) -> impl Iterator<Item = (&str, u32)> {
        self.of(plan).filter(move |(_, of_peer)| of_peer.abs_diff(phase.number()) > 1)
    }

    /// Whether a peer has begun a plan.
    pub(crate) fn has_begun(&self, plan: &Plan) -> bool {
        self.of(plan).any(|(_, phase)| phase > 0)
    }

    /// Whether there are peers, and none of them has said anything.
    pub(crate) fn is_silent(&self) -> bool {
        !self.0.is_empty() && self.0.values().all(|peer| peer.phases.is_none())
    }

    /// What peers say of a plan.
    fn of(&self, plan: &Plan) -> impl Iterator<Item = (&str, u32)> {
        let number = plan.number();
        self.0.iter().filter_map(move |(peer, said)| Some((&**peer, *said.phases.as_ref()?.get(&number)?)))
    }
}

/// For people: what it is, and the cure.
impl fmt::Display for PhaseGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plan, name, phase, peer, peer_phase } = self;
        write!(
            f,
            "the plan {plan} ({name}) is in the phase {phase:?} here and in F{peer_phase} at {peer}: neither sees all \
             that the other one writes, so move one of them towards the other (`xds store migrate next` or `back`)"
        )
    }
}
