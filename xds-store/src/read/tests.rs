use super::*;
use crate::engine::{Batch, Engine, MemoryEngine};
use crate::log::LogChange;

/// Commits of a store, written as they are stored.
#[derive(Default)]
struct Written {
    engine: MemoryEngine,
    head: Head,
    newest: BTreeMap<RecordKey, (u64, RecordState)>,
}

/// A key, its payload or a deletion, and what else the state has.
type Change<'a> = (RecordKey, Option<&'a str>, fn(&mut RecordState));

impl Written {
    /// Puts (`Some`) and deletions in one commit.
    fn commit(&mut self, changes: &[(&str, Option<&str>)]) -> u64 {
        let as_it_is: fn(&mut RecordState) = |_| {};
        self.commit_states(changes.iter().map(|(name, payload)| (key(name), *payload, as_it_is)).collect())
    }

    fn put(&mut self, name: &str, change: fn(&mut RecordState)) -> u64 {
        self.commit_states(vec![(key(name), Some("x"), change)])
    }

    fn commit_states(&mut self, changes: Vec<Change<'_>>) -> u64 {
        self.head.revision += 1;
        let at = self.head.revision;
        let mut batch = Batch::default();
        let mut entry = LogEntry { time: i64::try_from(at).unwrap() * 1_000_000_000, ..LogEntry::default() };
        for (key, payload, change) in changes {
            let previous = self.newest.get(&key);
            let content = payload
                .map(|payload| proto::Content { payload: payload.to_owned().into(), ..Default::default() });
            let lifecycle = payload.map_or(proto::State::Deleted, |_| proto::State::Live);
            let generation = previous.map_or(1, |(_, state)| state.generation + 1);
            let mut state = RecordState {
                key: Some(key.to_proto()),
                incarnation: 1,
                lifecycle: lifecycle.into(),
                generation,
                content,
                ..RecordState::default()
            };
            state.digest = crate::record::content_digest(&state);
            change(&mut state);
            entry.changes.push(LogChange {
                key: key.to_proto(),
                previous: previous.map_or(0, |(at, _)| *at),
                outcome: proto::Outcome::Updated.into(),
            });
            let stored_key = stored::record(&key, at);
            batch.writes.push((stored_key.clone(), Some(checked::encode(&stored_key, &state))));
            self.newest.insert(key, (at, state));
        }
        let stored_key = stored::log(at);
        batch.writes.push((stored_key.clone(), Some(checked::encode(&stored_key, &entry))));
        batch.writes.push((stored::HEAD.into(), Some(checked::encode(stored::HEAD, &self.head))));
        self.engine.commit(&batch).unwrap();
        at
    }

    fn read<T>(&self, read: impl FnOnce(Reads<'_>) -> T) -> T {
        let view = self.engine.view().unwrap();
        read(Reads::new(&*view).unwrap())
    }

    /// The names that a filter selects at a revision, from pages of this size.
    fn list(&self, filter: proto::Filter, at: u64, limit: usize) -> Vec<String> {
        let filter = Filter::parse(Some(filter)).unwrap();
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let query = ListQuery { after: after.as_ref(), limit, ..all(&filter, at) };
            let page = self.read(|reads| reads.list(query).unwrap());
            assert!(page.records.len() <= limit);
            names.extend(page.records.iter().map(|version| version.key.name().as_str().to_owned()));
            match page.next {
                None => return names,
                Some(NextPage::Full) => after = page.records.last().map(|last| last.key.clone()),
                Some(NextPage::Scanned(key)) => after = Some(key),
            }
        }
    }

    fn history(&self, query: HistoryQuery<'_>) -> (Vec<u64>, Option<u64>) {
        self.read(|reads| {
            let page = reads.history(query).unwrap();
            (page.commits.iter().map(|commit| reads.parse(&commit.revision).unwrap()).collect(), page.next)
        })
    }
}

/// All that a filter selects at a revision, in one page.
fn all(filter: &Filter, at: u64) -> ListQuery<'_> {
    let (limit_bytes, scan_limit) = (1 << 20, 1_000);
    ListQuery {
        filter,
        at,
        now: 0,
        may_read: &|_| true,
        knows: Knows::ALL,
        after: None,
        taken: 0,
        limit: 100,
        limit_bytes,
        scan_limit,
    }
}

const ALL_COMMITS: HistoryQuery<'static> = HistoryQuery {
    key: None,
    before: None,
    may_read: &|_| true,
    payload: Payload::With,
    limit: 100,
    limit_bytes: 1 << 20,
    scan_limit: 1_000,
};

