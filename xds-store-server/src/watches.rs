//! The watches that are open, and their limits (ST42).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tonic::Status;

use crate::status::exceeds;

/// How many watches clients have open.
#[derive(Debug)]
pub(crate) struct Watches {
    limit: usize,
    /// By the identity of the client.
    open: Mutex<BTreeMap<String, usize>>,
}

/// The place of a watch, until this is dropped.
#[derive(Debug)]
pub(crate) struct WatchPlace {
    watches: Arc<Watches>,
    client: String,
}

impl Watches {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, open: Mutex::default() })
    }

    /// A place for one more watch of a client.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if there are too many, or too many of this client: others need some, too.
    pub(crate) fn open(self: &Arc<Self>, client: String) -> Result<WatchPlace, Status> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = open.values().sum();
        if all >= self.limit {
            return Err(exceeds("watches", OPTION, self.limit, all + 1));
        }
        let (of_client, share) =
            (open.get(&client).copied().unwrap_or_default(), self.limit.div_ceil(SHARES));
        if of_client >= share {
            return Err(exceeds("watches of one client", OPTION, share, of_client + 1));
        }
        open.insert(client.clone(), of_client + 1);
        drop(open);
        Ok(WatchPlace { watches: Arc::clone(self), client })
    }
}

impl Drop for WatchPlace {
    fn drop(&mut self) {
        let mut open = self.watches.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.client);
            }
        }
    }
}

const OPTION: &str = "--watch-limit";
/// One client has at most this part of all watches.
const SHARES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn st42_one_client_has_at_most_a_quarter_of_the_watches() {
        let watches = Watches::new(8);
        let open = |client: &str| watches.open(client.to_owned());
        let mut of_a = vec![open("a").unwrap(), open("a").unwrap()];
        let refused = open("a").unwrap_err();
        assert_eq!(
            refused.message(),
            "3 watches of one client exceed the limit of 2; --watch-limit changes it"
        );
        let others: Vec<_> = ["b", "b", "c", "c", "d", "d"].into_iter().map(|of| open(of).unwrap()).collect();
        assert_eq!(
            open("e").unwrap_err().message(),
            "9 watches exceed the limit of 8; --watch-limit changes it"
        );
        of_a.pop();
        assert!(open("e").is_ok() && open("a").is_ok());
        drop((of_a, others));
        assert!(watches.open.lock().unwrap().is_empty());
        assert!(Watches::new(1).open("a".to_owned()).is_ok());
    }
}
