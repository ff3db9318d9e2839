//! What a server may send again to one stream because the client rejected it (S6c to S6e), as an
//! observer at the server sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use xds_core::{Constraints, Nonce};

use crate::content::{Content, Kind};
use crate::exceptions;
use crate::invariant::Sent;
use crate::invariant::known_bad::variation;
use crate::invariant::news::{ends_refusal, is_news_of};
use crate::known::{Asked, Held, Key, Known};
use crate::trying::Variation;
use crate::wire::Received;

/// One type of a stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rejections {
    /// Names of rejected responses that no later response had.
    pub(crate) names: BTreeSet<String>,
    /// What was sent last of each name.
    pub(crate) sends: BTreeMap<String, Sends>,
    /// Names that are sent again for another reason than a rejection: a new subscription (D9, S15,
    /// S16) or a cluster (S34).
    pub(crate) owed: BTreeSet<String>,
    /// A full state may be repeated once (S6e).
    pub(crate) is_repeat_due: bool,
    /// The resources that the client rejected alone since the list was taken.
    pub(crate) alone: Vec<(Variation, Content)>,
    /// Responses without an answer, by nonce.
    unanswered: BTreeMap<Nonce, Unanswered>,
    /// The codes of the errors for `*` in the last response.
    wildcard_errors: Vec<i32>,
    /// One of them, or of those before, says that the type is not served (G4).
    is_wildcard_refused: bool,
}

/// The content of a name that was sent last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sends {
    content: Contents,
    nonce: Option<Nonce>,
    pub(crate) times: u32,
    pub(crate) allowed: u32,
    pub(crate) last: Duration,
    /// It was rejected in a response of its own.
    pub(crate) is_rejected_alone: bool,
    /// How often it was sent again after that.
    pub(crate) resends: u32,
}

/// Everything that a response has of a name: the variants, and whether some were removed.
type Contents = (BTreeMap<Option<Constraints>, String>, BTreeSet<Option<Constraints>>);

#[derive(Debug, Clone)]
struct Unanswered {
    /// Resources, and the removals together (S6c).
    units: usize,
    /// It removed or changed something that the client may have had.
    makes_room: bool,
    is_part: bool,
    /// The only resource.
    only: Option<(Variation, Content)>,
    names: BTreeSet<String>,
    /// V25: it was sent by name before the client switched to locators, so all of it is sent again.
    is_before_switch: bool,
}

