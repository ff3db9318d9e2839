//! One task per stream: hands requests to the machine and its responses to the transport. It decides nothing.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tonic::{Code, Status, Streaming};
use tracing::{debug, info, warn};
use xds_core::server::{DeltaStream, Next, Response, Service, SotwStream, StreamError, TypeReport, Verdict};
use xds_core::{Cache, Watch};

use crate::clients::{Clients, Place};
use crate::frame::Outbound;
use crate::observe::Event;
use crate::roster::{Listed, Listing, Roster};
use crate::service::ServerConfig;
use crate::skim::{Client, Skimmer};

/// A stream with its machine.
#[derive(Debug)]
pub(crate) struct Driver {
    machine: Machine,
    clients: Arc<Clients>,
    place: Option<Place>,
    skimmer: Skimmer,
    watch: Arc<Watch>,
    config: Arc<ServerConfig>,
    start: Instant,
    /// When it ends though nothing is wrong (G14).
    ends_at: Option<Instant>,
    roster: Arc<Roster>,
    label: Arc<str>,
    /// Its place in the roster, once the first request came.
    listing: Option<Listing>,
    /// Who wants to know what the client has (C20).
    reports: mpsc::Receiver<oneshot::Sender<Vec<TypeReport>>>,
    /// What the roster sends on.
    asks: mpsc::Sender<oneshot::Sender<Vec<TypeReport>>>,
}

/// Which protocol a stream speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Sotw,
    Delta,
}

#[derive(Debug)]
enum Machine {
    Sotw(SotwStream),
    Delta(DeltaStream),
}

impl Driver {
    pub(crate) fn new(
        cache: &Arc<Cache>,
        service: Service,
        protocol: Protocol,
        config: &Arc<ServerConfig>,
        clients: &Arc<Clients>,
        roster: &Arc<Roster>,
    ) -> Self {
        let watch = cache.watch();
        let label = label(&service, protocol).into();
        let type_url = match &service {
            Service::Aggregated => String::new(),
            Service::Single(type_url) => type_url.as_str().to_owned(),
        };
        let stream = config.stream.clone();
        let machine = match protocol {
            Protocol::Sotw => Machine::Sotw(SotwStream::new(Arc::clone(&watch), service, stream)),
            Protocol::Delta => Machine::Delta(DeltaStream::new(Arc::clone(&watch), service, stream)),
        };
        let skimmer = Skimmer::new(type_url, Arc::clone(&config.parameters));
        let clients = Arc::clone(clients);
        let (config, start) = (Arc::clone(config), Instant::now());
        let ends_at = config.stream_age.map(|age| start + jittered(age));
        let (asks, reports) = mpsc::channel(1);
        let roster = Arc::clone(roster);
        Self {
            machine,
            clients,
            place: None,
            skimmer,
            watch,
            config,
            start,
            ends_at,
            roster,
            label,
            listing: None,
            reports,
            asks,
        }
    }

    /// Runs until the client or the server ends the stream.
    pub(crate) async fn run(
        mut self,
        mut inbound: Streaming<Bytes>,
        outbound: mpsc::Sender<Outbound>,
        mut stopping: watch::Receiver<bool>,
    ) {
        let status = self.drive(&mut inbound, &outbound, &mut stopping).await;
        let client = self.client();
        debug!(node = client.id, cluster = client.cluster, code = ?status.code(), "stream ended");
        self.tell(Event::Ended { code: status.code(), after: self.now() });
        // A client that no longer reads must not keep its place in the cache's index.
        drop((self, inbound));
        // Fails when the client is gone, and then nobody needs it.
        _ = outbound.send(Outbound::End(status)).await;
    }

