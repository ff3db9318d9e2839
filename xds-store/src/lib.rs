//! The durable store: records, the log of their changes, and conditional commits, on an exchangeable
//! engine.
//!
//! A [`Store`](store::Store) is a machine: events go in, actions come out, and the caller performs
//! them. It judges commits and says what to write. An [`Engine`](engine::Engine) keeps ordered bytes.
//! The crate has no runtime, clock, entropy or threads; only the engines on a file and on etcd do I/O.
//! The rules (ST) are in `docs/store-rules.md` of the repository.
//!
//! A [`Replica`](replica::Replica) is a machine, too: it says which other node is called when (SR).
//! `xds-store-server` performs its actions. Regions own names by policies.
//!
//! ```
//! use xds_proto::xds::store::v1 as proto;
//! use xds_store::commit::Draft;
//! use xds_store::engine::{Engine, MemoryEngine};
//! use xds_store::store::{Action, Config, Event, Identity, Store, Ticket};
//!
//! let mut engine = MemoryEngine::default();
//! engine.commit(&Store::init(&Identity::default()))?;
//! let config = Config::new(engine.limits(), 1);
//! let mut store = Store::load(&*engine.view()?, config, 0, |_| {})?;
//! let reader = engine.reader();
//!
//! let key = proto::Key { type_url: "example.com/acme.Thing".into(), name: "a".into(), when: String::new() };
//! let content = proto::Content { payload: "any message".into(), ..Default::default() };
//! let put = proto::Put { content: Some(content), ..Default::default() };
//! let change = proto::Change { key: Some(key), act: Some(proto::change::Act::Put(put)), condition: None };
//! let request = proto::CommitRequest { changes: vec![change], ..Default::default() };
//!
//! let draft = Draft::parse(request, "token:me".into()).expect("it is complete");
//! let mut actions = store.step(Event::Commit(Ticket(1), draft), 0, &*reader);
//! let Some(Action::Write(batch)) = actions.pop() else { panic!("it changes something") };
//! let actions = store.step(Event::Written(engine.commit(&batch)), 0, &*reader);
//! assert!(matches!(&actions[..], [Action::Publish(_), Action::Answer(Ticket(1), Ok(_))]));
//! assert_eq!(store.revision(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | [`backup`] | the whole store as bytes for a file |
//! | [`check`] | looks for damage in a store or a backup |
//! | [`engine`] | the seam to what keeps bytes; engines in memory, on a file (feature `redb`) and on etcd (feature `etcd`) |
//! | `conformance` | checks of an engine (feature `conformance`) |
//! | [`entry`] | a commit as other nodes get it |
//! | [`clock`] | how far the logs of nodes were followed |
//! | [`merge`] | what two states of one record become |
//! | [`conflict`] | what a merge lost |
//! | [`key`] | keys of records, and keys in the engine |
//! | [`record`] | the state of a record, and the digests that identify it |
//! | [`content`] | what a writer sets, as a resource of the cache |
//! | [`log`] | the head of the store, and an entry for each commit |
//! | [`commit`] | a commit: its form, its conditions, what it does |
//! | [`store`] | the machine |
//! | `index`, `stored` | what the machine has in memory; how it reads the engine |
//! | [`rules`] | which fields refer to resources, and what the deletion of a target does |
//! | `refs` | which records refer to which resources |
//! | `blocks` | references between regions |
//! | [`read`] | records, lists, history and events as of a store revision |
//! | [`watch`] | a position in the log |
//! | [`forgotten`] | the records of nodes that will not come back |
//! | [`region`] | which region owns a name, and which ones have it |
//! | [`authority`] | which authorities may refer to which others |
//! | [`replica`] | which peer is called when, and for what |
//! | [`restore`] | writes a backup into an empty engine |
//! | [`rollout`] | in which steps servers give a commit to their clients |
//! | [`phase`] | the versions that a server knows; migrations: plans and their phases |
//! | [`schema`] | schema versions, and what may be written and read |
//! | [`seal`] | encrypts the contents of some types |
//! | [`time`] | times as numbers and in messages |
//! | `looks` | counts the cost of commits in tests |
//! | `checked` | stored values with a checksum |
#![forbid(unsafe_code)]

pub use checked::Damaged;

pub mod authority;
pub mod backup;
mod blocks;
pub mod check;
mod checked;
pub mod clock;
pub mod commit;
pub mod conflict;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod content;
pub mod engine;
pub mod entry;
pub mod forgotten;
mod index;
pub mod key;
pub mod log;
mod looks;
pub mod merge;
mod number;
pub mod phase;
pub mod read;
pub mod record;
mod refs;
pub mod region;
pub mod replica;
pub mod restore;
pub mod rollout;
pub mod rules;
pub mod schema;
pub mod seal;
pub mod store;
mod stored;
pub mod time;
pub mod watch;
