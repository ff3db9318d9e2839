//! The rows of a store in etcd, beside transactions that another client of etcd makes.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;
use cluster::Cluster;
use prost::Message;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use xds_store::engine::{Batch, Engine, EtcdAccess, EtcdEngine};
use xds_store::store::{Action, Event, Ticket};

use crate::{COMMITS, Driven, TYPE, draft, median, rate};

#[expect(dead_code, reason = "the tests stop and pause it")]
#[path = "../../tests/etcd/server.rs"]
mod cluster;

/// Nothing if etcd is not installed.
pub(crate) fn run(rounds: usize) {
    let Some(cluster) = Cluster::start(1, &["--quota-backend-bytes", "8000000000"]) else { return };
    for writers in [1, 64] {
        beside(&cluster, writers, rounds);
    }
}

/// As many writers of a store as clients of etcd, each of which waits for its answer.
fn beside(cluster: &Cluster, writers: u64, rounds: usize) {
    let address = cluster.address(&format!("bench-{writers}")).parse().unwrap();
    let engine = EtcdEngine::new(cluster.runtime(), address, &EtcdAccess::default()).unwrap();
    while engine.view().is_err() {}
    let mut store = Driven::new(engine);
    let raw = Raw::connect(cluster, writers);
    let commits = COMMITS * writers.min(10);
    let mut times = [const { Vec::new() }; 3];
    for round in 0..rounds as u64 {
        let first = round * commits;
        let begun = Instant::now();
        raw.transact((first..first + commits).map(|at| vec![put(at)]).collect());
        times[0].push(begun.elapsed());
        let begun = Instant::now();
        let batches = closed(&mut store, writers, first..first + commits);
        times[1].push(begun.elapsed());
        // One after another, as the store writes them.
        let same = batches.iter().map(|batch| raw.of_batch(batch)).collect();
        let begun = Instant::now();
        raw.alone().transact(same);
        times[2].push(begun.elapsed());
    }
    let [raw, store, same] = times.map(|times| median(times) / u32::try_from(commits).unwrap());
    if writers == 1 {
        rate("etcd, 1 writer: a commit; a transaction of one put", store, raw, ">= 0.8");
        rate("etcd, 1 writer: a commit; the same keys and bytes", store, same, ">= 0.9");
    } else {
        rate("etcd, 64 writers: a commit; 64 clients that put", store, raw, ">= 0.5");
        rate("etcd, 64 writers: a commit; the same keys and bytes", store, same, "");
    }
}

/// Makes these commits, with one that waits for each writer; returns what was written.
fn closed(store: &mut Driven<EtcdEngine>, writers: u64, numbers: std::ops::Range<u64>) -> Vec<Batch> {
    store.round = store.round.wrapping_add(1);
    let (reader, mut actions) = (store.engine.reader(), VecDeque::new());
    let mut left = numbers;
    let mut batches = Vec::new();
    let mut next = |store: &mut Driven<EtcdEngine>, actions: &mut VecDeque<Action>| {
        if let Some(at) = left.next() {
            let draft = draft(at, store.round);
            actions.extend(store.store.step(Event::Commit(Ticket(at), draft), 0, &*reader));
        }
    };
    (0..writers).for_each(|_| next(store, &mut actions));
    while let Some(action) = actions.pop_front() {
        match action {
            Action::Write(batch) => {
                let written = store.engine.commit(&batch);
                batches.push(batch);
                actions.extend(store.store.step(Event::Written(written), 0, &*store.engine.reader()));
            }
            Action::Answer(_, answer) => {
                answer.unwrap();
                next(store, &mut actions);
            }
            Action::Publish(_)
            | Action::Merged(..)
            | Action::Staged(..)
            | Action::TookId(..)
            | Action::AnswerRegion(..)
            | Action::CallRegion { .. }
            | Action::Compacted(..) => {}
        }
    }
    batches
}

/// Clients of etcd, each with a connection of its own.
struct Raw<'a> {
    cluster: &'a Cluster,
    clients: Vec<Grpc<Channel>>,
}

impl<'a> Raw<'a> {
    fn connect(cluster: &'a Cluster, clients: u64) -> Self {
        let address = format!("http://127.0.0.1:{}", cluster.members[0].port);
        let connect = |_| {
            let endpoint = Endpoint::from_shared(address.clone()).unwrap();
            Grpc::new(cluster.runtime().block_on(endpoint.connect()).unwrap())
        };
        Self { cluster, clients: (0..clients).map(connect).collect() }
    }

    fn alone(&self) -> Self {
        Self { cluster: self.cluster, clients: vec![self.clients[0].clone()] }
    }

    /// Puts what a batch of the store has, without its condition.
    fn of_batch(&self, batch: &Batch) -> Vec<Put> {
        let writes = batch.writes.iter();
        let put = |(key, value): &(Bytes, Option<Bytes>)| Put {
            key: [b"same/", &**key].concat().into(),
            value: value.clone().unwrap(),
        };
        writes.map(put).collect()
    }

    /// Each client makes its part of the transactions, one after another.
    fn transact(&self, transactions: Vec<Vec<Put>>) {
        let mut parts = vec![Vec::new(); self.clients.len()];
        for (number, puts) in transactions.into_iter().enumerate() {
            parts[number % self.clients.len()].push(puts);
        }
        let run = |(client, part): (&Grpc<Channel>, Vec<Vec<Put>>)| {
            let mut client = client.clone();
            async move {
                for puts in part {
                    transact(&mut client, puts).await;
                }
            }
        };
        let runtime = self.cluster.runtime();
        let tasks: Vec<_> = self.clients.iter().zip(parts).map(|part| runtime.spawn(run(part))).collect();
        tasks.into_iter().for_each(|task| runtime.block_on(task).unwrap());
    }
}

async fn transact(client: &mut Grpc<Channel>, puts: Vec<Put>) {
    let success = puts.into_iter().map(|put| RequestOp { put: Some(put) }).collect();
    let codec = tonic_prost::ProstCodec::<Txn, TxnResponse>::default();
    let path = http::uri::PathAndQuery::from_static("/etcdserverpb.KV/Txn");
    client.ready().await.unwrap();
    let answer = client.unary(tonic::Request::new(Txn { success }), path, codec).await.unwrap();
    assert!(answer.into_inner().succeeded);
}

fn put(at: u64) -> Put {
    Put { key: format!("raw/{TYPE} name-{at}").into(), value: Bytes::from_static(&[7; 1024]) }
}

#[derive(Clone, PartialEq, Message)]
struct Txn {
    #[prost(message, repeated, tag = "2")]
    success: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
struct RequestOp {
    #[prost(message, optional, tag = "2")]
    put: Option<Put>,
}

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "bytes", tag = "1")]
    key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
struct TxnResponse {
    #[prost(bool, tag = "2")]
    succeeded: bool,
}
