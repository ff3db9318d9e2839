//! A server of a store whose records migrate from one type to another.

use std::sync::Arc;

use bytes::Bytes;
use xds_proto::xds::store::v1 as proto;
use xds_store::commit::{Draft, Refused};
use xds_store::engine::{Engine, MemoryEngine};
use xds_store::key::RecordKey;
use xds_store::phase::{Convert, Converter, Phase, PhaseStep, Plan, PlanSpec, Schemas};
use xds_store::read::{Knows, Payload, ReadError, Reads};
use xds_store::store::{Committed, Event, Ticket};

use super::{SECOND, Server, TYPE, change, content};

/// The type of the new form.
pub(crate) const NEW_TYPE: &str = "example.com/acme.v2.Thing";

/// Up adds `new:` before a payload, and down removes it with all behind a `|`, which only the new form
/// has. A payload `odd` has no other form.
#[derive(Debug)]
enum Prefix {
    Up,
    Down,
}

impl Convert for Prefix {
    fn convert(&self, payload: &Bytes, _: &str) -> Result<Bytes, String> {
        let text = std::str::from_utf8(payload).map_err(|_| "no text".to_owned())?;
        match self {
            _ if text.contains("odd") => Err("an odd payload".to_owned()),
            Self::Up => Ok(format!("new:{text}").into()),
            Self::Down => {
                let text = text.strip_prefix("new:").ok_or("no new payload")?;
                Ok(text.split('|').next().unwrap_or_default().to_owned().into())
            }
        }
    }
}

pub(crate) fn plan() -> Plan {
    Plan::new(spec()).unwrap()
}

pub(crate) fn spec() -> PlanSpec {
    PlanSpec {
        number: 1,
        name: "thing-v2".into(),
        from_type: TYPE.into(),
        from_names: vec!["a*".into()],
        to_type: NEW_TYPE.into(),
        to_name: "v2/{name}".into(),
        to_version: "2.0".parse().unwrap(),
        up: Converter::Code(Arc::new(Prefix::Up)),
        down: Converter::Code(Arc::new(Prefix::Down)),
        heartbeat: false,
        rewrite_references: false,
    }
}

/// What a server knows: 1.1 of the old form, and the plan.
pub(crate) fn schemas() -> Schemas {
    let schemas = Schemas::default().declare(TYPE, "1.1".parse().unwrap()).unwrap();
    schemas.with_plans(vec![plan()]).unwrap()
}

/// A server that knows both forms.
pub(crate) fn knowing(engine: &MemoryEngine) -> Server {
    Server::with(engine.clone(), SECOND, |config| config.schemas = schemas().into())
}

/// The same with a heartbeat plan.
pub(crate) fn of_heartbeats(engine: &MemoryEngine) -> Server {
    let plan = Plan::new(PlanSpec { heartbeat: true, ..spec() }).unwrap();
    let schemas = Schemas::default().with_plans(vec![plan]).unwrap();
    Server::with(engine.clone(), SECOND, |config| config.schemas = schemas.into())
}

/// A server below the new major version.
pub(crate) fn below(engine: &MemoryEngine) -> Server {
    let schemas = schemas().with_ceiling(NEW_TYPE, "1.1".parse().unwrap()).unwrap();
    Server::with(engine.clone(), SECOND, |config| config.schemas = schemas.into())
}

/// A server of a new store in this phase.
pub(crate) fn in_phase(phase: Phase) -> Server {
    let mut server = knowing(&Server::new().engine);
    go_to(&mut server, phase);
    server
}

/// Goes from the phase F0 to this one.
pub(crate) fn go_to(server: &mut Server, phase: Phase) {
    for number in 1..=phase.number() {
        step(server, number - 1, number).unwrap();
    }
}

pub(crate) fn step(server: &mut Server, from: u32, to: u32) -> Result<Committed, Refused> {
    let phase = |number| Phase::of_number(number).unwrap();
    let step = PhaseStep { plan: 1, from: phase(from), to: phase(to) };
    server.step(Event::Commit(Ticket(1 << 40), Draft::set_phase(step, "token:op".into(), false)));
    server.answers.remove(&(1 << 40)).expect("the commit is answered")
}

/// The key of the new form.
pub(crate) fn new_key(name: &str) -> proto::Key {
    proto::Key { type_url: NEW_TYPE.into(), name: format!("v2/{name}"), when: String::new() }
}

/// A change of the new form.
pub(crate) fn on_new(change: proto::Change) -> proto::Change {
    let name = change.key.as_ref().map(|key| key.name.clone()).unwrap_or_default();
    proto::Change { key: Some(new_key(&name)), ..change }
}

pub(crate) fn put_new(name: &str, payload: &str) -> proto::Change {
    let put = proto::Put { content: Some(content(payload)), ..Default::default() };
    on_new(change(name, "", proto::change::Act::Put(put)))
}

/// What Get answers: the payload, the version, and the key.
pub(crate) fn get(
    server: &Server,
    key: &proto::Key,
    knows: &str,
) -> Result<Option<proto::Record>, ReadError> {
    let view = server.engine.view().unwrap();
    let reads = Reads::with_schemas(&*view, &server.store.config().schemas).unwrap();
    let key = RecordKey::parse(key).unwrap();
    let knows = if knows.is_empty() { Knows::default() } else { Knows::of(&key, knows.parse().unwrap()) };
    reads.read(&key, server.now, Payload::With, &knows)
}

/// The payload and version that Get answers; empty if there is nothing.
pub(crate) fn shown(server: &Server, key: &proto::Key, knows: &str) -> (String, String) {
    let content = get(server, key, knows).unwrap().and_then(|record| record.content);
    let content = content.unwrap_or_default();
    (String::from_utf8(content.payload.to_vec()).unwrap(), content.schema)
}
