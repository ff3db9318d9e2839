//! Snapshots of a peer that never end (SR20).

use std::sync::Arc;

use prost::Message as _;
use xds_store::engine::{EngineError, Reader, View};
use xds_store::store::Action;

use super::*;

/// A node that takes at most so many bytes, with a record of its own.
fn taker(limit: u64) -> Server {
    let mut taker = Server::with(Server::node("taker").engine, SECOND, |config| {
        config.is_replicated = true;
        config.snapshot_bytes = limit;
    });
    commit(&mut taker, [put("own", "1")]);
    taker.step(Event::BeginResync { must_replace: true, new_id: "another".into() });
    taker
}

/// What the node says of a page.
fn told(taker: &mut Server, page: &proto::SnapshotResponse) -> Result<Staged, String> {
    taker.step(Event::Stage(Ticket(0), page.clone()));
    taker.staged.pop().expect("it is answered").map_err(|refused| refused.message)
}

/// Regression: an endless one took 8 GB of disk and memory, and commits waited for it.
#[test]
fn sr20_a_snapshot_without_an_end_is_refused_and_leaves_the_records() {
    let mut giver = node("giver");
    commit(&mut giver, (0..9).map(|number| put(&format!("n{number}"), &"1".repeat(100))));
    let pages = giver.snapshot(300);
    assert!(pages.len() > 2);
    let bytes = |pages: &[proto::SnapshotResponse]| {
        let records = pages.iter().flat_map(|page| &page.records);
        records.map(|state| state.encoded_len() as u64).sum::<u64>()
    };
    let more = |page: &proto::SnapshotResponse| proto::SnapshotResponse { is_last: false, ..page.clone() };
    let empty = proto::SnapshotResponse { resume: "on".into(), ..Default::default() };
    let ordered = "not in the order of their keys";
    let endless: [(&str, Vec<proto::SnapshotResponse>); 5] = [
        ("the same page", vec![pages[0].clone(), pages[0].clone()]),
        ("back", vec![more(&pages[1]), pages[0].clone()]),
        ("twice in a page", {
            let mut page = pages[0].clone();
            page.records.push(page.records[0].clone());
            vec![page]
        }),
        ("empty", vec![pages[0].clone(), empty]),
        ("too large", pages.clone()),
    ];
    for (what, pages) in endless {
        let limit = if what == "too large" { bytes(&pages) - 1 } else { u64::MAX };
        let expected = match what {
            "empty" => "a page without records",
            "too large" => "--snapshot-bytes-limit",
            _ => ordered,
        };
        let mut taker = taker(limit);
        let (last, before) = pages.split_last().unwrap();
        for page in before {
            assert_eq!(told(&mut taker, page), Ok(Staged::Kept), "{what}");
        }
        let refused = told(&mut taker, last).expect_err(what);
        assert!(refused.contains(expected), "{what}: {refused}");
        assert!(taker.record("own", "").is_some() && taker.record("n0", "").is_none(), "{what}");
        commit(&mut taker, [put("own", "2")]);
    }
    let mut taker = taker(bytes(&pages));
    for page in &pages {
        assert!(told(&mut taker, page).is_ok());
    }
    assert!(taker.record("n8", "").is_some(), "as large as the limit");
}

/// An engine on a disk with so many bytes free.
#[derive(Debug)]
struct LowDisk(Arc<dyn Reader>, u64);

impl Reader for LowDisk {
    fn view(&self) -> Result<Box<dyn View>, EngineError> {
        self.0.view()
    }

    fn free_bytes(&self) -> Option<u64> {
        Some(self.1)
    }
}

#[test]
fn sr20_a_snapshot_is_refused_before_it_fills_the_disk() {
    let mut giver = node("giver");
    commit(&mut giver, (0..9).map(|number| put(&format!("n{number}"), &"1".repeat(1_000))));
    let pages = giver.snapshot(1_100);
    assert_eq!(pages.len(), 9);
    let stage = |taker: &mut Server, page: &proto::SnapshotResponse, free: u64| {
        let reader = LowDisk(taker.engine.reader(), free);
        let actions = taker.store.step(Event::Stage(Ticket(0), page.clone()), taker.now, &reader);
        actions.into_iter().find_map(|action| match action {
            Action::Staged(_, Err(refused)) => Some(refused.message),
            Action::Write(batch) => {
                let written = taker.engine.commit(&batch);
                taker.step(Event::Written(written));
                None
            }
            _ => None,
        })
    };
    // Each page needs its own size, and the size of all that wait to be merged.
    let mut taker = taker(u64::MAX);
    for page in &pages[..3] {
        assert_eq!(stage(&mut taker, page, 4_600), None);
    }
    let refused = stage(&mut taker, &pages[3], 4_600).expect("too large");
    assert!(refused.contains("the disk has 4600 bytes free"), "{refused}");
    assert!(taker.record("own", "").is_some() && taker.record("n0", "").is_none());
    commit(&mut taker, [put("own", "2")]);
}

#[test]
fn sr23_all_of_a_snapshot_that_is_not_taken_is_dropped_in_the_background() {
    let mut giver = node("giver");
    for part in 0..5 {
        commit(&mut giver, (0..500).map(|number| put(&format!("n{part}-{number}"), "1")));
    }
    let pages = giver.snapshot(20_000);
    let (_, pages) = pages.split_last().unwrap();
    let mut taker = taker(u64::MAX);
    for page in pages {
        assert_eq!(told(&mut taker, page), Ok(Staged::Kept));
    }
    let staged = |taker: &Server| {
        let (view, mut count) = (taker.engine.view().unwrap(), 0);
        let each = &mut |_: &[u8], _| {
            count += 1;
            ControlFlow::Continue(())
        };
        view.range(b"ps", b"pt", each).unwrap();
        count
    };
    assert!(staged(&taker) > 2_000);
    taker.step(Event::EndResync);
    taker.wait(10 * SECOND);
    assert_eq!(staged(&taker), 0);
}
