//! The imports of the modules of a crate.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::code::{code, is_word};

/// A name that a module imports from another module of its crate, or from another crate of this
/// repository.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    /// The module, such as `xds_core::cache::update`.
    pub(crate) from: String,
    /// The module that defines the name; for another crate the path as written.
    pub(crate) to: String,
    file: PathBuf,
    line: usize,
    text: String,
}

impl fmt::Display for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.text)
    }
}

/// The imports of all modules of a crate.
pub(crate) fn read(name: &str, root: &Path, file: &dyn Fn(&Path) -> Option<String>) -> Vec<Import> {
    let mut tree = Tree::default();
    tree.load(Vec::new(), root, root.parent().unwrap(), file);
    tree.imports(name)
}

type Words = Vec<String>;

/// The modules of a crate by their paths.
#[derive(Default)]
struct Tree(BTreeMap<Words, Module>);

#[derive(Default)]
struct Module {
    /// The names that `use` imports, by their local names.
    names: BTreeMap<String, Words>,
    /// All paths in the module.
    paths: Vec<Written>,
}

/// A path as written.
struct Written {
    words: Words,
    is_use: bool,
    file: PathBuf,
    line: usize,
    text: String,
}

impl Tree {
    fn load(&mut self, module: Words, path: &Path, folder: &Path, file: &dyn Fn(&Path) -> Option<String>) {
        let text = file(path).unwrap_or_default();
        let code = code(&text);
        let mut reader = Reader { tree: self, path, text: &text, tokens: tokens(&code), at: 0 };
        for child in reader.module(module) {
            let name = child.last().unwrap();
            let inner = folder.join(name);
            let beside = inner.with_extension("rs");
            let path = if file(&beside).is_some() { beside } else { inner.join("mod.rs") };
            self.load(child, &path, &inner, file);
        }
    }

    fn imports(&self, name: &str) -> Vec<Import> {
        let mut imports = Vec::new();
        for (module, Module { names, paths }) in &self.0 {
            let from = [&[name.to_owned()], &module[..]].concat().join("::");
            for Written { words, is_use, file, line, text } in paths {
                // The line that imports it is reported already.
                if !is_use && names.contains_key(&words[0]) {
                    continue;
                }
                let Some(to) = self.resolve(name, module, words, 0).filter(|to| *to != from) else {
                    continue;
                };
                let (file, text) = (file.clone(), text.clone());
                imports.push(Import { from: from.clone(), to, file, line: *line, text });
            }
        }
        // Several names on one line are one import.
        imports.dedup();
        imports
    }

    /// The module that defines the target of a path; `None` for other crates.
    fn resolve(&self, krate: &str, module: &[String], path: &[String], depth: usize) -> Option<String> {
        if depth > 20 {
            return None;
        }
        let (mut here, mut rest) = (module.to_vec(), path);
        match path[0].as_str() {
            "crate" => (here, rest) = (Vec::new(), &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|word| word == "super") {
                    here.pop();
                    rest = &rest[1..];
                }
            }
            first => {
                let is_child = self.0.contains_key(&[&here[..], &path[..1]].concat());
                let named = self.0.get(&here).and_then(|module| module.names.get(first));
                if let Some(named) = named.filter(|named| !is_child && named[0] != *first) {
                    return self.resolve(krate, module, &[&named[..], &path[1..]].concat(), depth + 1);
                }
                if !is_child {
                    return (first == "xds" || first.starts_with("xds_")).then(|| path.join("::"));
                }
            }
        }
        while let Some((first, after)) = rest.split_first() {
            let child = [&here[..], &rest[..1]].concat();
            if self.0.contains_key(&child) {
                (here, rest) = (child, after);
                continue;
            }
            let named = self.0.get(&here).and_then(|module| module.names.get(first));
            if let Some(named) = named {
                return self.resolve(krate, &here, &[&named[..], after].concat(), depth + 1);
            }
            break;
        }
        Some([&[krate.to_owned()], &here[..]].concat().join("::"))
    }
}