impl Rejections {
    /// The server read a subscription.
    pub(crate) fn on_asked<'a>(&mut self, newly: impl Iterator<Item = &'a Asked>) {
        for (name, _) in newly {
            match name {
                Some(name) => _ = self.owed.insert(name.clone()),
                None => self.owe_all(),
            }
        }
    }

    pub(crate) fn owe_all(&mut self) {
        self.owed.extend(self.sends.keys().cloned());
    }

    /// V25: the client switched to locators.
    pub(crate) fn on_switch(&mut self) {
        self.unanswered.values_mut().for_each(|unanswered| unanswered.is_before_switch = true);
    }

    /// The names of a response that the stream was sent before, without another reason to send them
    /// again than a rejection.
    pub(crate) fn repeated(sent: &Sent<'_>) -> BTreeSet<String> {
        let (seen, rejections) = (sent.before, &sent.before.rejections);
        let is_repeated = |name: &String| {
            rejections.sends.contains_key(name)
                && !rejections.owed.contains(name)
                && !seen.given_up.contains(name)
                && !seen.tried.contains_key(name)
                && !is_news_of(sent, name)
                && (rejections.names.contains(name) || !exceptions::is_removed_again(sent, name))
        };
        let names = sent.received.names().into_iter();
        let has_reason = seen.ideal.takes_full_state() || ends_refusal(sent);
        if has_reason { BTreeSet::new() } else { names.filter(is_repeated).collect() }
    }

    /// S6c: whether a response may be a part of rejected ones.
    pub(crate) fn is_part(&self, received: &Received) -> bool {
        let names = received.names();
        !names.is_empty() && names.is_subset(&self.names)
    }

    /// G4: whether a response tells another error for `*` than that the type is not served, or none.
    pub(crate) fn ends_refusal(&self, received: &Received) -> bool {
        self.is_wildcard_refused && self.wildcard_errors != wildcard_errors(received)
    }

    /// A response is sent.
    pub(crate) fn on_sent(&mut self, sent: &Sent<'_>, now: Duration) {
        let (received, repeated) = (sent.received, Self::repeated(sent));
        if ends_refusal(sent) {
            self.owe_all();
        }
        self.wildcard_errors = wildcard_errors(received);
        self.is_wildcard_refused |= self.wildcard_errors.contains(&UNIMPLEMENTED);
        self.is_wildcard_refused &= !self.wildcard_errors.is_empty();
        let nonce = Nonce::parse(&received.nonce);
        // D1: the server knows what a delta client brought from another stream.
        let brought = &sent.before.ideal.held;
        let had = |name: &String| {
            self.sends.contains_key(name) || brought.keys().any(|(brought, _)| brought == name)
        };
        let is_changed = received.resources.iter().any(|item| had(&item.name));
        let removes = !received.removed.is_empty() || !received.removed_variants.is_empty();
        let mut had_before = sent.before.ideal.held.iter();
        let is_other = |(key, held): (&Key, &Held)| {
            sent.after.held.get(key).is_none_or(|now| now.content != held.content)
        };
        // S32: in SotW the server does not know what the client has from an earlier stream. S8b: nor
        // whether it had read a response with what it gave up.
        let may_have = !sent.before.is_answered || !sent.before.given_up.is_empty();
        let makes_room = match sent.before.ideal.takes_full_state() {
            true => may_have || had_before.any(is_other),
            false => removes || is_changed,
        };
        let is_part = self.is_part(received);
        for name in received.names() {
            let content = contents_of(received, &name);
            self.names.remove(&name);
            // The answer to a subscription may come after a part.
            if !is_part {
                self.owed.remove(&name);
            }
            let first = Sends {
                content: content.clone(),
                nonce,
                times: 1,
                allowed: 1,
                last: now,
                is_rejected_alone: false,
                resends: 0,
            };
            let sends = self.sends.entry(name.clone()).or_insert_with(|| first.clone());
            if sends.nonce == nonce {
                continue;
            }
            if !repeated.contains(&name) || sends.content != content {
                *sends = first;
                continue;
            }
            sends.times += 1;
            sends.resends += u32::from(sends.is_rejected_alone);
            (sends.nonce, sends.last) = (nonce, now);
        }
        let only = match &received.resources[..] {
            [item] => variation(received, item, sent.snapshot, &sent.after.node)
                .map(|variation| (variation, item.content.clone())),
            _ => None,
        };
        let (is_part, names) = (!repeated.is_empty(), received.names());
        let unanswered =
            Unanswered { units: units(received), makes_room, is_part, only, names, is_before_switch: false };
        self.is_repeat_due = false;
        self.unanswered.extend(nonce.map(|nonce| (nonce, unanswered)));
    }

    /// The client answered a response.
    pub(crate) fn on_answer(&mut self, known: &Known, nonce: Nonce, is_accepted: bool) {
        let Some(unanswered) = self.unanswered.remove(&nonce) else { return };
        let Unanswered { units, makes_room, is_part, only, names, is_before_switch } = unanswered;
        if is_before_switch && !is_accepted {
            return;
        }
        if known.takes_full_state() {
            // S6e: room that a rejected full state made is used by one repetition.
            self.is_repeat_due = !is_accepted && makes_room;
            return;
        }
        // S6e: what a rejected part changes was not applied, or is sent again.
        if makes_room && known.kind == Kind::Listener && (is_accepted || !is_part) {
            let alone = self.sends.values_mut().filter(|sends| sends.is_rejected_alone);
            alone.for_each(|sends| sends.allowed += 1);
        }
        if is_accepted {
            return;
        }
        // D6: a later response has the name, so the answer to that one counts.
        let mut later = self.unanswered.range(nonce..).flat_map(|(_, later)| &later.names);
        let is_last = !later.any(|name| names.contains(name));
        self.alone.extend(only.filter(|_| units == 1 && is_last));
        for (name, sends) in self.sends.iter_mut().filter(|(_, sends)| sends.nonce == Some(nonce)) {
            self.names.insert(name.clone());
            // S6d: the rejected response counts as one. What was rejected alone is sent again only by S6e.
            sends.allowed = match units {
                1 if !sends.is_rejected_alone => sends.times,
                1 => sends.allowed,
                _ => sends.allowed.max(1 + units.next_power_of_two().ilog2()),
            };
            sends.is_rejected_alone |= units == 1;
        }
    }
}

fn wildcard_errors(received: &Received) -> Vec<i32> {
    let errors = received.errors.iter().filter(|error| error.name == "*");
    errors.map(|error| error.code).collect()
}

/// S6c: the names with resources, and the removals together.
fn units(received: &Received) -> usize {
    let with_resources: BTreeSet<_> = received.resources.iter().map(|item| &item.name).collect();
    with_resources.len() + usize::from(received.names().len() > with_resources.len())
}

fn contents_of(received: &Received, name: &str) -> Contents {
    let items = received.resources.iter().filter(|item| item.name == name);
    let content = |content: &Content| content.to_string();
    let items = items.map(|item| (item.sent_with.clone(), content(&item.content))).collect();
    let removed = received.removed.iter().filter(|removed| *removed == name).map(|_| None);
    let variants = received.removed_variants.iter().filter(|(removed, _)| removed == name);
    (items, removed.chain(variants.map(|(_, constraints)| Some(constraints.clone()))).collect())
}

const UNIMPLEMENTED: i32 = 12;
