//! The lies: what a field of a message becomes.

use std::fmt;

use prost::Message;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value,
};

use crate::nodes::driver::{Answer, Request};

/// One field of each message of a kind, and what it becomes.
#[derive(Debug, Clone)]
pub(super) struct Lie {
    /// The message, without its package.
    message: &'static str,
    path: Vec<FieldDescriptor>,
    becomes: Becomes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Becomes {
    Missing,
    /// The largest value of its type, or a very long one.
    Largest,
    /// The largest number that a node takes.
    LastNumber,
    /// One more, the other way round, or another text or bytes.
    Other,
    /// What it says of the honest node.
    OfOther,
    /// A message with no field, also where there is none.
    Empty,
    /// Each element twice.
    Twice,
    Reversed,
}

const MESSAGES: [&str; 10] = [
    "HelloRequest",
    "HelloResponse",
    "PullRequest",
    "PullResponse",
    "NudgeRequest",
    "NudgeResponse",
    "DigestRequest",
    "DigestResponse",
    "PeekResponse",
    "SnapshotResponse",
];

/// How deep the fields of messages are changed.
const DEPTH: usize = 5;

/// All lies.
pub(super) fn all() -> Vec<Lie> {
    let pool = pool();
    let mut lies = Vec::new();
    for message in MESSAGES {
        let descriptor = descriptor(&pool, message);
        add(message, &descriptor, &mut Vec::new(), &mut lies);
    }
    lies
}

fn add(message: &'static str, of: &MessageDescriptor, path: &mut Vec<FieldDescriptor>, lies: &mut Vec<Lie>) {
    for field in of.fields() {
        path.push(field.clone());
        let is_many = field.is_list() || field.is_map();
        let more: &[Becomes] = match field.kind() {
            _ if is_many => &[Becomes::Twice, Becomes::Reversed],
            Kind::Message(_) => &[Becomes::Empty],
            Kind::Double | Kind::Float => &[],
            Kind::Bool | Kind::Enum(_) => &[Becomes::Other],
            Kind::String | Kind::Bytes => &[Becomes::Largest, Becomes::Other, Becomes::OfOther],
            _ => &[Becomes::Largest, Becomes::LastNumber, Becomes::Other],
        };
        let path_here = path.clone();
        let lie = |becomes: &Becomes| Lie { message, path: path_here.clone(), becomes: *becomes };
        lies.extend([Becomes::Missing].iter().chain(more).map(lie));
        let inner = match field.kind() {
            Kind::Message(inner) if field.is_map() => match inner.map_entry_value_field().kind() {
                Kind::Message(value) => Some(value),
                _ => None,
            },
            Kind::Message(inner) => Some(inner),
            _ => None,
        };
        let is_recursive = |inner: &MessageDescriptor| {
            path.iter().rev().skip(1).any(|of| matches!(of.kind(), Kind::Message(before) if before == *inner))
        };
        if let Some(inner) = inner.filter(|inner| path.len() < DEPTH && !is_recursive(inner)) {
            add(message, &inner, path, lies);
        }
        path.pop();
    }
}

fn pool() -> DescriptorPool {
    DescriptorPool::decode(xds_proto::STORE_FILE_DESCRIPTOR_SET).unwrap()
}

fn descriptor(pool: &DescriptorPool, message: &str) -> MessageDescriptor {
    pool.get_message_by_name(&format!("xds.store.v1.{message}")).unwrap()
}

impl Lie {
    /// Whether it is about what a node that joins takes.
    pub(super) fn is_of_snapshot(&self) -> bool {
        self.message == "SnapshotResponse"
    }

    /// The field that it is about.
    pub(super) fn field(&self) -> String {
        let path: Vec<_> = self.path.iter().map(|field| field.name().to_owned()).collect();
        format!("{}.{}", self.message, path.join("."))
    }

    /// Changes a message. Returns whether it has the field.
    fn tell(&self, message: &mut DynamicMessage, path: &[FieldDescriptor]) -> bool {
        let Some((field, rest)) = path.split_first() else { return false };
        if rest.is_empty() {
            let before = message.get_field(field).into_owned();
            match self.becomes.of(field, &before) {
                Some(value) => message.set_field(field, value),
                None => message.clear_field(field),
            }
            return self.becomes == Becomes::Empty || message.get_field(field).into_owned() != before;
        }
        // What is missing is made up.
        match message.get_field_mut(field) {
            Value::List(list) if list.is_empty() => list.extend(empty(field)),
            Value::Map(map) if map.is_empty() => {
                map.extend(empty(field).map(|value| (MapKey::String("one".into()), value)));
            }
            _ => {}
        }
        let mut has_told = false;
        let mut each = |value: &mut Value| {
            if let Value::Message(inner) = value {
                has_told |= self.tell(inner, rest);
            }
        };
        match message.get_field_mut(field) {
            Value::List(list) => list.iter_mut().for_each(&mut each),
            Value::Map(map) => map.values_mut().for_each(&mut each),
            value => each(value),
        }
        has_told
    }
}

/// A message of the type of a field, or of an element of it, with no field.
fn empty(field: &FieldDescriptor) -> Option<Value> {
    let inner = match field.kind() {
        Kind::Message(entry) if field.is_map() => match entry.map_entry_value_field().kind() {
            Kind::Message(value) => value,
            _ => return None,
        },
        Kind::Message(inner) => inner,
        _ => return None,
    };
    Some(Value::Message(DynamicMessage::new(inner)))
}

impl fmt::Display for Lie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.field(), self.becomes)
    }
}

