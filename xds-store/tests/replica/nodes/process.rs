//! The process of a node: it starts, does what its machines say, and crashes between any two actions.

use xds_proto::xds::store::v1 as proto;
use xds_store::commit::Draft;
use xds_store::engine::{Engine as _, EngineError};
use xds_store::key::RecordKey;
use xds_store::store::{Published, Ticket};

use super::driver::{Input, Output, Process};
use super::{Happens, MS, Outcome, SECOND, Sent, Sim, name, users};

impl Sim {
    pub(super) fn start(&mut self, node: usize) -> Outcome {
        if self.nodes[node].process.is_some() || (self.is_healed && !self.core.contains(&node)) {
            return Ok(());
        }
        let (times, address, id) = (self.times(node), name(node), self.id(node));
        let started = &mut self.nodes[node];
        started.boot += 1;
        let mut loaded = Vec::new();
        let run = (&*address, started.boot);
        let process = Process::start(started.engine.clone(), run, times, |record| loaded.push(record));
        let (counters, time) = (process.store.clock().counters(), times.1.max(process.store.time()));
        started.process = Some(process);
        if self.is_exact() {
            self.history.loaded(&id, loaded, (&counters, time))?;
        }
        let peers = self.peers[node].iter().map(|peer| name(*peer)).collect();
        self.input(node, Input::Peers(peers))
    }

    /// The process ends. A batch that is being written may be lost, or not.
    pub(super) fn crash(&mut self, node: usize) -> Outcome {
        let crashed = &mut self.nodes[node];
        if crashed.process.take().is_none() {
            return Ok(());
        }
        self.counts.crashes += 1;
        crashed.calls.clear();
        crashed.streams.clear();
        crashed.commits.clear();
        // The next process does not know of them.
        crashed.nudged_at.clear();
        crashed.woken_at = None;
        if let Some(batch) = crashed.writing.take().filter(|_| self.random.chance(50)) {
            // On another condition than the present state it was lost in any case.
            _ = crashed.engine.commit(&batch);
        }
        self.read_durable(node)?;
        let crashed = &mut self.nodes[node];
        if self.random.chance(20) {
            crashed.skew += (self.random.below(7200) as i64 - 3600) * SECOND;
        }
        let at = self.now + self.random.below(8_000) as i64 * MS;
        self.at(at, Happens::Starts(node));
        Ok(())
    }

    pub(super) fn commit(&mut self, node: usize) -> Outcome {
        let (_, wall) = self.times(node);
        if self.nodes[node].process.is_none() {
            return Ok(());
        }
        let id = self.id(node);
        let state = |key: &RecordKey| match &self.twins {
            Some(twins) => twins.state(node, key),
            None => self.history.state(&id, key),
        };
        let request = match &mut self.regions {
            Some(regions) => regions.request(&mut self.random, node),
            None => users::request(&mut self.random, &state, (wall, self.meets)),
        };
        self.commit_request(node, request)
    }

    pub(super) fn commit_request(&mut self, node: usize, request: proto::CommitRequest) -> Outcome {
        let (now, _) = self.times(node);
        let Some(process) = &self.nodes[node].process else { return Ok(()) };
        let most = process.replica.peer_count() as u64 + 1;
        self.note(|| format!("{} commits {:?}", name(node), request.changes));
        let draft = Draft::parse(request, users::USER.into()).map_err(|refused| format!("{refused:?}"))?;
        self.next += 1;
        let (ticket, peers) = (Ticket(self.next), self.random.below(most) as usize);
        let until = now + 5 * SECOND;
        self.nodes[node].commits.insert(ticket, Sent { peers, until });
        self.input(node, Input::Commit { ticket, draft, peers, until })
    }

    /// The engine has written the batch of a node, or not.
    pub(super) fn written(&mut self, node: usize, boot: u64) -> Outcome {
        let is_troubled = self.is_troubled();
        let written = &mut self.nodes[node];
        if written.boot != boot || written.process.is_none() {
            return Ok(());
        }
        let Some(batch) = written.writing.take() else { return Ok(()) };
        let unknown = || Err(EngineError::Unknown("no answer".into()));
        let result = match self.random.below(100) {
            _ if written.is_full => Err(EngineError::Full),
            0 if is_troubled => unknown(),
            1 if is_troubled => written.engine.commit(&batch).and_then(|_| unknown()),
            _ => written.engine.commit(&batch),
        };
        self.read_durable(node)?;
        self.input(node, Input::Written(result))
    }

