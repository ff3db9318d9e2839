//! A document as a tree of values with their lines and columns, the same for YAML and JSON.

use std::cell::Cell;
use std::fmt;
use std::io::{self, Read};
use std::panic::resume_unwind;
use std::thread;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

use super::error::{Position, Problem};

/// A value and the position where it begins.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) at: Position,
    pub(super) tree: Tree,
}

/// The content of a value.
#[derive(Debug, Clone)]
pub(super) enum Tree {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key of a map with its value.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) at: Position,
    pub(super) key: String,
    pub(super) value: Node,
}

/// A syntax error of YAML or JSON.
#[derive(Debug)]
pub(super) struct SyntaxError {
    pub(super) at: Option<Position>,
    pub(super) problem: Problem,
}

impl Node {
    /// The value of a key; `None` if this is not a map or does not have the key.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        self.entries()?.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// The same map without a key.
    pub(super) fn without(&self, key: &str) -> Self {
        let entries = self.entries().unwrap_or_default().iter().filter(|entry| entry.key != key);
        Self { at: self.at, tree: Tree::Map(entries.cloned().collect()) }
    }

    pub(super) fn entries(&self) -> Option<&[Entry]> {
        if let Tree::Map(entries) = &self.tree { Some(entries) } else { None }
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let Tree::Text(text) = &self.tree { Some(text) } else { None }
    }

    /// The same value without its positions.
    pub(super) fn to_json(&self) -> serde_json::Value {
        match &self.tree {
            Tree::Null => serde_json::Value::Null,
            Tree::Bool(value) => (*value).into(),
            Tree::Int(value) => (*value).into(),
            Tree::Uint(value) => (*value).into(),
            Tree::Float(value) => (*value).into(),
            Tree::Text(value) => value.as_str().into(),
            Tree::List(items) => items.iter().map(Self::to_json).collect(),
            Tree::Map(entries) => {
                entries.iter().map(|entry| (entry.key.clone(), entry.value.to_json())).collect()
            }
        }
    }

    /// How many values it is made of.
    fn count(&self) -> usize {
        1 + match &self.tree {
            Tree::List(items) => items.iter().map(Self::count).sum(),
            Tree::Map(entries) => entries.iter().map(|entry| entry.value.count()).sum(),
            _ => 0,
        }
    }

    /// The value in words, for error messages.
    pub(super) fn describe(&self) -> String {
        match &self.tree {
            Tree::Null => "nothing".into(),
            Tree::Bool(value) => format!("the boolean {value}"),
            Tree::Int(value) => format!("the number {value}"),
            Tree::Uint(value) => format!("the number {value}"),
            Tree::Float(value) => format!("the number {value}"),
            Tree::Text(value) => format!("the string {value:?}"),
            Tree::List(_) => "a list".into(),
            Tree::Map(_) => "a map".into(),
        }
    }
}

/// Reads the documents of a YAML text. A document with an error is an error in the list. The
/// documents after it are still read, unless the parser cannot find the next document.
pub(super) fn yaml(text: &str) -> Vec<Result<Node, SyntaxError>> {
    if cfg!(debug_assertions) {
        // Without optimization a level needs some 40 KiB of stack, and other threads have 2 MiB.
        return thread::scope(|scope| {
            let reader = thread::Builder::new().stack_size(DEBUG_STACK_BYTES);
            let reader =
                reader.spawn_scoped(scope, || documents(text)).expect("the system has a thread more");
            reader.join().unwrap_or_else(|panic| resume_unwind(panic))
        });
    }
    documents(text)
}

