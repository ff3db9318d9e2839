//! Limits the number of connections and handshakes, and chooses the connection that gives way to a
//! new one.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};

use crate::connections::activity::Activity;
use crate::observe::ConnectionEnd;
use crate::peer::network;

/// All connections of a server and their limits.
#[derive(Debug)]
pub(crate) struct Admission {
    limit: usize,
    address_limit: Option<usize>,
    /// The most handshakes of one address at the same time.
    address_turns: usize,
    /// The places for handshakes.
    turns: Semaphore,
    present: Mutex<AdmissionState>,
    left: Notify,
}

#[derive(Debug, Default)]
struct AdmissionState {
    count: usize,
    next: u64,
    /// The connections without a request, by number; the one that has been idle for the longest
    /// time comes first.
    idle: BTreeMap<u64, Arc<Activity>>,
    addresses: HashMap<IpAddr, Address>,
}

#[derive(Debug)]
struct Address {
    connections: usize,
    turns: Arc<Semaphore>,
}

/// One admitted connection; it leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct Admitted {
    admission: Arc<Admission>,
    activity: Arc<Activity>,
    address: Option<IpAddr>,
    turns: Option<Arc<Semaphore>>,
}

impl Admission {
    pub(crate) fn new(limit: usize, address_limit: Option<usize>, turns: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            address_limit,
            address_turns: (turns / SHARE_OF_AN_ADDRESS).max(1),
            turns: Semaphore::new(turns),
            present: Mutex::default(),
            left: Notify::new(),
        })
    }

    /// Admits a connection. At the limit, the connection that has been idle for the longest time
    /// gives way to it.
    ///
    /// # Errors
    /// All connections have requests, or its address has too many connections.
    pub(crate) fn admit(self: &Arc<Self>, address: Option<IpAddr>) -> Result<Admitted, ConnectionEnd> {
        let address = address.map(network);
        let activity = {
            let present = &mut *self.present();
            let of_address = address.and_then(|address| present.addresses.get(&address));
            let count = of_address.map_or(0, |address| address.connections);
            if self.address_limit.is_some_and(|limit| count >= limit) {
                return Err(ConnectionEnd::TooManyOfAddress);
            }
            if present.count >= self.limit {
                let (_, longest) = present.idle.pop_first().ok_or(ConnectionEnd::TooManyConnections)?;
                longest.give_way();
            }
            present.count += 1;
            if let Some(address) = address {
                let new = || Address { connections: 0, turns: Arc::new(Semaphore::new(self.address_turns)) };
                present.addresses.entry(address).or_insert_with(new).connections += 1;
            }
            let activity = Arc::new(Activity::new(Arc::clone(self), present.next));
            present.add_idle(&activity);
            activity
        };
        let turns =
            address.and_then(|address| Some(Arc::clone(&self.present().addresses.get(&address)?.turns)));
        Ok(Admitted { admission: Arc::clone(self), activity, address, turns })
    }

    /// Waits until nearly all connections that gave way have closed: each has a descriptor until
    /// then.
    pub(crate) async fn room(&self) {
        while self.present().count >= self.limit.saturating_add(LEAVING) {
            self.left.notified().await;
        }
    }

    /// Notes that the connection with this number has a request and cannot give way.
    pub(crate) fn on_busy(&self, number: u64) {
        self.present().idle.remove(&number);
    }

    /// Notes that the connection has no more requests. Returns its new number.
    pub(crate) fn on_idle(&self, activity: &Arc<Activity>) -> u64 {
        self.present().add_idle(activity)
    }

    /// No code panics while it holds the lock, so the data of a poisoned lock is consistent.
    fn present(&self) -> MutexGuard<'_, AdmissionState> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AdmissionState {
    fn add_idle(&mut self, activity: &Arc<Activity>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.idle.insert(number, Arc::clone(activity));
        number
    }
}