fn names(names: &[&str]) -> proto::Filter {
    proto::Filter { names: names.iter().map(|name| (*name).to_owned()).collect(), ..Default::default() }
}

fn key(name: &str) -> RecordKey {
    let (type_url, name) = name.split_once(' ').unwrap_or(("t/acme.T", name));
    let key = proto::Key { type_url: type_url.into(), name: name.into(), when: String::new() };
    RecordKey::parse(&key).unwrap()
}

fn all_events(filter: &Filter) -> EventQuery<'_> {
    let (limit, limit_bytes, scan_limit) = (100, 1 << 20, 1_000);
    EventQuery {
        filter,
        may_read: &|_| true,
        payload: Payload::With,
        knows: Knows::ALL,
        limit,
        limit_bytes,
        scan_limit,
    }
}

/// The kinds and names of events.
fn kinds(events: &[proto::Event]) -> Vec<(proto::event::Kind, &str)> {
    events
        .iter()
        .map(|event| (event.kind(), &*event.record.as_ref().unwrap().key.as_ref().unwrap().name))
        .collect()
}

#[test]
fn st24_a_record_that_is_absent_deleted_or_expired_is_not_read() {
    let mut store = Written::default();
    store.commit(&[("a", Some("1")), ("b", Some("1"))]);
    store.commit(&[("b", None)]);
    store.put("c", |state| state.expires_at = Some(prost_types::Timestamp { seconds: 9, nanos: 0 }));
    let get = |name: &str, now: i64| store.read(|reads| reads.get(&key(name), now).unwrap().is_some());
    assert_eq!(["a", "b", "none"].map(|name| get(name, 0)), [true, false, false]);
    assert_eq!([8_999_999_999, 9_000_000_000].map(|now| get("c", now)), [true, false]);
    assert_eq!(store.list(proto::Filter::default(), 3, 10), ["a", "c"]);
}

#[test]
fn st60_a_content_is_put_by_an_owner_as_long_as_the_log_says_so() {
    let mut store = Written::default();
    store.commit(&[("a", Some("1"))]);
    // A change of owners alone has the generation before.
    let at = store.put("a", |state| state.generation = 1);
    store.commit(&[("b", None)]);
    let is_put_by = |store: &Written, owner: &str| {
        store.read(|reads| reads.is_put_by(&reads.last(&key("a")).unwrap().unwrap(), owner).unwrap())
    };
    assert_eq!(["", "shop"].map(|owner| is_put_by(&store, owner)), [Some(true), Some(false)]);
    let deleted = store.read(|reads| reads.last(&key("b")).unwrap().unwrap().state.lifecycle());
    assert_eq!(deleted, proto::State::Deleted);
    store.engine.commit(&Batch { compares: Vec::new(), writes: vec![(stored::log(at), None)] }).unwrap();
    assert_eq!(is_put_by(&store, "shop"), None);
}

#[test]
fn st26_all_pages_of_a_list_are_of_one_revision_in_the_order_of_keys() {
    let mut store = Written::default();
    let at = store.commit(&[("b", Some("1")), ("a", Some("1")), ("d", Some("1")), ("aa", Some("1"))]);
    store.commit(&[("a", None), ("c", Some("2")), ("d", Some("2"))]);
    for limit in [1, 2, 3, 4, 5] {
        assert_eq!(store.list(proto::Filter::default(), at, limit), ["a", "aa", "b", "d"], "{limit}");
        assert_eq!(store.list(proto::Filter::default(), at + 1, limit), ["aa", "b", "c", "d"], "{limit}");
    }
    // The last page says that it is the last one.
    let filter = Filter::parse(None).unwrap();
    let page = store.read(|reads| reads.list(ListQuery { limit: 4, ..all(&filter, at) }).unwrap());
    assert_eq!((page.records.len(), page.next), (4, None));
    // Pages end by bytes, and after what was read.
    let page = store.read(|reads| reads.list(ListQuery { limit_bytes: 1, ..all(&filter, at) }).unwrap());
    assert_eq!((page.records.len(), page.next), (1, Some(NextPage::Full)));
    // In a page that has records already, the limits hold for the first one.
    let query = ListQuery { limit_bytes: 1, taken: 1, ..all(&filter, at) };
    let page = store.read(|reads| reads.list(query).unwrap());
    assert_eq!((page.records.len(), page.next), (0, Some(NextPage::Full)));
    let page = store.read(|reads| reads.list(ListQuery { scan_limit: 2, ..all(&filter, at) }).unwrap());
    assert_eq!((page.records.len(), page.next), (2, Some(NextPage::Scanned(key("aa")))));
}