fn documents(text: &str) -> Vec<Result<Node, SyntaxError>> {
    let options = serde_saphyr::options! {
        // Only `true` and `false` are booleans (YAML 1.2): a country code `no` is a string.
        strict_booleans: true,
        emit_comments: false,
        with_snippet: false,
        // The files of the operator may be large, so their size is not limited here. The depth is
        // limited because of the stack.
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_LIMIT,
            flow_nesting_limit: DEPTH_LIMIT,
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_documents: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
            max_reader_input_bytes: None,
        },
        // Who may write a ConfigMap must not be able to make much of a few aliases. This is the limit
        // of a document.
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: REPLAYED_LIMIT },
    };
    // Reading a slice is faster, but stops at the first document with an error, and says nothing about
    // aliases.
    let may_have_aliases = text.contains('&') && text.contains('*');
    if !may_have_aliases
        && let Ok(documents) =
            serde_saphyr::from_multiple_with_options::<Spanned<Tree>>(text, options.clone())
    {
        return documents.into_iter().map(|document| Ok(document.into())).collect();
    }
    // Each byte makes at most one value, and aliases repeat some.
    let mut room = text.len() + REPLAYED_LIMIT;
    let mut documents = Vec::new();
    let mut bytes = text.as_bytes();
    for document in serde_saphyr::read_with_options::<_, Spanned<Tree>>(&mut bytes, options) {
        let (document, is_last) = match document.map(Node::from) {
            Ok(node) => match room.checked_sub(node.count()) {
                Some(left) => {
                    room = left;
                    (Ok(node), false)
                }
                None => (Err(too_many_aliases(node.at)), true),
            },
            Err(error) => {
                let is_last = matches!(error, serde_saphyr::Error::AliasReplayLimitExceeded { .. });
                let at = error.location().map(Position::from);
                let problem = syntax(&error.without_snippet().to_string());
                (Err(SyntaxError { at, problem }), is_last)
            }
        };
        documents.push(document);
        if is_last {
            break;
        }
    }
    documents
}

fn too_many_aliases(at: Position) -> SyntaxError {
    let message = format!("the aliases of the file repeat more than {REPLAYED_LIMIT} values");
    SyntaxError { at: Some(at), problem: Problem::Syntax { message } }
}

/// Reads the document of a JSON text.
pub(super) fn json(text: &str) -> Result<Node, SyntaxError> {
    let cursor = Cursor::new(text);
    let mut deserializer = serde_json::Deserializer::from_reader(&cursor);
    let node = JsonPositions(&cursor).node(&mut deserializer);
    node.and_then(|node| deserializer.end().map(|()| node)).map_err(|error| {
        let at = Position::new(error.line(), error.column());
        SyntaxError { at: Some(at), problem: syntax(&error.to_string()) }
    })
}

/// Removes the position from the parser's message, because errors show it before the message.
fn syntax(message: &str) -> Problem {
    let end = message.rfind(" at line ").unwrap_or(message.len());
    let message = message.get(..end).unwrap_or(message);
    // The parser names an option of its own.
    let end = message.find(", set DuplicateKeyPolicy").unwrap_or(message.len());
    let message = match message.get(..end).unwrap_or(message) {
        depth if depth.starts_with("budget breached: Depth") => {
            format!("the values are nested more than {DEPTH_LIMIT} levels deep")
        }
        other => other.to_owned(),
    };
    Problem::Syntax { message }
}

/// How a format finds the position of the next value.
trait Positions: Copy {
    fn node<'de, D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error>;
    fn item<'de, A: SeqAccess<'de>>(self, list: &mut A) -> Result<Option<Node>, A::Error>;
    fn entry<'de, A: MapAccess<'de>>(self, map: &mut A) -> Result<Option<Entry>, A::Error>;
}

/// YAML: the deserializer returns the position of each value.
#[derive(Clone, Copy)]
struct YamlPositions;

impl Positions for YamlPositions {
    fn node<'de, D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Spanned::<Tree>::deserialize(deserializer).map(Node::from)
    }

    fn item<'de, A: SeqAccess<'de>>(self, list: &mut A) -> Result<Option<Node>, A::Error> {
        Ok(list.next_element::<Spanned<Tree>>()?.map(Node::from))
    }

    fn entry<'de, A: MapAccess<'de>>(self, map: &mut A) -> Result<Option<Entry>, A::Error> {
        let Some(key) = map.next_key::<Spanned<String>>()? else { return Ok(None) };
        let value = map.next_value::<Spanned<Tree>>()?.into();
        Ok(Some(Entry { at: key.referenced.into(), key: key.value, value }))
    }
}