impl Admitted {
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Runs a handshake when a place is free. In a storm of handshakes, some then complete early
    /// instead of all completing late.
    ///
    /// If the peer does not answer in time, the handshake frees its place and goes on without it,
    /// so that silent peers delay nobody. One address cannot use all places.
    pub(crate) async fn in_turn<T>(&self, handshake: impl Future<Output = T>, begun: impl FnOnce()) -> T {
        let of_address = match &self.turns {
            Some(turns) => Some(turns.acquire().await.expect(NEVER_CLOSED)),
            None => None,
        };
        let turn = (of_address, self.admission.turns.acquire().await.expect(NEVER_CLOSED));
        begun();
        let mut handshake = std::pin::pin!(handshake);
        match tokio::time::timeout(TURN, &mut handshake).await {
            Ok(done) => done,
            Err(_) => {
                drop(turn);
                handshake.await
            }
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.activity.leave();
        let mut present = self.admission.present();
        present.count -= 1;
        if let Some(address) = self.address
            && let Some(of_address) = present.addresses.get_mut(&address)
        {
            of_address.connections -= 1;
            if of_address.connections == 0 {
                present.addresses.remove(&address);
            }
        }
        drop(present);
        self.admission.left.notify_one();
    }
}

/// One address can use this fraction of the handshake places.
const SHARE_OF_AN_ADDRESS: usize = 4;
/// How long a handshake keeps its place: a few round trips, and more than the server needs for its
/// part.
const TURN: Duration = Duration::from_millis(250);
/// How many connections that gave way may still be open.
const LEAVING: usize = 32;
const NEVER_CLOSED: &str = "the semaphore is never closed";

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::connections::activity::PhaseTimeouts;

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    const TIMEOUTS: PhaseTimeouts =
        PhaseTimeouts { handshake: Duration::from_secs(10), idle: Duration::from_secs(10) };

    #[tokio::test]
    async fn the_connection_that_is_idle_for_longest_gives_way_and_a_busy_one_never() {
        let admission = Admission::new(3, None, 4);
        let [first, second, third] = [(); 3].map(|()| admission.admit(ip("10.0.0.1")).unwrap());
        let request = first.activity().open();
        drop(second.activity().open());
        let fourth = admission.admit(ip("10.0.0.2")).unwrap();
        assert_eq!(third.activity().overdue(TIMEOUTS).await, ConnectionEnd::Displaced);
        drop(third);
        let fifth = admission.admit(ip("10.0.0.2")).unwrap();
        assert_eq!(second.activity().overdue(TIMEOUTS).await, ConnectionEnd::Displaced);
        drop(second);
        let _requests = (fourth.activity().open(), fifth.activity().open());
        assert_eq!(admission.admit(ip("10.0.0.2")).unwrap_err(), ConnectionEnd::TooManyConnections);
        drop(request);
        admission.admit(ip("10.0.0.2")).unwrap();
        drop(first);
    }

    #[tokio::test]
    async fn an_address_has_so_many_and_a_network_of_ipv6_is_one_address() {
        let admission = Admission::new(100, Some(1), 4);
        let first = admission.admit(ip("2001:db8::1")).unwrap();
        assert_eq!(admission.admit(ip("2001:db8::ffff")).unwrap_err(), ConnectionEnd::TooManyOfAddress);
        drop(admission.admit(ip("2001:db8:0:1::1")).unwrap());
        // Its last request may end after it has left.
        let request = first.activity().open();
        drop(first);
        drop(request);
        drop(admission.admit(ip("2001:db8::ffff")).unwrap());
        let present = admission.present();
        assert_eq!((present.count, present.idle.len(), present.addresses.len()), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn handshakes_that_say_nothing_lose_their_turn_and_an_address_has_a_part_of_them() {
        let admission = Admission::new(100, None, 8);
        let silent: Vec<_> = (0..20)
            .map(|_| {
                let admitted = admission.admit(ip("10.0.0.1")).unwrap();
                tokio::spawn(async move { admitted.in_turn(std::future::pending::<()>(), || ()).await })
            })
            .collect();
        tokio::task::yield_now().await;
        let began = Instant::now();
        let other = admission.admit(ip("10.0.0.2")).unwrap();
        other.in_turn(async {}, || ()).await;
        assert_eq!(began.elapsed(), Duration::ZERO, "one address takes 2 of 8 turns");
        let same = admission.admit(ip("10.0.0.1")).unwrap();
        same.in_turn(async {}, || ()).await;
        let waited = began.elapsed();
        assert!(waited <= 11 * TURN, "20 before it in twos take a turn each: {waited:?}");
        silent.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