impl Becomes {
    fn of(self, field: &FieldDescriptor, before: &Value) -> Option<Value> {
        let (last, long) = (i64::MAX, 100_000);
        Some(match (self, before) {
            (Self::Missing, _) => return None,
            (Self::Empty, _) => empty(field)?,
            (Self::Twice, Value::List(list)) => Value::List([&list[..], list].concat()),
            (Self::Twice, Value::Map(map)) => {
                let mut twice = map.clone();
                let keys = map.iter().filter_map(|(key, value)| match key {
                    MapKey::String(key) => Some((MapKey::String(format!("{key}-too")), value.clone())),
                    _ => None,
                });
                twice.extend(keys);
                Value::Map(twice)
            }
            (Self::Reversed, Value::List(list)) => Value::List(list.iter().rev().cloned().collect()),
            (Self::Reversed, Value::Map(map)) => {
                let mut keys: Vec<_> = map.keys().cloned().collect();
                keys.sort();
                let values: Vec<_> = keys.iter().rev().map(|key| map[key].clone()).collect();
                Value::Map(keys.into_iter().zip(values).collect())
            }
            (Self::Largest, Value::String(_)) => Value::String("x".repeat(long)),
            (Self::Largest, Value::Bytes(_)) => Value::Bytes(vec![7; long].into()),
            (Self::Largest, Value::U64(_)) => Value::U64(u64::MAX),
            (Self::Largest, Value::U32(_)) => Value::U32(u32::MAX),
            (Self::Largest, Value::I64(_)) => Value::I64(last),
            (Self::Largest, Value::I32(_)) => Value::I32(i32::MAX),
            (Self::LastNumber, Value::U64(_)) => Value::U64(last.unsigned_abs()),
            (Self::LastNumber, Value::U32(_)) => Value::U32(i32::MAX.unsigned_abs()),
            (Self::LastNumber, Value::I64(_)) => Value::I64(i64::MIN),
            (Self::LastNumber, Value::I32(_)) => Value::I32(i32::MIN),
            (Self::Other, Value::String(text)) => Value::String(format!("{text}\u{1}")),
            (Self::Other, Value::Bytes(bytes)) => {
                let mut bytes = bytes.to_vec();
                match bytes.first_mut() {
                    Some(first) => *first ^= 1,
                    None => bytes.push(1),
                }
                Value::Bytes(bytes.into())
            }
            (Self::OfOther, Value::String(_)) => Value::String("one".to_owned()),
            (Self::OfOther, Value::Bytes(_)) => Value::Bytes(b"one".to_vec().into()),
            (Self::Other, Value::Bool(is)) => Value::Bool(!is),
            (Self::Other, Value::EnumNumber(number)) => Value::EnumNumber(number + 1),
            (Self::Other, Value::U64(number)) => Value::U64(number + 1),
            (Self::Other, Value::U32(number)) => Value::U32(number + 1),
            (Self::Other, Value::I64(number)) => Value::I64(number.saturating_add(1)),
            (Self::Other, Value::I32(number)) => Value::I32(number.saturating_add(1)),
            (becomes, value) => panic!("{becomes:?} of {}: {value:?}", field.name()),
        })
    }
}

/// The one who tells a lie in each message.
pub(super) struct Liar {
    lie: Lie,
    pub(super) has_lied: bool,
}

impl Liar {
    pub(super) fn new(lie: &Lie) -> Self {
        Self { lie: lie.clone(), has_lied: false }
    }

    pub(super) fn request(&mut self, request: Request) -> Request {
        match request {
            Request::Hello(request) => Request::Hello(self.tell("HelloRequest", request)),
            Request::Pull(request) => Request::Pull(self.tell("PullRequest", request)),
            Request::Nudge(request) => Request::Nudge(self.tell("NudgeRequest", request)),
            Request::Digest(request) => Request::Digest(self.tell("DigestRequest", request)),
            other @ (Request::Peek(_) | Request::Snapshot(_) | Request::Region(_)) => other,
        }
    }

    pub(super) fn answer(&mut self, answer: Answer) -> Answer {
        match answer {
            Answer::Hello(answer) => Answer::Hello(answer.map(|answer| self.tell("HelloResponse", answer))),
            Answer::Pull(answer) => Answer::Pull(answer.map(|answer| self.tell("PullResponse", answer))),
            Answer::Nudge(answer) => Answer::Nudge(answer.map(|answer| self.tell("NudgeResponse", answer))),
            Answer::Digest(Ok(mut answer)) => {
                // So that records are compared one by one, and read.
                let is_peek = self.lie.message == "PeekResponse";
                let is_of_records =
                    self.lie.message == "DigestResponse" && self.lie.path[0].name() == "records";
                if is_peek || is_of_records {
                    answer.buckets.iter_mut().for_each(|bucket| *bucket = vec![7; bucket.len()].into());
                }
                if is_peek {
                    answer.records.iter_mut().for_each(|of| of.revision = vec![7; of.revision.len()].into());
                }
                Answer::Digest(Ok(self.tell("DigestResponse", answer)))
            }
            Answer::Peek(answer) => Answer::Peek(answer.map(|answer| self.tell("PeekResponse", answer))),
            Answer::Snapshot(page) => Answer::Snapshot(page.map(|page| self.tell("SnapshotResponse", page))),
            other @ (Answer::Digest(Err(_)) | Answer::Region(_)) => other,
        }
    }

    fn tell<T: Message + Default>(&mut self, name: &str, message: T) -> T {
        if self.lie.message != name {
            return message;
        }
        let pool = self.lie.path[0].parent_message().parent_pool().clone();
        let bytes = message.encode_to_vec();
        let mut told = DynamicMessage::decode(descriptor(&pool, name), &*bytes).unwrap();
        if !self.lie.tell(&mut told, &self.lie.path) {
            return message;
        }
        self.has_lied = true;
        T::decode(&*told.encode_to_vec()).unwrap()
    }
}
