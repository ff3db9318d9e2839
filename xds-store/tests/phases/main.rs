//! Rolling upgrades of one resource: writes of either form, forced writes of a server below the new major
//! version, deletions, and steps forward and back, in each order up to a depth, and at random.
//!
//! After each act, each read of each form at both servers answers the last write, and what clients of xDS
//! get does, too.
//!
//!     DEPTH=6 UPGRADES=200000 cargo test --release -p xds-store --test phases
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ops::ControlFlow;

use bytes::Bytes;
use driven::migrating::*;
use driven::*;
use xds_proto::xds::store::v1 as proto;
use xds_store::engine::{Batch, Engine, MemoryEngine};
use xds_store::store::{Config, Event, Store};

#[allow(dead_code, reason = "shared with the tests of rules")]
#[path = "../driven/mod.rs"]
mod driven;

/// What happens to the resource or to the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    PutOld,
    PutNew,
    /// A put of the new form with what only that has.
    PutMore,
    /// A put of the old form at the server below the new major version.
    PutBelow,
    Delete,
    DeleteNew,
    DeleteBelow,
    Forward,
    Back,
    /// Time for passes.
    Wait,
}

const ACTS: [Act; 10] = [
    Act::PutOld,
    Act::PutNew,
    Act::PutMore,
    Act::PutBelow,
    Act::Delete,
    Act::DeleteNew,
    Act::DeleteBelow,
    Act::Forward,
    Act::Back,
    Act::Wait,
];

/// What the store must answer.
#[derive(Debug, Clone, Default)]
struct Model {
    phase: u32,
    value: Option<String>,
    writes: u32,
    /// Since the phase was below F2: a server below may not know the major version that is stored.
    was_in_f4: bool,
}

/// Two servers of a store: one knows the new form.
struct World {
    knowing: Server,
    below: Server,
    model: Model,
}

impl World {
    fn new() -> Self {
        let engine = Server::new().engine;
        Self { knowing: knowing(&engine), below: below(&engine), model: Model::default() }
    }

    /// The same store and model, whose changes do not reach this one. Both servers start again.
    fn fork(&self) -> Self {
        let mut writes = Vec::new();
        let view = self.knowing.engine.view().unwrap();
        let all = |key: &[u8], value: xds_store::engine::Value| {
            writes.push((Bytes::copy_from_slice(key), Some(value.bytes)));
            ControlFlow::Continue(())
        };
        let mut all = all;
        view.range(b"", b"\xff", &mut all).unwrap();
        let mut engine = MemoryEngine::default();
        engine.commit(&Batch { compares: Vec::new(), writes }).unwrap();
        Self { knowing: knowing(&engine), below: below(&engine), model: self.model.clone() }
    }

    fn act(&mut self, act: Act) {
        let shows_new = self.model.phase >= 2;
        self.model.writes += 1;
        let value = self.model.writes.to_string();
        let (ignores_old, is_last) = (self.model.phase >= 4, self.model.phase == 5);
        let is_refused = match act {
            Act::PutOld | Act::Delete => is_last,
            Act::PutNew | Act::PutMore | Act::DeleteNew => !shows_new,
            Act::PutBelow | Act::DeleteBelow => ignores_old,
            Act::Forward | Act::Back | Act::Wait => false,
        };
        let change = match act {
            Act::PutOld | Act::PutBelow => put("a", &value),
            Act::PutNew => put_new("a", &format!("new:{value}")),
            Act::PutMore => put_new("a", &format!("new:{value}|more")),
            Act::Delete | Act::DeleteBelow => delete("a"),
            Act::DeleteNew => on_new(delete("a")),
            Act::Forward | Act::Back => {
                let phase = self.model.phase;
                let next = if act == Act::Forward { phase + 1 } else { phase.wrapping_sub(1) };
                if next <= 5 {
                    let stepped = step(&mut self.knowing, phase, next);
                    let is_gated = matches!((phase, next), (3, 4) | (2, 1));
                    match stepped {
                        Ok(_) => {
                            self.model.phase = next;
                            self.model.was_in_f4 = next == 4 || (self.model.was_in_f4 && next >= 2);
                        }
                        Err(refused) => assert!(is_gated, "{refused:?}"),
                    }
                }
                return self.follow();
            }
            Act::Wait => {
                self.knowing.wait(61 * SECOND);
                return self.follow();
            }
        };
        let server = match act {
            Act::PutBelow | Act::DeleteBelow => &mut self.below,
            _ => &mut self.knowing,
        };
        let answer = server.commit(proto::CommitRequest { force_schema: true, ..of_one(change) });
        let may_be_unknown = self.model.was_in_f4 && matches!(act, Act::PutBelow | Act::DeleteBelow);
        assert!(answer.is_err() == is_refused || may_be_unknown, "{act:?} {answer:?}");
        if answer.is_ok() {
            let is_put = matches!(act, Act::PutOld | Act::PutNew | Act::PutMore | Act::PutBelow);
            self.model.value = is_put.then_some(value);
        }
        self.follow();
    }

