//! The events of our clients in a world.

use std::sync::Arc;
use std::time::Duration;

use xds_core::Cache;

use crate::agent::Access;
use crate::client::Client;
use crate::content::Kind;
use crate::invariant::Violation;
use crate::liar::lie;
use crate::link::Link;
use crate::random::Random;
use crate::refusing::{Refusal, Refusals};
use crate::script::{Deed, Home};
use crate::world::{EXCHANGES, World};

impl World {
    pub(crate) fn act_agent(&mut self, at: usize, deed: &Deed) -> Result<(), Violation> {
        let (now, agent) = (self.now, &mut self.agents[at]);
        match deed {
            Deed::Watch { target } => agent.watch(now, target)?,
            Deed::Unwatch { which } => agent.unwatch(now, *which)?,
            Deed::Look { which } => agent.look(*which),
            Deed::Say { server, count } => {
                for _ in 0..*count {
                    self.say(at, *server)?;
                }
            }
            Deed::Deliver { server, count } => {
                for _ in 0..*count {
                    self.agents[at].links[*server].iter_mut().try_for_each(|link| link.read(now))?;
                }
            }
            Deed::Take { server, count } => {
                for _ in 0..*count {
                    self.take_frame(at, *server)?;
                }
            }
            Deed::Cut { server } => agent.cut(now, *server)?,
            Deed::Access { server, access } => {
                agent.access[*server] = *access;
                if *access == Access::Refused {
                    agent.cut(now, *server)?;
                }
            }
            Deed::Exchange => self.exchange_agent(at)?,
            Deed::Lie { salt, count } => self.lie(at, *salt, *count),
            Deed::Drive => self.drive(at)?,
        }
        Ok(())
    }

    fn lie(&mut self, at: usize, salt: u64, count: usize) {
        let are_honest = self.are_liars_honest;
        let agent = &mut self.agents[at];
        let liar = agent.profile.liar.filter(|liar| agent.profile.homes[*liar] == Home::Liar);
        let Some(server) = liar.filter(|_| !are_honest) else { return };
        let Some(link) = &mut agent.links[server] else { return };
        let mut random = Random::new(salt);
        for _ in 0..count {
            let frame = lie(&mut random, link.protocol());
            self.trace.note(self.now, || {
                format!("  lie to a{at}: {:?}", crate::link::show(link.protocol(), &frame))
            });
            link.responses.push_back(frame);
        }
    }

    fn say(&mut self, at: usize, server: usize) -> Result<bool, Violation> {
        let has_said = self.agents[at].say(self.now, server)?;
        if has_said {
            self.trace.stats.requests += 1;
            let link = self.agents[at].links[server].as_ref();
            let request = link.and_then(|link| Some((link.protocol(), link.requests.back()?)));
            let (now, trace) = (self.now, &mut self.trace);
            trace.note(now, || {
                let shown = request.map(|(protocol, frame)| crate::link::show_request(protocol, frame));
                format!("  a{at} to s{server}: {}", shown.unwrap_or_default())
            });
        }
        Ok(has_said)
    }

    fn take_frame(&mut self, at: usize, server: usize) -> Result<bool, Violation> {
        if self.agents[at].take_end(self.now, server)? {
            self.note_end(format!("a{at} s{server}"));
            return Ok(true);
        }
        let taken = self.agents[at].take(self.now, server)?;
        if let Some(is_accepted) = taken {
            self.trace.stats.count_verdict(is_accepted);
            let verdict = if is_accepted { "accepts" } else { "rejects" };
            self.trace.note(self.now, || format!("  a{at} {verdict} what came from s{server}"));
        }
        Ok(taken.is_some())
    }

    /// A client does everything that is due: timers, connecting, leaving.
    pub(crate) fn drive(&mut self, at: usize) -> Result<(), Violation> {
        for _ in 0..EXCHANGES {
            let Some(server) = self.agents[at].drive(self.now)? else { return Ok(()) };
            let profile = &self.agents[at].profile;
            let (protocol, window) = (profile.protocols[server], profile.window);
            let name = format!("a{at}");
            let link = match self.server_cache(at, server) {
                Some(cache) => {
                    let refusals = self.refusals_of(profile.homes[server]);
                    Link::new(&name, (protocol, window), &cache, &refusals, self.now)
                }
                None => Link::to_liar(protocol, self.now),
            };
            self.trace.note(self.now, || format!("  a{at} connects to s{server}"));
            self.agents[at].open(self.now, server, link)?;
        }
        Err(Violation::new("quiet", format!("a{at} continues to connect")))
    }

    /// A server ended this stream because of a type.
    pub(crate) fn note_end(&mut self, stream: String) {
        self.trace.stats.refused += 1;
        self.trace.note(self.now, || format!("  {stream}: the server ended the stream"));
        *self.ends.entry(stream).or_default() += 1;
    }

    /// The types that a server refuses.
    pub(crate) fn refusals_of(&self, home: Home) -> Refusals {
        match home {
            Home::Replica(replica) => self.replicas[replica].refusals.clone(),
            Home::Liar => Refusals::new(),
        }
    }

