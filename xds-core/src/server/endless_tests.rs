//! A client that makes up names, parameters and errors without end: its stream keeps nothing of those of the past.

use std::time::Duration;

use super::fixture::{Delta, commit, type_url};
use super::{DeltaRequest, Serving, StreamConfig, StreamError, TypeConfig};
use crate::subscription::{Locator, Requested};
use crate::{Cache, Parameters, ResourceName};

/// What the client does after each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    Acks,
    /// It reads, and never answers.
    Reads,
    ReadsNothing,
}

/// What the client makes up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MadeUp {
    Names,
    Parameters,
}

/// How long the debug text of the stream is after so many rounds, each with ten new names that replace the ten before.
fn state_after(
    rounds: usize,
    (type_name, first, made_up): (&str, &str, MadeUp),
    reader: Reader,
) -> Result<usize, StreamError> {
    let cache = Cache::new();
    commit(&cache, "CDS a=1; X a=1");
    let unserved = type_url("Unserved");
    let config = TypeConfig { serving: Serving::NotServed, ..TypeConfig::of(unserved.as_str()) };
    let config =
        StreamConfig { types: [(unserved, config)].into(), names_limit: 1_000, ..StreamConfig::default() };
    let mut client = Delta::with(&cache, config);
    client.ask(type_name, first);
    client.sent();
    let list = |round: usize| {
        let numbers = 10 * round..10 * (round + 1);
        match made_up {
            MadeUp::Names => {
                let names = numbers.map(|number| format!("n{number:05}").as_str().into());
                names.collect::<Vec<ResourceName>>().into()
            }
            MadeUp::Parameters => {
                let locators = numbers.map(|number| Locator {
                    name: "a".into(),
                    parameters: Parameters::from_iter([("pod", format!("{number:05}"))]),
                });
                Requested { locators: locators.collect(), ..Requested::default() }
            }
        }
    };
    for round in 0..rounds {
        client.pass(Duration::from_millis(10));
        let request = DeltaRequest {
            type_url: type_url(type_name).as_str().into(),
            subscribe: list(round),
            unsubscribe: round.checked_sub(1).map(list).unwrap_or_default(),
            ..DeltaRequest::default()
        };
        client.stream.on_request(client.now, request)?;
        if reader == Reader::ReadsNothing {
            continue;
        }
        client.sent();
        if reader == Reader::Acks && !client.last.nonce.is_empty() {
            let nonce = client.last.nonce.clone();
            client.ack(type_name, &nonce);
        }
    }
    Ok(format!("{:?}", client.stream).len())
}

#[test]
fn g9_what_a_client_makes_up_without_end_is_not_kept() {
    let cases = [
        ("X", "a", MadeUp::Names),
        ("CDS", "a", MadeUp::Names),
        ("X", "*", MadeUp::Names),
        ("CDS", "*", MadeUp::Names),
        ("X", "a", MadeUp::Parameters),
        ("Unserved", "a", MadeUp::Names),
    ];
    for case in cases {
        for reader in [Reader::Acks, Reader::Reads, Reader::ReadsNothing] {
            let [few, many] = [80, 300].map(|rounds| state_after(rounds, case, reader));
            // The answers that wait are about names of the past.
            if reader == Reader::ReadsNothing && (case.1 == "*" || case.0 == "Unserved") {
                assert!(few.is_ok() && matches!(many, Err(StreamError::TooManyNames { .. })), "{case:?}");
                continue;
            }
            let (few, many) = (few.unwrap(), many.unwrap());
            assert!(many < few + 1_000, "{case:?} {reader:?}: {few} and {many}");
        }
    }
}
