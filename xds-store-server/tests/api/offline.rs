//! A store that no process serves, in a time that passes at once.

use std::time::{Duration, SystemTime};

use xds_proto::xds::store::v1 as proto;
use xds_store::commit::Draft;
use xds_store::engine::Engine;
use xds_store::read::Reads;
use xds_store::store::{Action, Config, Event, Store, Ticket};

/// Its time begins an hour ago.
pub(crate) struct Offline<E> {
    pub(crate) engine: E,
    pub(crate) store: Store,
    now: i64,
}

const SECOND: i64 = 1_000_000_000;

impl<E: Engine> Offline<E> {
    /// The store of this engine.
    pub(crate) fn load(engine: E) -> Self {
        let mut config = Config::new(engine.limits(), 1);
        config.is_replicated = true;
        config.tombstones = 20 * SECOND;
        let now =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() - Duration::from_secs(3_600);
        let now = i64::try_from(now.as_nanos()).unwrap();
        let store = Store::load(&*engine.view().unwrap(), config, now, |_| {}).unwrap();
        Self { engine, store, now }
    }

    fn step(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for action in self.store.step(event, self.now, &*self.engine.reader()) {
                match action {
                    Action::Write(batch) => events.push(Event::Written(self.engine.commit(&batch))),
                    Action::Answer(_, answer) => assert!(answer.is_ok(), "{answer:?}"),
                    _ => {}
                }
            }
        }
    }

    pub(crate) fn commit(&mut self, changes: Vec<proto::Change>) {
        let request = proto::CommitRequest { changes, ..Default::default() };
        self.step(Event::Commit(Ticket(0), Draft::parse(request, "test".into()).unwrap()));
    }

    pub(crate) fn pull(&mut self, from: &Self) {
        let view = from.engine.view().unwrap();
        let reads = Reads::new(&*view).unwrap();
        let lacking = from.store.lacking(&self.store.clock(), 100).revisions;
        let entries = lacking.into_iter().map(|revision| reads.foreign(revision).unwrap()).collect();
        self.step(Event::Merge(Ticket(0), entries, None));
    }

    /// Forgets the log, and what was deleted in it.
    pub(crate) fn forget_all(&mut self) {
        for _ in 0..2 {
            self.now += 400 * SECOND;
            self.step(Event::Due);
            self.step(Event::Compact(Ticket(0), Some(self.store.revision())));
        }
        assert_eq!(self.store.head().floor, self.store.revision());
    }
}