    /// A replica is replaced by another release, so its streams to our own clients and to proxies end.
    pub(crate) fn refuse(
        &mut self,
        replica: usize,
        kind: Kind,
        refusal: Option<Refusal>,
    ) -> Result<(), Violation> {
        let refusals = &mut self.replicas[replica].refusals;
        let before = refusals.remove(&kind);
        refusals.extend(refusal.map(|refusal| (kind, refusal)));
        if before == refusal { Ok(()) } else { self.cut_streams_of(Home::Replica(replica)) }
    }

    pub(crate) fn drive_all(&mut self) -> Result<(), Violation> {
        (0..self.agents.len()).try_for_each(|at| self.drive(at))?;
        (0..self.relays.len()).try_for_each(|at| self.drive_relay(at))
    }

    /// The cache that a server of a client serves; `None` for a lying server.
    pub(crate) fn server_cache(&self, at: usize, server: usize) -> Option<Arc<Cache>> {
        match self.agents[at].profile.homes[server] {
            Home::Replica(replica) => Some(Arc::clone(&self.replicas[replica].cache)),
            Home::Liar if self.are_liars_honest => Some(Arc::clone(&self.truth)),
            Home::Liar => None,
        }
    }

    /// Lets time pass. Clients do everything that is due at its time.
    pub(crate) fn pass(&mut self, time: Duration) -> Result<(), Violation> {
        let end = self.now + time;
        for _ in 0..EXCHANGES * 100 {
            let of_agents = self.agents.iter().filter_map(|agent| agent.next_deadline());
            let of_relays = self.relays.iter().filter_map(|relay| relay.next_deadline());
            let prompt = self.clients.iter().filter(|client| client.profile.is_prompt);
            let of_streams = prompt.flat_map(Client::next_deadline);
            let of_rollouts = self.replicas.iter().filter_map(|of| of.rollouts.as_ref()?.next_deadline());
            let due = of_agents.chain(of_relays).chain(of_streams).chain(of_rollouts).min();
            let Some(due) = due.filter(|due| *due <= end) else {
                self.now = end;
                self.roll_out();
                self.drive_all()?;
                return self.attend();
            };
            self.now = self.now.max(due);
            self.roll_out();
            self.drive_all()?;
            self.attend()?;
        }
        Err(Violation::new("quiet", "a client always has something due"))
    }

    /// A replica stops, so its streams end.
    pub(crate) fn cut_streams_of(&mut self, home: Home) -> Result<(), Violation> {
        let now = self.now;
        for agent in &mut self.agents {
            for server in 0..agent.links.len() {
                if agent.profile.homes[server] == home && agent.links[server].is_some() {
                    agent.cut(now, server)?;
                }
            }
        }
        let mut relays = self.relays.iter_mut();
        while let Some(relay) = relays.find(|relay| Home::Replica(relay.profile.home) == home) {
            relay.cut(now);
        }
        Ok(())
    }

    /// On each stream of a client the server sends one response, if it has one.
    pub(crate) fn serve_agent(&mut self, at: usize) -> Result<bool, Violation> {
        let mut has_sent = false;
        for server in 0..self.agents[at].links.len() {
            let Some(link) = &mut self.agents[at].links[server] else { continue };
            if let Some(frame) = link.serve(self.now)? {
                self.trace.stats.responses += 1;
                let protocol = link.protocol();
                self.trace.note(self.now, || {
                    format!("  s{server} to a{at}: {}", crate::link::show(protocol, &frame))
                });
                has_sent = true;
            }
        }
        Ok(has_sent)
    }

    /// A client and its servers exchange messages until no message is left.
    pub(crate) fn exchange_agent(&mut self, at: usize) -> Result<(), Violation> {
        for _ in 0..EXCHANGES {
            self.drive(at)?;
            if !self.exchange_once(at)? {
                return Ok(());
            }
        }
        Err(Violation::new("quiet", format!("a{at} and its servers do not come to rest")))
    }

    /// One round of such an exchange; `false` if there was no message. No stream opens or closes.
    pub(crate) fn exchange_once(&mut self, at: usize) -> Result<bool, Violation> {
        let mut is_quiet = true;
        for server in 0..self.agents[at].links.len() {
            for count in 0.. {
                if !self.say(at, server)? {
                    break;
                }
                is_quiet = false;
                if count > EXCHANGES {
                    return Err(Violation::new("quiet", format!("a{at} always has a request to send")));
                }
            }
            while let Some(link) =
                self.agents[at].links[server].as_mut().filter(|link| !link.requests.is_empty())
            {
                link.read(self.now)?;
            }
        }
        while self.serve_agent(at)? {
            is_quiet = false;
            for server in 0..self.agents[at].links.len() {
                while self.take_frame(at, server)? {}
            }
        }
        for server in 0..self.agents[at].links.len() {
            while self.take_frame(at, server)? {
                is_quiet = false;
            }
        }
        Ok(!is_quiet)
    }
}
