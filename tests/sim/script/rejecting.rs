//! Worlds in which clients reject much, and the content gives them reasons to: bad payloads beside good
//! ones, and addresses that move from one listener to another. The other worlds are the same as without
//! this file.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Action, Change, Kind, Rejects, Script, Step};
use crate::content::{MORE_NAMES, NAMES, name_of};
use crate::random::Random;

impl Script {
    /// In every fourth world clients reject much.
    pub(super) fn write_rejections(&mut self, random: &mut Random) {
        // A proxy behind another one that restarts may send a full state that lacks what exists (seed 807).
        if !random.chance(25) || self.relays.len() > 1 {
            return;
        }
        for client in self.clients.iter_mut().filter(|client| !client.is_prompt) {
            client.rejects = random.pick(&[Rejects::Envoy, Rejects::Envoy, Rejects::Bad, Rejects::Whole]);
        }
        let mut writer = RejectionWriter {
            random: Random::new(random.next()),
            clients: self.clients.len(),
            number: 2_000,
            addresses: [0; MORE_NAMES],
            last_address: 0,
            bad: BTreeSet::new(),
            steps: Vec::new(),
        };
        for (at, mut step) in std::mem::take(&mut self.steps).into_iter().enumerate() {
            writer.give_addresses(&mut step.action);
            writer.steps.push(step);
            if at == 0 {
                writer.begin();
            } else if writer.random.chance(20) {
                writer.scene();
            }
        }
        self.steps = writer.steps;
        for step in &mut self.steps {
            if let Action::Ask { client, asked, .. } = &mut step.action
                && self.clients[*client].rejects == Rejects::Envoy
            {
                // Envoy subscribes without locators.
                *asked = asked.iter().map(|(name, _)| (name.clone(), None)).collect();
            }
        }
    }
}

/// Adds commits that clients reject.
struct RejectionWriter {
    random: Random,
    clients: usize,
    /// A counter, so that all contents differ.
    number: i32,
    /// The address of each listener.
    addresses: [i32; MORE_NAMES],
    last_address: i32,
    /// The names whose newest content is bad.
    bad: BTreeSet<(Kind, usize)>,
    steps: Vec<Step>,
}

impl RejectionWriter {
    /// Listeners of the other commits have their addresses, too.
    fn give_addresses(&self, action: &mut Action) {
        if let Action::Commit { changes, .. } = action {
            for change in changes.iter_mut().filter(|change| change.kind == Kind::Listener) {
                change.address = self.addresses[change.name];
            }
        }
    }

    /// Each listener has an address of its own, and the clients subscribe to more names.
    fn begin(&mut self) {
        let names: Vec<_> = (0..MORE_NAMES).collect();
        let changes = names.iter().map(|name| self.moved(*name)).collect();
        self.commit(changes);
        for client in 0..self.clients {
            for kind in Kind::ALL {
                if self.random.chance(50) {
                    self.ask(client, kind);
                }
            }
        }
        self.settle();
    }

    fn scene(&mut self) {
        match self.random.below(100) {
            0..45 => {
                let kind = self.random.pick(&Kind::ALL);
                let changes = self.partly_bad(kind);
                self.commit(changes);
            }
            45..75 => self.move_addresses(),
            75..90 => self.correct(),
            _ => {
                let (client, kind) = (self.random.below(self.clients), self.random.pick(&Kind::ALL));
                self.ask(client, kind);
            }
        }
        if self.random.chance(60) {
            self.settle();
        }
    }

    /// Several names of a type change in one commit, and one or two of them are bad.
    fn partly_bad(&mut self, kind: Kind) -> Vec<Change> {
        let count = 2 + self.random.below(MORE_NAMES - 1);
        let first = self.random.below(MORE_NAMES);
        let names: Vec<_> = (first..first + count).map(|name| name % MORE_NAMES).collect();
        let bad: Vec<_> = (0..1 + self.random.below(2)).map(|_| self.random.pick(&names)).collect();
        let mut changes = Vec::new();
        for name in names {
            let mut change = self.change(kind, name);
            change.is_bad = bad.contains(&name);
            if !change.is_bad && self.random.chance(15) {
                change.scheme = 0;
            }
            if change.is_bad {
                self.bad.insert((kind, name));
            } else {
                self.bad.remove(&(kind, name));
            }
            changes.push(change);
        }
        changes
    }