    async fn drive(
        &mut self,
        inbound: &mut Streaming<Bytes>,
        outbound: &mpsc::Sender<Outbound>,
        stopping: &mut watch::Receiver<bool>,
    ) -> Status {
        let (mut is_due, mut is_open) = (false, true);
        let mut until = None;
        let mut requests_in_a_row = 0;
        loop {
            tokio::select! {
                biased; // requests before pushes; after some in a row pushes get a turn
                frame = inbound.message(), if is_open && requests_in_a_row < REQUESTS_IN_A_ROW => match frame {
                    Ok(Some(frame)) => {
                        if let Err(status) = self.on_frame(&frame) {
                            return status;
                        }
                        requests_in_a_row += 1;
                        is_due = true;
                    }
                    // The client has said all it will say, and may still wait for the answer.
                    Ok(None) => (is_open, is_due) = (false, true),
                    // G9: what tonic calls out of range is a request over the limit, which its text names.
                    Err(status) if status.code() == Code::OutOfRange => {
                        self.tell(Event::RequestTooLarge);
                        return Status::resource_exhausted(status.message());
                    }
                    Err(status) => return status,
                },
                _ = stopping.wait_for(|stopping| *stopping) => {
                    // G14: the client comes back to another server, or to this one when it is up again.
                    return Status::unavailable("the server is shutting down");
                }
                permit = outbound.reserve(), if is_due => match permit {
                    // Asked only when there is room, so that what is sent is the newest and nothing queues up.
                    Ok(permit) => match self.next() {
                        Next::Send(response) => {
                            self.check_size(&response);
                            self.tell(Event::Sent(&response));
                            permit.send(Outbound::Response(response));
                        }
                        Next::Wait { .. } if !is_open => return Status::ok(""),
                        Next::Wait { until: time } => (is_due, until) = (false, time),
                        Next::Close(error) => return self.close(&error),
                    },
                    Err(_) => return Status::cancelled("the client went away"),
                },
                () = self.watch.woken() => (is_due, requests_in_a_row) = (true, 0),
                () = sleep_until(self.start + until.unwrap_or_default()), if until.is_some() => {
                    (is_due, until) = (true, None);
                }
                // G14: the client comes back at once, perhaps to another server.
                () = sleep_until(self.ends_at.unwrap_or(self.start)), if self.ends_at.is_some() => {
                    return Status::ok("the stream reached its maximal age");
                }
                // G11: also while a client reads nothing, whose stream is kept.
                Some(asker) = self.reports.recv() => self.report(asker),
                () = tokio::task::yield_now(), if requests_in_a_row >= REQUESTS_IN_A_ROW => requests_in_a_row = 0,
                () = outbound.closed() => return Status::cancelled("the client went away"),
            }
        }
    }

    fn on_frame(&mut self, frame: &[u8]) -> Result<(), Status> {
        let now = self.now();
        let is_new = self.skimmer.client().is_none();
        let malformed = |error: crate::skim::SkimError| Status::internal(error.to_string());
        let (nonce, verdict) = match &mut self.machine {
            Machine::Sotw(stream) => {
                let request = self.skimmer.sotw(frame).map_err(malformed)?;
                if is_new && let Some(client) = self.skimmer.client() {
                    self.watch.name_client(client.name());
                    stream.on_node(client.parameters.clone());
                    if self.config.honours_ttl(client) {
                        stream.on_ttl_support();
                    }
                    self.place = self.clients.join(client, |group| stream.join(group));
                }
                (request.response_nonce, stream.on_request(now, request))
            }
            Machine::Delta(stream) => {
                let request = self.skimmer.delta(frame).map_err(malformed)?;
                if is_new && let Some(client) = self.skimmer.client() {
                    self.watch.name_client(client.name());
                    stream.on_node(client.parameters.clone());
                    if self.config.honours_ttl(client) {
                        stream.on_ttl_support();
                    }
                    self.place = self.clients.join(client, |group| stream.join(group));
                }
                (request.response_nonce, stream.on_request(request))
            }
        };
        if is_new && let Some(Client { id, cluster, parameters, user_agent, .. }) = self.skimmer.client() {
            debug!(node = id, cluster, %parameters, user_agent, "stream opened");
            self.tell(Event::Opened);
        }
        if is_new {
            self.list();
        }
        if self.skimmer.take_node_change() {
            debug!(node = self.client().id, "a request brought another node, which changes nothing");
            self.tell(Event::NodeChanged);
        }
        match (nonce, verdict.map_err(|error| self.close(&error))?) {
            (_, Some(verdict)) => {
                self.tell(Event::Answered(&verdict));
                self.log(&verdict);
            }
            // D5: it blocks nothing and says nothing of any response.
            (Some(nonce), None) => {
                debug!(node = self.client().id, %nonce, "the nonce is not that of a response that waits");
                self.tell(Event::StaleNonce);
            }
            (None, None) => {}
        }
        Ok(())
    }

    fn next(&mut self) -> Next {
        let now = self.now();
        // Loaded after the last request was handed over, as the machines ask for.
        let snapshot = self.watch.cache().snapshot();
        match &mut self.machine {
            Machine::Sotw(stream) => stream.next(now, &snapshot),
            Machine::Delta(stream) => stream.next(now, &snapshot),
        }
    }