    /// Both servers read the log.
    fn follow(&mut self) {
        let now = self.knowing.now.max(self.below.now);
        for server in [&mut self.knowing, &mut self.below] {
            server.now = now;
            server.step(Event::Changed);
        }
    }

    fn check(&self, acts: &[Act]) {
        let value = self.model.value.clone().unwrap_or_default();
        let base = |payload: String| {
            let text = payload.strip_prefix("new:").unwrap_or(&payload);
            text.split('|').next().unwrap_or_default().to_owned()
        };
        let shown_new = if self.model.phase >= 2 { value.clone() } else { String::new() };
        for server in [&self.knowing, &self.below] {
            let is_below = std::ptr::eq(server, &raw const self.below);
            // SV34: this server does not know the major version that is stored.
            let is_unknown = get(server, &key("a", ""), "").is_err();
            if is_unknown {
                assert!(is_below && self.model.was_in_f4, "{acts:?}");
                assert!(get(server, &new_key("a"), "").is_err(), "{acts:?}");
                continue;
            }
            for knows in ["", "1.1", "2.0"] {
                assert_eq!(base(shown(server, &key("a", ""), knows).0), value, "{acts:?}");
                assert_eq!(base(shown(server, &new_key("a"), knows).0), shown_new, "{acts:?}");
            }
        }
        let mut config = Config::new(self.knowing.engine.limits(), 9);
        config.schemas = schemas().into();
        let mut served = [String::new(), String::new()];
        let view = self.knowing.engine.view().unwrap();
        let started = Store::load(&*view, config, self.knowing.now, |loaded| {
            let place = usize::from(loaded.key.type_url().as_str() == NEW_TYPE);
            if let Some(Ok(resource)) = loaded.resource
                && loaded.key.type_url().as_str().starts_with("example.com")
            {
                served[place] = base(String::from_utf8(resource.payload().to_vec()).unwrap());
            }
        })
        .unwrap();
        // The counts that servers keep are those that a start finds.
        let counts = started.plans()[0].counts;
        for server in [&self.knowing, &self.below] {
            assert_eq!(server.store.plans()[0].counts, counts, "{acts:?}");
        }
        let served_old = if self.model.phase == 5 { String::new() } else { value };
        assert_eq!(served, [served_old, shown_new], "{acts:?}");
    }
}

fn of_one(change: proto::Change) -> proto::CommitRequest {
    of([change])
}

/// Each order of acts up to a depth.
fn explore(world: &World, acts: &mut Vec<Act>, depth: usize) {
    for act in ACTS {
        let mut next = world.fork();
        acts.push(act);
        next.act(act);
        next.check(acts);
        if depth > 1 {
            explore(&next, acts, depth - 1);
        }
        acts.pop();
    }
}

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn sv28_a_read_answers_the_last_write_after_each_order_of_acts() {
    let depth = setting("DEPTH", 3);
    for phase in [0, 2, 3, 4] {
        let mut world = World::new();
        // A pass is clean after some time.
        let mut acts: Vec<_> = [Act::Forward, Act::Wait].repeat(phase);
        acts.iter().for_each(|act| world.act(*act));
        explore(&world, &mut acts, depth);
    }
}

#[test]
fn sv28_a_read_answers_the_last_write_in_random_rolling_upgrades() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..setting("UPGRADES", 100) {
        let (mut world, mut acts) = (World::new(), Vec::new());
        for _ in 0..20 {
            // xorshift
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let act = ACTS[usize::try_from(seed % ACTS.len() as u64).unwrap()];
            acts.push(act);
            world.act(act);
            world.check(&acts);
        }
    }
}