    /// Most bad contents of one type are corrected, others stay.
    fn correct(&mut self) {
        let Some((kind, _)) = self.bad.first().copied() else { return };
        let of_kind: Vec<_> = self.bad.iter().copied().filter(|(of, _)| *of == kind).collect();
        let mut changes = Vec::new();
        for (kind, name) in of_kind {
            if self.random.chance(70) {
                self.bad.remove(&(kind, name));
                changes.push(self.change(kind, name));
            }
        }
        self.commit(changes);
    }

    /// Addresses move from one listener to another: at once, in either order, as a swap, in a chain,
    /// or to a second listener while the first one keeps it.
    fn move_addresses(&mut self) {
        let from = self.random.below(MORE_NAMES);
        let to = (from + 1 + self.random.below(MORE_NAMES - 1)) % MORE_NAMES;
        let (freed, other) = (self.addresses[from], self.addresses[to]);
        match self.random.below(6) {
            0 => {
                let changes = vec![self.gone(from), self.with_address(to, freed)];
                self.commit(changes);
            }
            1 => {
                let changes = vec![self.moved(from), self.with_address(to, freed)];
                self.commit(changes);
            }
            2 => {
                let (late, early) = (self.with_address(to, freed), self.moved(from));
                let mut commits = [late, early];
                if self.random.chance(50) {
                    commits.reverse();
                }
                for change in commits {
                    self.commit(vec![change]);
                    self.settle();
                }
            }
            3 => {
                let changes = vec![self.with_address(from, other), self.with_address(to, freed)];
                self.commit(changes);
            }
            4 => {
                let third = (to + 1) % MORE_NAMES;
                let mut changes = vec![self.moved(from), self.with_address(to, freed)];
                if third != from {
                    changes.push(self.with_address(third, other));
                }
                self.commit(changes);
            }
            _ => {
                let changes = vec![self.with_address(to, freed)];
                self.commit(changes);
            }
        }
    }

    /// A good new content of a name.
    fn change(&mut self, kind: Kind, name: usize) -> Change {
        self.number += 1;
        Change {
            kind,
            name,
            scheme: 1,
            number: self.number,
            is_bad: false,
            address: if kind == Kind::Listener { self.addresses[name] } else { 0 },
            is_varied: false,
            clusters: self.random.below(1 << NAMES) & self.random.below(1 << NAMES),
        }
    }

    fn with_address(&mut self, name: usize, address: i32) -> Change {
        self.addresses[name] = address;
        self.bad.remove(&(Kind::Listener, name));
        self.change(Kind::Listener, name)
    }

    /// A listener gets an address that none had before.
    fn moved(&mut self, name: usize) -> Change {
        self.last_address += 1;
        self.with_address(name, self.last_address)
    }

    /// A listener is removed; later it comes back with another address.
    fn gone(&mut self, name: usize) -> Change {
        Change { scheme: 0, ..self.moved(name) }
    }

    /// A client subscribes to the wildcard, or to most names.
    fn ask(&mut self, client: usize, kind: Kind) {
        let names = (0..MORE_NAMES).filter(|_| self.random.chance(80));
        let mut asked: BTreeSet<_> = names.map(|name| (Some(name_of(name)), None)).collect();
        if kind.known().legacy_wildcard && self.random.chance(50) {
            asked = [(None, None)].into();
        }
        self.push(Action::Ask { client, kind, asked });
    }

    /// Clients answer, time passes, and they answer again.
    fn settle(&mut self) {
        for client in 0..self.clients {
            self.push(Action::Exchange { client });
        }
        if self.random.chance(50) {
            let time = self.random.pick(&[SOON, LATER]);
            self.push(Action::Pass { time });
            for client in 0..self.clients {
                self.push(Action::Exchange { client });
            }
        }
    }

    fn commit(&mut self, changes: Vec<Change>) {
        if !changes.is_empty() {
            self.push(Action::Commit { changes, lags: false });
        }
    }

    fn push(&mut self, action: Action) {
        let serves = self.random.chance(75);
        self.steps.push(Step { action, serves });
    }
}

/// Longer than a server waits for an answer before it sends the next part.
const SOON: Duration = Duration::from_millis(1_100);

/// Longer than the first waits before a rejected resource is sent again.
const LATER: Duration = Duration::from_secs(5);