    /// C20: from the first request on it is known whose stream it is, unless that does not say.
    fn list(&mut self) {
        let client = self.client();
        if self.listing.is_none() || self.skimmer.client().is_some() {
            let (label, reports) = (Arc::clone(&self.label), self.asks.clone());
            let stream = Listed { client: client.name(), user_agent: client.user_agent, label, reports };
            self.listing = Some(self.roster.list(stream));
        }
    }

    fn report(&mut self, asker: oneshot::Sender<Vec<TypeReport>>) {
        let snapshot = self.watch.cache().snapshot();
        let report = match &mut self.machine {
            Machine::Sotw(stream) => stream.report(&snapshot),
            Machine::Delta(stream) => stream.report(&snapshot),
        };
        // Who asked may have given up.
        _ = asker.send(report);
    }

    fn log(&self, verdict: &Verdict) {
        let Client { id, cluster, .. } = self.client();
        match verdict {
            Verdict::Acked { type_url, nonce } => {
                debug!(node = id, r#type = type_url.message_name(), %nonce, "ACK");
            }
            // G15: the words of the client are for people, and it may send many.
            Verdict::Nacked { type_url, nonce, detail } => {
                let detail = shortened(detail);
                let r#type = type_url.message_name();
                warn!(node = id, cluster, r#type, %nonce, detail, "NACK: the client rejected configuration");
            }
        }
    }

    fn tell(&self, event: Event<'_>) {
        if let Some(observer) = &self.config.observer {
            observer.on_event(&self.client(), event);
        }
    }

    /// G10: what cannot be parted is sent as it is, and most clients refuse it.
    fn check_size(&self, response: &Response) {
        let size_bytes: usize = response.bodies.iter().map(|body| body.len()).sum();
        if size_bytes > COMMON_LIMIT_BYTES {
            let r#type = response.type_url.message_name();
            warn!(
                node = self.client().id,
                r#type, size_bytes, "a response exceeds the 4 MiB that most clients accept"
            );
        }
    }

    fn close(&self, error: &StreamError) -> Status {
        self.tell(Event::Refused(error));
        close_status(error)
    }

    fn client(&self) -> Client {
        self.skimmer.client().cloned().unwrap_or_default()
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

/// What a stream is for.
fn label(service: &Service, protocol: Protocol) -> String {
    let protocol = match protocol {
        Protocol::Sotw => "SotW",
        Protocol::Delta => "delta",
    };
    match service {
        Service::Aggregated => format!("ADS {protocol}"),
        Service::Single(type_url) => format!("{} {protocol}", type_url.message_name()),
    }
}

/// The one place where a machine's error becomes a gRPC status.
fn close_status(error: &StreamError) -> Status {
    let text = error.to_string();
    let status = match error {
        StreamError::TooManyNames { .. }
        | StreamError::TooManyParameters { .. }
        | StreamError::TooManyTypes { .. } => Status::resource_exhausted(text),
        StreamError::FellBehind { .. } => Status::unavailable(text),
        _ => Status::invalid_argument(text),
    };
    info!(%error, "closing a stream");
    status
}

/// Up to a tenth more or less, so that streams that were opened together do not end together.
fn jittered(age: Duration) -> Duration {
    let random = RandomState::new().hash_one(age);
    let tenths = (random % 2001) as f64 / 10_000.0;
    age.mul_f64(0.9 + tenths)
}

/// The first part of a text, cut between characters.
fn shortened(text: &str) -> &str {
    let end = (0..=DETAIL_LIMIT_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or_default()]
}

/// What clients accept in one message unless they are told otherwise.
const COMMON_LIMIT_BYTES: usize = 4 << 20;

/// Requests read before a push gets its turn.
const REQUESTS_IN_A_ROW: usize = 64;

/// Of what a client says about a rejected response, this much is logged.
const DETAIL_LIMIT_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g14_the_maximal_age_is_spread_by_a_tenth() {
        let age = Duration::from_secs(100);
        for _ in 0..100 {
            let jittered = jittered(age).as_secs();
            assert!((90..=110).contains(&jittered), "{jittered}");
        }
    }

    #[test]
    fn g15_the_words_of_a_client_are_cut_between_characters() {
        assert_eq!(shortened("bad"), "bad");
        let long = "é".repeat(DETAIL_LIMIT_BYTES);
        assert_eq!(shortened(&long).len(), DETAIL_LIMIT_BYTES);
        let odd = format!("x{long}");
        assert_eq!(shortened(&odd).len(), DETAIL_LIMIT_BYTES - 1);
    }
}