#[test]
fn st26_a_record_with_many_versions_costs_no_read_of_each() {
    let mut store = Written::default();
    for version in 0..5 * VERSIONS_READ {
        store.commit(&[("hot", Some(&version.to_string())), ("hotter", Some("1"))]);
    }
    let last = store.commit(&[("z", Some("1"))]);
    for at in [1, 20, last - 1, last] {
        let filter = Filter::parse(None).unwrap();
        let page = store.read(|reads| reads.list(all(&filter, at)).unwrap());
        let at: Vec<_> = page.records.iter().map(|version| version.changed_at).collect();
        assert_eq!(at[0], at[1]);
        assert_eq!(page.records[0].state.generation, at[0]);
    }
    assert_eq!(store.list(proto::Filter::default(), last, 1), ["hot", "hotter", "z"]);
}

#[test]
fn st26_a_page_token_is_of_its_filter_and_its_store() {
    let mut store = Written::default();
    let at = store.commit(&[("a", Some("1"))]);
    let (filter, other) = (Filter::parse(None).unwrap(), Filter::parse(Some(names(&["a"]))).unwrap());
    let token = PageToken::new(at, key("a"), &filter);
    let text = store.read(|reads| token.to_text(&reads));
    let parse = |text: &str, filter| store.read(|reads| PageToken::parse(text, &reads, filter));
    assert_eq!(parse(&text, &filter), Ok(token));
    assert_eq!(parse(&text, &other), Err(TokenError::OtherFilter));
    for bad in ["", "x", "00", &text[2..], &text.replace('0', "1"), "é", &format!("{text}0")] {
        assert_eq!(parse(bad, &filter), Err(TokenError::Malformed), "{bad}");
    }
    let mut elsewhere =
        Written { head: Head { node: "other".into(), ..Head::default() }, ..Written::default() };
    elsewhere.commit(&[("a", Some("1"))]);
    let foreign = elsewhere.read(|reads| PageToken::new(at, key("a"), &filter).to_text(&reads));
    assert_eq!(parse(&foreign, &filter), Err(TokenError::Malformed));
    let ahead = store.read(|reads| PageToken::new(at + 1, key("a"), &filter).to_text(&reads));
    assert_eq!(parse(&ahead, &filter), Err(TokenError::Malformed));
}

#[test]
fn st30_what_is_below_the_floor_is_an_error_with_the_floor() {
    let mut store = Written::default();
    store.commit(&[("a", Some("1"))]);
    store.head.floor = 2;
    store.commit(&[("a", Some("2"))]);
    store.commit(&[("a", Some("3"))]);
    let filter = Filter::parse(None).unwrap();
    let list = |at| store.read(|reads| reads.list(all(&filter, at)).map(|page| page.records.len()));
    assert!(matches!(list(1), Err(ReadError::Compacted { floor: 2 })));
    assert!(matches!(list(4), Err(ReadError::Ahead { revision: 4, last: 3 })));
    assert_eq!([list(2).unwrap(), list(3).unwrap()], [1, 1]);
    // ST34: history ends at the floor.
    assert_eq!(store.history(ALL_COMMITS), (vec![3], None));
    assert_eq!(store.history(HistoryQuery { key: Some(&key("a")), ..ALL_COMMITS }), (vec![3], None));
}

#[test]
fn st53_lists_and_history_leave_out_what_the_caller_may_not_read() {
    let mut store = Written::default();
    store.commit(&[("a", Some("1")), ("secret", Some("1"))]);
    store.commit(&[("secret", Some("2"))]);
    let may_read = |key: &RecordKey| key.name().as_str() != "secret";
    let filter = Filter::parse(None).unwrap();
    let page = store.read(|reads| reads.list(ListQuery { may_read: &may_read, ..all(&filter, 2) }).unwrap());
    assert_eq!(page.records.iter().map(|record| record.key.clone()).collect::<Vec<_>>(), [key("a")]);
    let query = HistoryQuery { may_read: &may_read, ..ALL_COMMITS };
    let page = store.read(|reads| reads.history(query).unwrap());
    assert_eq!(page.commits.len(), 1);
    assert_eq!(page.commits[0].changes.len(), 1);
    assert_eq!(store.history(HistoryQuery { key: Some(&key("secret")), ..query }), (vec![], None));
}

