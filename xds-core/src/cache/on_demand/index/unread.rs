//! Locators whose change the source has not read yet.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use crate::name::TypeUrl;
use crate::subscription::Locator;

/// Locators whose change was not read yet, of each stream in the order of the changes.
///
/// The streams take turns, so a stream that changes very many locators does not delay the others.
#[derive(Debug, Default)]
pub(super) struct Unread {
    by_stream: BTreeMap<StreamId, VecDeque<(TypeUrl, Locator)>>,
    /// The stream whose turn was last.
    last: StreamId,
}

/// The number of a stream; [`NO_STREAM`] for changes that no stream made.
type StreamId = u64;

pub(super) const NO_STREAM: StreamId = StreamId::MAX;

impl Unread {
    pub(super) fn add(&mut self, stream: StreamId, type_url: &TypeUrl, changed: Vec<Locator>) {
        if !changed.is_empty() {
            let changed = changed.into_iter().map(|locator| (type_url.clone(), locator));
            self.by_stream.entry(stream).or_default().extend(changed);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_stream.is_empty()
    }

    /// The next locator of the stream whose turn it is.
    pub(super) fn pop(&mut self) -> Option<(TypeUrl, Locator)> {
        let mut later = self.by_stream.range_mut((Bound::Excluded(self.last), Bound::Unbounded));
        let (stream, unread) = match later.next() {
            Some((stream, unread)) => (*stream, unread),
            None => {
                let first = self.by_stream.first_entry()?;
                (*first.key(), first.into_mut())
            }
        };
        let next = unread.pop_front();
        if unread.is_empty() {
            self.by_stream.remove(&stream);
        }
        self.last = stream;
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Parameters;

    #[test]
    fn streams_take_turns() {
        let mut unread = Unread::default();
        let add = |unread: &mut Unread, stream, names: &[&str]| {
            let locator = |name: &&str| Locator { name: (*name).into(), parameters: Parameters::new() };
            unread.add(stream, &"t".into(), names.iter().map(locator).collect());
        };
        let mut names = Vec::new();
        add(&mut unread, 3, &["a", "b", "c", "d"]);
        add(&mut unread, 9, &[]);
        let pop = |unread: &mut Unread| unread.pop().map(|(_, locator)| locator.name.as_str().to_owned());
        names.extend(pop(&mut unread));
        add(&mut unread, NO_STREAM, &["x"]);
        add(&mut unread, 1, &["m", "n"]);
        names.extend(std::iter::from_fn(|| pop(&mut unread)));
        assert_eq!(names.join(" "), "a x m b n c d");
        assert!(unread.is_empty());
    }
}
