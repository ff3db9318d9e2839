//! The lists of requests, each read once: many clients send the same list, and a SotW client
//! repeats its list with every ACK.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use ahash::RandomState;
use xds_core::subscription::Requested;

use super::SkimError;

/// The lists that the streams of a server read most recently.
#[derive(Debug, Default)]
pub struct Lists(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    hasher: RandomState,
    /// By hash; if two have the same hash, the later one replaces the earlier.
    lists: HashMap<u64, Arc<List>, RandomState>,
    /// Oldest first.
    order: VecDeque<u64>,
    /// Their estimated size in memory.
    size_bytes: usize,
}

/// A list of a request: its bytes and the names and locators in them.
#[derive(Debug, Default)]
pub(super) struct List {
    raw: Box<[u8]>,
    pub(super) requested: Requested,
}

impl List {
    /// The length of the list if `bytes` begin with it.
    pub(super) fn is_start_of(&self, bytes: &[u8]) -> Option<usize> {
        (!self.raw.is_empty() && bytes.starts_with(&self.raw)).then_some(self.raw.len())
    }

    /// Its estimated size in memory: each text is stored in `raw` and once more by itself.
    fn size_bytes(&self) -> usize {
        let locators = self.requested.locators.sets().count();
        2 * self.raw.len() + NAME_BYTES * self.requested.all_names().count() + PARAMETERS_BYTES * locators
    }

    pub(super) fn is(&self, raw: &[u8]) -> bool {
        *self.raw == *raw
    }
}

impl Lists {
    /// The list with these bytes; it is read unless it was read recently.
    pub(super) fn get(
        &self,
        raw: Cow<'_, [u8]>,
        read: impl FnOnce(&[u8]) -> Result<Requested, SkimError>,
    ) -> Result<Arc<List>, SkimError> {
        let is_kept = (KEPT_FROM_BYTES..=LARGEST_KEPT_BYTES).contains(&raw.len());
        let recent = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut hash = 0;
        if is_kept {
            let recent = recent();
            hash = recent.hasher.hash_one(&*raw);
            // Compare the bytes, because a peer could send names with equal hashes.
            if let Some(known) = recent.lists.get(&hash).filter(|known| known.is(&raw)) {
                return Ok(Arc::clone(known));
            }
        }
        let requested = read(&raw)?;
        let list = Arc::new(List { raw: raw.into_owned().into_boxed_slice(), requested });
        if is_kept {
            recent().insert(hash, &list);
        }
        Ok(list)
    }
}

impl Recent {
    fn insert(&mut self, hash: u64, list: &Arc<List>) {
        self.size_bytes += list.size_bytes();
        match self.lists.insert(hash, Arc::clone(list)) {
            Some(before) => self.size_bytes -= before.size_bytes(),
            None => self.order.push_back(hash),
        }
        while self.size_bytes > KEPT_LIMIT_BYTES
            && let Some(oldest) = self.order.pop_front()
        {
            self.size_bytes -= self.lists.remove(&oldest).map_or(0, |list| list.size_bytes());
        }
    }
}

/// A smaller list is read faster than looked up.
const KEPT_FROM_BYTES: usize = 256;

/// A larger list would push out all others.
const LARGEST_KEPT_BYTES: usize = 1 << 20;

/// The memory limit for all lists of a server.
const KEPT_LIMIT_BYTES: usize = 16 << 20;

/// The overhead of a name beside its text.
const NAME_BYTES: usize = 48;

/// The overhead of a set of parameters beside its texts.
const PARAMETERS_BYTES: usize = 400;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(_: &[u8]) -> Result<Requested, SkimError> {
        Ok(Requested::default())
    }

    fn raw(number: usize, len: usize) -> Vec<u8> {
        let mut raw = number.to_be_bytes().to_vec();
        raw.resize(len, 0);
        raw
    }

    #[test]
    fn equal_bytes_are_read_once() {
        let lists = Lists::default();
        let first = lists.get(raw(1, 300).into(), read).unwrap();
        let second = lists.get(raw(1, 300).into(), |_| panic!("it is known")).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        let other = lists.get(raw(2, 300).into(), read).unwrap();
        assert!(!Arc::ptr_eq(&first, &other));
    }

    #[test]
    fn what_is_kept_has_a_limit() {
        let lists = Lists::default();
        for number in 0..20_000 {
            lists.get(raw(number, 1000).into(), read).unwrap();
        }
        let recent = lists.0.lock().unwrap();
        assert!(recent.size_bytes <= KEPT_LIMIT_BYTES, "{}", recent.size_bytes);
        assert_eq!(recent.lists.len(), recent.order.len());
        assert_eq!(recent.size_bytes, recent.lists.len() * 2000);
        drop(recent);
        lists.get(raw(19_999, 1000).into(), |_| panic!("the newest stay")).unwrap();
    }
}