#[test]
fn st34_history_has_the_commits_of_a_key_or_all_newest_first() {
    let mut store = Written::default();
    store.commit(&[("a", Some("1")), ("b", Some("1"))]);
    store.commit(&[("b", Some("2"))]);
    store.commit(&[("a", Some("3"))]);
    store.commit(&[("a", None)]);
    assert_eq!(store.history(ALL_COMMITS), (vec![4, 3, 2, 1], None));
    assert_eq!(store.history(HistoryQuery { limit: 2, ..ALL_COMMITS }), (vec![4, 3], Some(3)));
    assert_eq!(store.history(HistoryQuery { before: Some(3), ..ALL_COMMITS }), (vec![2, 1], None));
    let of_a = HistoryQuery { key: Some(&key("a")), ..ALL_COMMITS };
    assert_eq!(store.history(of_a), (vec![4, 3, 1], None));
    assert_eq!(store.history(HistoryQuery { limit: 2, ..of_a }), (vec![4, 3], Some(2)));
    assert_eq!(store.history(HistoryQuery { before: Some(2), ..of_a }), (vec![1], None));
    assert_eq!(store.history(HistoryQuery { limit_bytes: 1, ..of_a }), (vec![4], Some(4)));
    let page = store.read(|reads| reads.history(of_a).unwrap());
    let change = |commit: usize| &page.commits[commit].changes[0];
    assert_eq!((change(0).content.as_ref(), &*change(0).revision_after), (None, ""));
    assert_eq!(change(0).revision_before, change(1).revision_after);
    assert_eq!(change(1).revision_before, change(2).revision_after);
    assert_eq!((&*change(2).revision_before, page.commits[2].changes.len()), ("", 1));
    assert_eq!(&*change(1).content.as_ref().unwrap().payload, b"3");
    assert_eq!(page.commits[0].at.unwrap().seconds, 4);
}

#[test]
fn a_filter_selects_by_type_name_owner_label_and_state() {
    let mut store = Written::default();
    store.commit(&[("web/a", Some("1")), ("web/b", Some("1")), ("webs", Some("1"))]);
    store.commit(&[("u/acme.U web/a", Some("1")), ("t/xds.store.v1.Authority x", Some("1"))]);
    let last = store.put("z", |state| {
        state.owners.push(proto::OwnerState {
            owner: Some(proto::Owner { who: Some(proto::owner::Who::Name("shop".into())) }),
            is_present: true,
            ..Default::default()
        });
        state.content.as_mut().unwrap().labels.insert("env".into(), "prod".into());
        state.quarantined = Some(proto::Quarantined::default());
    });
    let list = |filter| store.list(filter, last, 2);
    assert_eq!(list(names(&["web/*"])), ["web/a", "web/b", "web/a"]);
    assert_eq!(list(names(&["webs", "web/b", "none"])), ["web/b", "webs"]);
    let of = |types: &[&str], filter: proto::Filter| proto::Filter {
        type_urls: types.iter().map(|of| (*of).to_owned()).collect(),
        ..filter
    };
    assert_eq!(list(of(&["t/acme.T"], names(&["web*", "web/a", "z"]))), ["web/a", "web/b", "webs", "z"]);
    assert_eq!(list(of(&["u/acme.U", "t/acme.T"], names(&["web/a"]))), ["web/a", "web/a"]);
    let labels = [("env".to_owned(), "prod".to_owned())].into();
    assert_eq!(list(proto::Filter { labels, ..Default::default() }), ["z"]);
    assert_eq!(list(proto::Filter { owner: "shop".into(), ..Default::default() }), ["z"]);
    assert_eq!(list(proto::Filter { owner: "shops".into(), ..Default::default() }), [""; 0]);
    let states = vec![proto::State::Quarantined.into()];
    assert_eq!(list(proto::Filter { states, ..Default::default() }), ["z"]);
    let states = vec![proto::State::Deleted.into()];
    let refused = Filter::parse(Some(proto::Filter { states, ..Default::default() }));
    assert_eq!(refused.unwrap_err(), FilterError::State);
}

#[test]
fn the_version_of_a_record_is_that_of_delta_clients() {
    let mut store = Written::default();
    store.put("a", |state| {
        let content = state.content.as_mut().unwrap();
        content.do_not_cache = true;
        content.aliases = vec!["b".into()];
    });
    let record = store.read(|reads| {
        let version = reads.get(&key("a"), 0).unwrap().unwrap();
        reads.answer(&version, Payload::Without).unwrap()
    });
    let resource = xds_core::Resource::new("t/acme.T", "a", "x").unwrap();
    let resource = resource.with_aliases(["b".into()]).with_do_not_cache();
    assert_eq!(record.version, resource.version().to_string());
    let content = record.content.unwrap();
    assert_eq!((content.payload.len(), content.do_not_cache), (0, true));
    assert_eq!(record.changed_at.unwrap().seconds, 1);
}

