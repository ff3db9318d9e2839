//! A last-known-good file with a lost entry.

use xds_client::last_good::{LastGood, Secrets};
use xds_client::{Event, Protocol, SetEvent};

use super::{Origin, Thing};

/// A set with a lost member is incomplete, and the lost member does not count as absent.
#[tokio::test]
async fn d32_a_wildcard_restored_from_a_damaged_file_is_complete_only_when_a_server_said_so() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let folder = std::env::temp_dir().join(format!("xds-damaged-{protocol:?}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("known");
        let mut origin = Origin::start();
        origin.put(&[("a", "", "1"), ("b", "", "lost"), ("c", "", "1")]);
        let start = |origin: &Origin| origin.client(protocol).last_good(&path, Secrets::LeftOut).start();
        let client = start(&origin).unwrap();
        let mut all = client.watch_all::<Thing>().unwrap();
        while !matches!(all.next().await.unwrap(), SetEvent::Complete) {}
        drop((all, client));
        origin.off().await;

        // When the lock is free, the first client has written everything.
        while LastGood::open(&path, Secrets::LeftOut).is_err() {
            tokio::task::yield_now().await;
        }
        let mut image = std::fs::read(&path).unwrap();
        let lost = image.windows(4).position(|bytes| bytes == b"lost").unwrap();
        image[lost] ^= 1;
        std::fs::write(&path, image).unwrap();
        let client = start(&origin).unwrap();
        let mut all = client.watch_all::<Thing>().unwrap();
        let mut members = Vec::new();
        loop {
            match all.next().await.unwrap() {
                SetEvent::Member(name, Event::Changed(thing)) => {
                    assert!(thing.is_stale());
                    members.push(name.to_string());
                }
                SetEvent::Failed(Some(_)) => break,
                other => panic!("{protocol:?}: unexpected {other:?}"),
            }
        }
        assert_eq!(members, ["a", "c"], "{protocol:?}");
        origin.on();
        let mut is_whole = false;
        while !is_whole {
            match all.next().await.unwrap() {
                SetEvent::Member(name, Event::Changed(_)) => members.push(name.to_string()),
                SetEvent::Complete => is_whole = true,
                SetEvent::Failed(None) | SetEvent::Member(_, Event::Ambient(_)) => {}
                other => panic!("{protocol:?}: unexpected {other:?}"),
            }
        }
        assert!(members.contains(&"b".to_owned()), "{protocol:?}: {members:?}");
        drop((all, client));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
