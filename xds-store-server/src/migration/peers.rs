//! What the peers of a store allow (SV15): nodes that replicate are at most one phase apart, and all of them know a
//! form before it is written.

use tonic::{Code, Status};
use xds_proto::xds::store::v1 as proto;
use xds_proto::xds::store::v1::violation::Why;
use xds_store::phase::{Phase, PhaseStep, Plan};
use xds_store::schema::SchemaVersion;

use crate::status::with_violations;

/// The gates of a step that peers keep closed. Those that are down, and that `without` does not name, do.
pub(super) fn gates(
    (needs, step): (&proto::Knows, PhaseStep),
    peers: &[proto::PeerStatus],
    without: &[String],
) -> Vec<proto::ClosedGate> {
    let closed = |peer: &proto::PeerStatus| {
        let is_forward = step.from.number() < step.to.number();
        let gate = match peer.phases.get(&step.plan) {
            None if !peer.is_up && without.iter().any(|name| names(peer, name)) => return None,
            None if !peer.is_up => "peer_silent",
            // SG38: no store switches to a version that a peer does not know. One that lacks the plan stays in F0.
            None | Some(_) if is_forward && !knows(peer, needs) => "peer_lacks_version",
            None if !knows(peer, needs) => return None,
            // SV41: it joins, and has the phase of its snapshot then.
            None => "peer_phase",
            // SV42: a step towards a peer brings the two together.
            Some(phase) if leads_away(step, *phase) => "peer_phase",
            Some(_) => return None,
        };
        let node = if peer.node.is_empty() { &peer.address } else { &peer.node };
        Some(proto::ClosedGate { gate: gate.to_owned(), node: node.clone(), count: 1 })
    };
    peers.iter().filter_map(closed).collect()
}

/// Whether a step ends more than one phase from that of a peer, and not nearer to it.
fn leads_away(step: PhaseStep, of_peer: u32) -> bool {
    let away = |phase: Phase| of_peer.abs_diff(phase.number());
    away(step.to) > 1 && away(step.to) > away(step.from)
}

/// Whether a peer knows the new form of a plan.
pub(crate) fn knows(peer: &proto::PeerStatus, needs: &proto::Knows) -> bool {
    let version = |knows: &proto::Knows| knows.version.parse::<SchemaVersion>().ok();
    let of_type = peer.schemas.iter().filter(|knows| knows.type_url == needs.type_url);
    of_type.filter_map(version).max() >= version(needs)
}

/// Whether a peer of this name is down.
pub(super) fn is_down(peers: &[proto::PeerStatus], name: &str) -> bool {
    peers.iter().any(|peer| !peer.is_up && names(peer, name))
}

fn names(peer: &proto::PeerStatus, name: &str) -> bool {
    [&peer.node, &peer.address].iter().any(|of| *of == name)
}