#[test]
fn st55_configuration_is_listed_by_its_type_alone() {
    let mut store = Written::default();
    let at = store.commit(&[("a", Some("1")), ("t/xds.store.v1.Authority x", Some("1"))]);
    let type_urls = vec!["t/xds.store.v1.Authority".to_owned()];
    assert_eq!(store.list(proto::Filter { type_urls, ..Default::default() }, at, 2), ["x"]);
    assert_eq!(store.list(proto::Filter::default(), at, 2), ["a"]);
}

#[test]
fn st33_a_record_that_stops_to_match_has_left_and_one_that_ends_is_deleted() {
    use proto::event::Kind::{Deleted, Left, Put};

    let mut store = Written::default();
    let with_label: fn(&mut RecordState) = |state| {
        state.content.as_mut().unwrap().labels.insert("env".into(), "prod".into());
    };
    let labels = [("env".to_owned(), "prod".to_owned())].into();
    let filter = Filter::parse(Some(proto::Filter { labels, ..Default::default() })).unwrap();
    store.commit(&[("a", Some("other"))]);
    store.put("a", with_label);
    store.put("b", with_label);
    store.commit(&[("a", Some("other"))]);
    store.commit(&[("a", Some("another"))]);
    store.commit(&[("a", None), ("b", None)]);
    let mut position = Position::after(0);
    let read = store.read(|reads| reads.events(&mut position, all_events(&filter)).unwrap());
    assert_eq!(kinds(&read.events), [(Put, "a"), (Put, "b"), (Left, "a"), (Deleted, "b")]);
    assert_eq!((position.revision(), read.is_partial), (6, false));
    let record = |event: usize| read.events[event].record.as_ref().unwrap();
    assert!(record(2).content.is_none() && record(2).revision.is_empty());
    assert!(record(3).content.is_none() && record(3).state() == proto::State::Deleted);
    // ST53.
    let query = EventQuery { may_read: &|key| key.name().as_str() == "b", ..all_events(&filter) };
    let read = store.read(|reads| reads.events(&mut Position::after(0), query).unwrap());
    assert_eq!(kinds(&read.events), [(Put, "b"), (Deleted, "b")]);
}

#[test]
fn st27_events_come_in_any_parts_but_each_once_and_in_order() {
    let mut store = Written::default();
    store.commit(&[("a", Some("1")), ("b", Some("1")), ("c", Some("1"))]);
    store.commit(&[]);
    store.commit(&[("x", Some("1")), ("a", Some("2")), ("y", Some("2"))]);
    store.commit(&[("b", None)]);
    let filter = Filter::parse(Some(names(&["a", "b", "c"]))).unwrap();
    let whole = store.read(|reads| reads.events(&mut Position::after(0), all_events(&filter)).unwrap());
    assert_eq!(whole.events.len(), 5);
    let part = |query: EventQuery<'_>| {
        let (mut position, mut events, mut resumable) = (Position::after(0), Vec::new(), Vec::new());
        while position.revision() < 4 {
            let read = store.read(|reads| reads.events(&mut position, query).unwrap());
            events.extend(read.events);
            if !read.is_partial {
                resumable.push((position.revision(), events.len()));
            }
        }
        assert_eq!(events, whole.events, "{resumable:?}");
        // After a resume nothing is missing and nothing repeated.
        for (revision, before) in resumable {
            let read = store
                .read(|reads| reads.events(&mut Position::after(revision), all_events(&filter)).unwrap());
            assert_eq!(read.events, whole.events[before..]);
        }
    };
    for limit in 1..6 {
        part(EventQuery { limit, ..all_events(&filter) });
        part(EventQuery { scan_limit: limit, ..all_events(&filter) });
        part(EventQuery { limit, scan_limit: 2, ..all_events(&filter) });
    }
    part(EventQuery { limit_bytes: 1, ..all_events(&filter) });
}

#[test]
fn st32_a_position_below_the_floor_is_an_error() {
    let mut store = Written::default();
    store.commit(&[("a", Some("1"))]);
    store.head.floor = 2;
    store.commit(&[("a", Some("2"))]);
    let filter = Filter::parse(None).unwrap();
    let events = |after| store.read(|reads| reads.events(&mut Position::after(after), all_events(&filter)));
    assert!(matches!(events(1), Err(ReadError::Compacted { floor: 2 })));
    assert!(matches!(events(3), Err(ReadError::Ahead { revision: 3, last: 2 })));
    assert_eq!(events(2).unwrap(), Events::default());
}
