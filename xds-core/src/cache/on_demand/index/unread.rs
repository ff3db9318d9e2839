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
    by_stream: BTreeMap<StreamId, OfStream>,
    /// The stream whose turn was last.
    last: StreamId,
}

#[derive(Debug, Default)]
struct OfStream {
    locators: VecDeque<(TypeUrl, Locator)>,
    /// At this length, those that need not be read any more are dropped.
    tidy_at: usize,
}

/// The number of a stream; [`NO_STREAM`] for changes that no stream made.
type StreamId = u64;

pub(super) const NO_STREAM: StreamId = StreamId::MAX;

impl Unread {
    /// `is_unread`: whether a locator has still to be read. A stream may subscribe to names and drop them faster
    /// than the source reads, so what is not to be read any more is dropped, at a constant cost for each.
    pub(super) fn add(
        &mut self,
        stream: StreamId,
        type_url: &TypeUrl,
        changed: Vec<Locator>,
        is_unread: impl Fn(&TypeUrl, &Locator) -> bool,
    ) {
        if changed.is_empty() {
            return;
        }
        let of_stream = self.by_stream.entry(stream).or_default();
        of_stream.locators.extend(changed.into_iter().map(|locator| (type_url.clone(), locator)));
        if of_stream.locators.len() > of_stream.tidy_at.max(FEW) {
            of_stream.locators.retain(|(type_url, locator)| is_unread(type_url, locator));
            of_stream.tidy_at = 2 * of_stream.locators.len();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_stream.is_empty()
    }

    /// The next locator of the stream whose turn it is.
    pub(super) fn pop(&mut self) -> Option<(TypeUrl, Locator)> {
        let mut later = self.by_stream.range_mut((Bound::Excluded(self.last), Bound::Unbounded));
        let (stream, of_stream) = match later.next() {
            Some((stream, of_stream)) => (*stream, of_stream),
            None => {
                let first = self.by_stream.first_entry()?;
                (*first.key(), first.into_mut())
            }
        };
        let next = of_stream.locators.pop_front();
        if of_stream.locators.is_empty() {
            self.by_stream.remove(&stream);
        }
        self.last = stream;
        next
    }
}

/// How many locators of a stream are kept in any case.
const FEW: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Parameters;

    #[test]
    fn streams_take_turns() {
        let mut unread = Unread::default();
        let add = |unread: &mut Unread, stream, names: &[&str]| {
            let locator = |name: &&str| Locator { name: (*name).into(), parameters: Parameters::new() };
            unread.add(stream, &"t".into(), names.iter().map(locator).collect(), |_, _| true);
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

    #[test]
    fn what_need_not_be_read_any_more_is_dropped() {
        let mut unread = Unread::default();
        for round in 0..100 {
            let name =
                |name| Locator { name: format!("{round}-{name}").into(), parameters: Parameters::new() };
            let is_unread = |_: &_, locator: &Locator| locator.name.as_str().ends_with("-0");
            unread.add(1, &"t".into(), (0..1_000).map(name).collect(), is_unread);
            assert!(unread.by_stream[&1].locators.len() <= FEW + 1_000);
        }
        let left: Vec<_> = std::iter::from_fn(|| unread.pop()).collect();
        let zeros = left.iter().filter(|(_, locator)| locator.name.as_str().ends_with("-0")).count();
        assert_eq!(zeros, 100);
    }
}