    /// Reads what the engine of a node has, which may have another id now (SR21).
    fn read_durable(&mut self, node: usize) -> Outcome {
        if let Some(twins) = &mut self.twins {
            return twins.durable(node, &self.nodes[node].engine);
        }
        let id = self.id(node);
        if let Some(regions) = &mut self.regions {
            return regions.durable((node, &id), &self.nodes[node].engine);
        }
        self.nodes[node].id = self.history.durable(&id, &self.nodes[node].engine)?;
        Ok(())
    }

    pub(super) fn input(&mut self, node: usize, input: Input) -> Outcome {
        let times = self.times(node);
        let Some(process) = &mut self.nodes[node].process else { return Ok(()) };
        let outputs = process.handle(input, times);
        self.check(node)?;
        for output in outputs {
            if self.is_troubled() && self.random.below(1000) == 0 {
                return self.crash(node);
            }
            self.output(node, output)?;
        }
        self.wake(node);
        Ok(())
    }

    pub(super) fn wake(&mut self, node: usize) {
        let times = self.times(node);
        let woken = &mut self.nodes[node];
        let due = woken.process.as_ref().and_then(|process| process.due(times));
        let Some(due) = due.map(|due| due.max(self.now)) else { return };
        if woken.woken_at.is_none_or(|at| at > due) {
            woken.woken_at = Some(due);
            self.at(due, Happens::Due(node));
        }
    }

    pub(super) fn output(&mut self, node: usize, output: Output) -> Outcome {
        let (id, (_, wall)) = (self.id(node), self.times(node));
        match output {
            Output::Write(batch) => {
                let writer = &mut self.nodes[node];
                if writer.writing.replace(batch).is_some() {
                    return Err(format!("{id} writes two batches at once"));
                }
                let (boot, at) = (writer.boot, self.now + self.delay(node));
                self.at(at, Happens::Written(node, boot));
            }
            Output::Published(commits) => {
                let shows =
                    |commit: &Published| (commit.revision, commit.entry.origin.clone(), commit.entry.counter);
                self.note(|| format!("{id} publishes {:?}", commits.iter().map(shows).collect::<Vec<_>>()));
                // ST41: the time of a store never goes back, though its clock may.
                let time = self.nodes[node].process.as_ref().map_or(wall, |process| process.store.time());
                match &mut self.regions {
                    Some(regions) => regions.published(node, &commits)?,
                    None if self.twins.is_none() => self.history.published(&id, &commits, wall.max(time))?,
                    None => {}
                }
            }
            Output::Call(call, address, request) => self.call(node, call, &address, request)?,
            Output::Cancel(call) => drop(self.nodes[node].calls.remove(&call)),
            Output::Answer(ticket, parts) => self.answer(node, ticket, parts),
            Output::Committed(ticket, committed, acked) => self.committed(node, ticket, &committed, acked)?,
            Output::Refused(ticket, refused) => {
                self.nodes[node].commits.remove(&ticket).unwrap();
                self.counts.refused += 1;
                self.note(|| format!("{id} refuses {:?} {}", refused.code, refused.message));
            }
            // SR51: what is under way is no difference.
            Output::Mended(_) if !self.is_exact() => {}
            Output::Mended(mended) => {
                return Err(format!("{id} mends {mended} records, and nothing was lost"));
            }
            Output::Compacted => self.counts.compactions += 1,
            Output::Raise(alarm) if self.twins.as_ref().is_some_and(|twins| twins.may_raise(&alarm)) => {}
            Output::Raise(alarm)
                if self.regions.as_ref().is_some_and(|regions| regions.may_raise(&alarm)) => {}
            Output::Raise(alarm) => return Err(format!("{id} raises {alarm:?}")),
            Output::Resynced(resynced) => {
                self.note(|| format!("{id} took a snapshot: {resynced:?}"));
                self.counts.snapshots[usize::from(resynced.has_replaced)] += 1;
                if self.is_exact() {
                    self.history.resynced(&id, &resynced)?;
                }
            }
            Output::TakesId(why) => {
                if self.twins.is_none() {
                    return Err(format!("{id} has lost its id: {why:?}"));
                }
                self.counts.taken_ids += 1;
                // Its calls begin anew.
                self.nodes[node].nudged_at.clear();
                self.note(|| format!("{id} takes another id: {why:?}"));
            }
        }
        Ok(())
    }
}