/// The refusal of a step with these gates.
pub(super) fn refused(plan: &Plan, gates: Vec<proto::ClosedGate>) -> Status {
    let violation = |gate: proto::ClosedGate| {
        let (node, name) = (&gate.node, plan.name());
        let message = match &*gate.gate {
            "peer_silent" => format!("the peer {node} is down: start it, or leave it out (--without {node})"),
            "peer_phase" => {
                format!(
                    "the peer {node} would be two phases away in the plan {name}, or joins and has none yet: move it \
                     first, or wait"
                )
            }
            _ => format!("the peer {node} does not know the new form of the plan {name}"),
        };
        proto::Violation { change: 0, key: None, message, why: Some(Why::Gate(gate)) }
    };
    let violations: Vec<_> = gates.into_iter().map(violation).collect();
    let message = violations.first().map(|violation| violation.message.clone()).unwrap_or_default();
    with_violations(Code::FailedPrecondition, message, violations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(node: &str, is_up: bool, phase: Option<u32>) -> proto::PeerStatus {
        let phases = phase.into_iter().map(|phase| (7, phase)).collect();
        let address = format!("http://{node}");
        let (node, schemas) = (node.to_owned(), vec![needs("2.0")]);
        proto::PeerStatus { node, address, is_up, phases, schemas, ..Default::default() }
    }

    fn needs(version: &str) -> proto::Knows {
        proto::Knows { type_url: "t".to_owned(), version: version.to_owned() }
    }

    fn of(step: (Phase, Phase), peer: proto::PeerStatus, without: &[&str]) -> Option<String> {
        let step = PhaseStep { plan: 7, from: step.0, to: step.1 };
        let without: Vec<_> = without.iter().map(ToString::to_string).collect();
        let gates = gates((&needs("2.0"), step), &[peer], &without);
        gates.into_iter().next().map(|gate| gate.gate)
    }

    #[test]
    fn sv15_a_step_waits_for_peers_that_would_be_two_phases_away_lack_the_plan_or_are_down() {
        let forward = (Phase::F1, Phase::F2);
        for (phase, expected) in [(0, Some("peer_phase")), (1, None), (2, None), (3, None)] {
            let found = of(forward, peer("b", true, Some(phase)), &[]);
            assert_eq!(found.as_deref(), expected, "{phase}");
        }
        let lacking = || proto::PeerStatus { schemas: Vec::new(), ..peer("b", true, None) };
        assert_eq!(of(forward, lacking(), &[]).as_deref(), Some("peer_lacks_version"));
        // Back, nothing needs the new form.
        assert_eq!(of((Phase::F1, Phase::F0), lacking(), &[]), None);
        assert_eq!(of(forward, peer("b", false, None), &["c"]).as_deref(), Some("peer_silent"));
        assert_eq!(of(forward, peer("b", false, None), &["b"]), None);
        assert_eq!(of(forward, peer("b", false, None), &["http://b"]), None);
        // One that answers cannot be left out.
        assert_eq!(of(forward, peer("b", true, Some(0)), &["b"]).as_deref(), Some("peer_phase"));
        assert!(!is_down(&[peer("b", true, None)], "b") && is_down(&[peer("b", false, None)], "b"));
    }

    #[test]
    fn sv42_a_step_towards_a_peer_is_always_possible_and_none_while_a_peer_joins() {
        let step = |from, to, of_peer| {
            let step = (Phase::of_number(from).unwrap(), Phase::of_number(to).unwrap());
            of(step, peer("b", true, Some(of_peer)), &[])
        };
        assert_eq!([step(0, 1, 4), step(4, 3, 0), step(5, 4, 1), step(1, 2, 5)], [const { None }; 4]);
        let gate = || Some("peer_phase".to_owned());
        assert_eq!([step(4, 5, 0), step(1, 0, 4), step(3, 4, 2)], [gate(), gate(), gate()]);
        // SV41
        for step in [(Phase::F3, Phase::F4), (Phase::F4, Phase::F3)] {
            assert_eq!(of(step, peer("b", true, None), &[]), gate(), "{step:?}");
        }
    }

    #[test]
    fn sg38_sv15_a_step_forward_waits_for_peers_that_do_not_know_the_version() {
        let knowing = |versions: &[&str]| {
            let schemas = versions.iter().map(|version| needs(version)).collect();
            proto::PeerStatus { schemas, ..peer("b", true, Some(1)) }
        };
        let forward = |versions: &[&str]| of((Phase::F1, Phase::F2), knowing(versions), &[]);
        for versions in [&[][..], &["1.0"], &["1.9"]] {
            assert_eq!(forward(versions).as_deref(), Some("peer_lacks_version"), "{versions:?}");
            assert_eq!(of((Phase::F1, Phase::F0), knowing(versions), &[]), None, "{versions:?}");
        }
        for versions in [&["2.0"][..], &["1.0", "2.1"], &["10.0"]] {
            assert_eq!(forward(versions), None, "{versions:?}");
        }
        let other = proto::Knows { type_url: "other".to_owned(), ..needs("2.0") };
        let peer = proto::PeerStatus { schemas: vec![other], ..peer("b", true, Some(1)) };
        assert_eq!(of((Phase::F1, Phase::F2), peer, &[]).as_deref(), Some("peer_lacks_version"));
    }
}