/// JSON: the position is how far the parser has read.
#[derive(Clone, Copy)]
struct JsonPositions<'a>(&'a Cursor<'a>);

impl Positions for JsonPositions<'_> {
    fn node<'de, D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        let at = self.0.position();
        Ok(Node { at, tree: deserializer.deserialize_any(TreeVisitor(self))? })
    }

    fn item<'de, A: SeqAccess<'de>>(self, list: &mut A) -> Result<Option<Node>, A::Error> {
        list.next_element_seed(NodeSeed(self))
    }

    fn entry<'de, A: MapAccess<'de>>(self, map: &mut A) -> Result<Option<Entry>, A::Error> {
        let Some(key) = map.next_key_seed(NodeSeed(self))? else { return Ok(None) };
        let Tree::Text(text) = key.tree else { return Err(A::Error::custom("a key must be a string")) };
        let value = map.next_value_seed(NodeSeed(self))?;
        Ok(Some(Entry { at: key.at, key: text, value }))
    }
}

struct NodeSeed<'a>(JsonPositions<'a>);

impl<'de> serde::de::DeserializeSeed<'de> for NodeSeed<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        self.0.node(deserializer)
    }
}

/// The JSON text, and how far the parser has read it.
struct Cursor<'a> {
    rest: Cell<&'a [u8]>,
    last: Cell<u8>,
    line: Cell<usize>,
    column: Cell<usize>,
}

impl<'a> Cursor<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            rest: Cell::new(text.as_bytes()),
            last: Cell::new(b' '),
            line: Cell::new(1),
            column: Cell::new(0),
        }
    }

    /// The position where the next value begins.
    fn position(&self) -> Position {
        // The parser may have read the first byte of the value already.
        let has_read_first_byte = !matches!(self.last.get(), b':' | b' ' | b'\t' | b'\r' | b'\n');
        let ahead = if has_read_first_byte { &[] } else { self.rest.get() };
        let blanks = ahead.iter().take_while(|byte| byte.is_ascii_whitespace());
        let (line, column) = blanks.fold((self.line.get(), self.column.get()), |(line, column), &byte| {
            if byte == b'\n' { (line + 1, 0) } else { (line, column + 1) }
        });
        Position::new(line, column + usize::from(!has_read_first_byte))
    }
}

impl Read for &Cursor<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Return one byte at a time, as serde_json requests it anyway: a longer read would move the
        // cursor past the value.
        let (Some((&byte, rest)), Some(slot)) = (self.rest.get().split_first(), buffer.first_mut()) else {
            return Ok(0);
        };
        if byte == b'\n' {
            self.line.set(self.line.get() + 1);
            self.column.set(0);
        } else {
            self.column.set(self.column.get() + 1);
        }
        *slot = byte;
        self.last.set(byte);
        self.rest.set(rest);
        Ok(1)
    }
}

struct TreeVisitor<P>(P);

impl<'de, P: Positions> Visitor<'de> for TreeVisitor<P> {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Uint(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Tree, E> {
        Ok(Tree::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Tree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = self.0.item(&mut list)? {
            items.push(item);
        }
        Ok(Tree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = self.0.entry(&mut map)? {
            entries.push(entry);
        }
        Ok(Tree::Map(entries))
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor(YamlPositions))
    }
}

impl From<Spanned<Tree>> for Node {
    fn from(spanned: Spanned<Tree>) -> Self {
        Self { at: spanned.referenced.into(), tree: spanned.value }
    }
}

/// How many values aliases may repeat in a file.
const REPLAYED_LIMIT: usize = 100_000;
/// How deep a document may nest. Proto3 parsers stop at 100 messages, each of which may contain a
/// list.
const DEPTH_LIMIT: usize = 200;
const DEBUG_STACK_BYTES: usize = 32 << 20;
