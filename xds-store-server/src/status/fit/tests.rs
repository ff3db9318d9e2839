use tonic::Code;

use super::*;
use crate::status::with_violations;

fn key(name: &str) -> proto::Key {
    let type_url = "type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned();
    proto::Key { type_url, name: name.to_owned(), when: name.to_owned() }
}

/// A violation of each kind, with texts of this many bytes.
fn violations(of: &str) -> Vec<proto::Violation> {
    let reference = || proto::Reference {
        source: Some(key(of)),
        target: Some(key(of)),
        field: of.into(),
        ..Default::default()
    };
    let whys = [
        Why::Invalid(proto::Invalid { field: of.into() }),
        Why::Condition(proto::ConditionFailed { revision: "3.1".into(), uid: "u".into() }),
        Why::Region(proto::RegionOwned { other_regions: vec![of.into(); 50], ..Default::default() }),
        Why::Owned(proto::OwnedByOthers { owners: vec![of.into(); 50] }),
        Why::Ambiguous(proto::AmbiguousVariants {
            other: Some(key(of)),
            witness: (0..50).map(|at| (format!("{at}{of}"), of.into())).collect(),
            kind: "overlap".into(),
        }),
        Why::Referred(proto::Referred {
            by: (0..20).map(|_| reference()).collect(),
            count: 20,
            silent_regions: vec![of.into(); 50],
        }),
        Why::MissingTarget(proto::MissingTarget {
            target: Some(key(of)),
            field: of.into(),
            ..Default::default()
        }),
    ];
    let violation = |(at, why): (usize, Why)| proto::Violation {
        change: u32::try_from(at).unwrap(),
        key: Some(key(of)),
        message: of.into(),
        why: Some(why),
    };
    whys.into_iter().enumerate().map(violation).collect()
}

/// What a refusal of any size takes in the trailers of a response.
#[test]
fn st54b_a_refusal_has_less_than_4_kib_and_its_first_violation() {
    for text in ["a".repeat(4000), "é".repeat(2000), "%".repeat(4000), "short".to_owned()] {
        for at in 0..violations(&text).len() {
            for count in [1, 3, 100] {
                let violation = violations(&text).swap_remove(at);
                let all = vec![violation; count];
                let status = with_violations(Code::FailedPrecondition, text.clone(), all);
                assert!(fits(status.message(), status.details()), "{} bytes", status.details().len());
                let details = xds_proto::google::rpc::Status::decode(status.details()).unwrap().details;
                let refusal = proto::Refusal::decode(&*details[0].value).unwrap();
                let kept = refusal.violations.len();
                assert!(kept >= 1 && kept + refusal.others as usize == count, "{at}, {count}: {kept}");
                assert!(text.len() > 10 || count < 100 || kept >= 5, "{at}: {kept}");
                assert_eq!(refusal.violations[0].change, at as u32);
            }
        }
    }
}

#[test]
fn st54b_short_violations_are_sent_as_they_are() {
    let all = violations("n");
    let kept = refusal(all.clone(), Limits::WHOLE);
    assert_eq!(kept.violations[..2], all[..2]);
    // A longer name and all referrers, if nothing else is to be sent.
    let mut one = violations("n").swap_remove(5);
    one.key = Some(key(&"n".repeat(200)));
    assert_eq!(refusal(vec![one.clone()], Limits::WHOLE).violations, [violations_of_20(one)]);
}

/// The test has more regions than are ever shown.
fn violations_of_20(mut violation: proto::Violation) -> proto::Violation {
    if let Some(Why::Referred(of)) = &mut violation.why {
        of.silent_regions.truncate(20);
    }
    violation
}

#[test]
fn st54b_a_long_key_is_shortened_before_what_is_wrong_with_it() {
    for text in ["a".repeat(4000), "é".repeat(2000), "a".repeat(500)] {
        for limits in [Limits::WHOLE, Limits::SOME, Limits::LEAST] {
            let message = format!("Cluster {text} (when {text}) does not exist");
            let message = short_message(&message, Some(&key(&text)), limits);
            assert!(message.ends_with("does not exist"), "{limits:?}: {message}");
        }
        let name = "a".repeat(200);
        let usual = format!("Cluster {name} does not exist");
        assert_eq!(short_message(&usual, Some(&key(&name)), Limits::WHOLE), usual, "it fits");
    }
}
