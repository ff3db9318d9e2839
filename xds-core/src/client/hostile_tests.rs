//! No response stops a client, and the cost of a response is linear in its length.

use quickcheck::{Gen, QuickCheck};

use prost::Message;
use xds_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};

use super::fixture::{Fixture, response, url};
use super::*;

/// Pieces of responses. Some contradict each other.
const PIECES: [&str; 18] = [
    "a=1",
    "a=2",
    "a[env=prod]=3",
    "a[version=v1]=4",
    "a[env=prod,!env]=5",
    "a[]=6",
    "b=1/a",
    "b=2/c",
    "c=1/c",
    "d=1/c",
    "d/c",
    "a@5",
    "a=1@5",
    "-a",
    "-a[env=prod]",
    "-b",
    "a!5",
    "a[env=prod]!14",
];

#[test]
fn c4_no_combination_or_damage_makes_a_client_panic() {
    fn holds(is_sotw: bool, responses: Vec<Vec<u8>>, damage: Vec<(usize, u8)>) -> bool {
        let protocol = if is_sotw { Protocol::Sotw } else { Protocol::Delta };
        let mut f = Fixture::new(protocol);
        for name in ["a", "a{env=prod,version=v1}", "c", "*{env=prod}"] {
            f.watch("CDS", name);
        }
        f.sent(0);
        let mut damage = damage.into_iter();
        for pieces in responses {
            let pieces = pieces.iter().map(|piece| PIECES[usize::from(*piece) % PIECES.len()]);
            let text = format!("CDS v1 n1: {}", pieces.collect::<Vec<_>>().join(" "));
            let mut frame = response(&text, protocol).to_vec();
            if let Some((at, byte)) = damage.next() {
                let at = at % frame.len();
                frame[at] = byte;
            }
            let applied = f.client.on_response(f.now, 0, &frame.into());
            if let Ok(Effects { response: Some(applied), .. }) = applied {
                let answer = f.client.next_request(f.now, 0).expect("C1: each is answered");
                let has_error = match protocol {
                    Protocol::Sotw => {
                        DiscoveryRequest::decode(answer).map(|sent| sent.error_detail.is_some())
                    }
                    Protocol::Delta => {
                        DeltaDiscoveryRequest::decode(answer).map(|sent| sent.error_detail.is_some())
                    }
                };
                assert_eq!(has_error, Ok(!applied.rejections.is_empty()), "only a rejection needs words");
            }
            f.pass(3);
        }
        let stored: usize = f.client.store.types[0].names.values().map(|named| named.variants.len()).sum();
        let snapshot = f.client.cache().snapshot();
        let cached = snapshot.of_type(&url("CDS")).into_iter().flat_map(|all| all.iter());
        stored == cached.map(|(_, variants)| variants.len()).sum::<usize>()
    }
    QuickCheck::new().rng(Gen::new(12)).tests(500).quickcheck(holds as fn(_, _, _) -> _);
}

#[test]
fn d24_two_resources_with_one_alias_cannot_both_be_used() {
    let mut f = Fixture::new(Protocol::Delta);
    let all = f.watch("VHDS", "*");
    f.watch("VHDS", "alias");
    f.sent(0);
    f.get("VHDS v1 n1: one=1/alias two=2/alias three=3");
    let members: Vec<_> = f.client.members(all).expect("it is a set").collect();
    assert_eq!(members.len(), 2, "{members:?}");
    assert!(f.sent(0).contains("is taken by"));
}

/// Regression: when the variants of many names changed at once, each name was compared with all
/// others, and each removal with each resource.
#[test]
fn t31_t34_many_switches_in_one_response_are_taken_in_one_go() {
    for removes in [false, true] {
        let mut f = Fixture::new(Protocol::Delta);
        let all = f.watch("EDS", "*{env=prod,version=v1}");
        f.sent(0);
        let names = |what: &dyn Fn(usize) -> String| (0..3000).map(what).collect::<Vec<_>>().join(" ");
        f.get(&format!("EDS v1 n1: {}", names(&|at| format!("r{at}[env=prod]=A"))));
        let removed = |at: usize| if removes { format!(" -r{at}[env=prod]") } else { String::new() };
        let switch = names(&|at| format!("r{at}[env=prod,version=v1]=B{}", removed(at)));
        let frame = response(&format!("EDS v2 n2: {switch}"), Protocol::Delta);
        let effects = f.client.on_response(f.now, 0, &frame).expect("a response");
        assert_eq!((effects.accepted.len(), effects.removed.len()), (3000, 3000));
        assert_eq!(f.client.members(all).expect("it is a set").count(), 3000);
    }
}