struct Reader<'a> {
    tree: &'a mut Tree,
    path: &'a Path,
    text: &'a str,
    tokens: Vec<(usize, &'a str)>,
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads a module up to its closing brace or the end of its file. Returns the modules in other
    /// files.
    fn module(&mut self, module: Words) -> Vec<Words> {
        let (mut read, mut elsewhere, mut depth) = (Module::default(), Vec::new(), 0);
        while self.at < self.tokens.len() {
            match self.token(0) {
                "{" => depth += 1,
                "}" if depth == 0 => break,
                "}" => depth -= 1,
                "pub" if self.token(1) == "(" => {
                    while self.token(0) != ")" && self.at < self.tokens.len() {
                        self.at += 1;
                    }
                }
                "mod" if self.token(2) == ";" => {
                    elsewhere.push([&module[..], &[self.token(1).to_owned()]].concat());
                }
                "mod" if self.token(2) == "{" => {
                    let inner = [&module[..], &[self.token(1).to_owned()]].concat();
                    self.at += 3;
                    elsewhere.extend(self.module(inner));
                }
                // `use<'a>` at a type imports nothing.
                "use" if self.token(1) != "<" => {
                    self.at += 1;
                    self.used(&[], &mut read);
                    continue;
                }
                word if is_word(word.as_bytes()[0]) && self.token(1) == "::" => {
                    self.in_code(&mut read);
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
        self.tree.0.insert(module, read);
        elsewhere
    }

    /// The tree of a `use`, from a branch.
    fn used(&mut self, stem: &[String], read: &mut Module) {
        let mut words = stem.to_vec();
        let first = self.at;
        loop {
            match self.token(0) {
                "{" => {
                    self.at += 1;
                    while self.token(0) != "}" && self.at < self.tokens.len() {
                        let before = self.at;
                        self.used(&words, read);
                        assert!(self.at > before, "{}: {}", self.path.display(), self.token(0));
                        if self.token(0) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "," | "}" | ";" | "as" | "" => break,
                "::" => {}
                word => words.push(word.to_owned()),
            }
            self.at += 1;
        }
        let written = self.written(&words, first, true);
        if words.len() > stem.len()
            && words.len() > 1
            && words.last().is_some_and(|word| word == "self" || word == "*")
        {
            words.pop();
        }
        let mut name = words.last().cloned().unwrap_or_default();
        if self.token(0) == "as" {
            name = self.token(1).to_owned();
            self.at += 2;
        }
        if written.words.last().is_none_or(|word| word != "*") {
            read.names.insert(name, words.clone());
        }
        read.paths.push(Written { words, ..written });
    }

    /// A path in the code.
    fn in_code(&mut self, read: &mut Module) {
        let first = self.at;
        let is_rest = first > 0 && self.tokens[first - 1].1 == "::";
        let mut words = vec![self.token(0).to_owned()];
        self.at += 1;
        while self.token(0) == "::" && self.token(1).bytes().next().is_some_and(is_word) {
            words.push(self.token(1).to_owned());
            self.at += 2;
        }
        // Skip `<T as Trait>::Type::new`: it needs no lookup.
        if !is_rest && words.len() > 1 {
            read.paths.push(self.written(&words, first, false));
        }
    }

    fn written(&self, words: &[String], token: usize, is_use: bool) -> Written {
        let offset = self.tokens[token.min(self.tokens.len() - 1)].0;
        let line = self.text[..offset].matches('\n').count();
        let text = self.text.lines().nth(line).unwrap_or_default().trim().to_owned();
        Written { words: words.to_vec(), is_use, file: self.path.to_owned(), line: line + 1, text }
    }

    fn token(&self, ahead: usize) -> &'a str {
        self.tokens.get(self.at + ahead).map_or("", |(_, token)| token)
    }
}

/// The tokens: words, `::`, and other characters one by one, with their places.
fn tokens(code: &str) -> Vec<(usize, &str)> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(next) = code[at..].chars().next() {
        let rest = &code[at..];
        let len = match rest.bytes().take_while(|byte| is_word(*byte)).count() {
            0 if rest.starts_with("::") => 2,
            0 => next.len_utf8(),
            len => len,
        };
        if !next.is_whitespace() {
            tokens.push((at, &rest[..len]));
        }
        at += len;
    }
    tokens
}
