//! The ledger of rules: `rules.tsv` has the state of each rule of `docs/protocol.md` and
//! `docs/store-rules.md`, for each side that it affects. This test compares the ledger with the code.
//!
//! A comment in `src` that names the id cites a rule (`// S8: ..`, `(T31)`). A test names it at the
//! start or end of its name (`s8_.._v6`), a script in its first line (`# V16 T31: ..`) or at the
//! start of its file name. Each rule in the state `done` is cited and named. A vector (V) is a test
//! itself and need not be cited.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const LEDGER: &str = "tests/conformance/rules.tsv";
const RULES: &str = "docs/protocol.md or docs/store-rules.md";
const DOCUMENTS: [&str; 2] = ["docs/protocol.md", "docs/store-rules.md"];

#[test]
fn the_ledger_of_rules_agrees_with_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut problems = Vec::new();
    let defined: BTreeMap<_, _> =
        DOCUMENTS.iter().flat_map(|path| defined(path, &read(&root.join(path)))).collect();
    let code = Code::read(root);
    let unknown = code.cited.iter().chain(&code.named).filter(|(id, _)| !defined.contains_key(*id));
    problems.extend(unknown.map(|(id, place)| {
        format!("{place}: {id} is no rule of {RULES}: correct it; of another document write `store/{id}`")
    }));
    let ledger = read(&root.join(LEDGER));
    let rows: Vec<_> = ledger.lines().enumerate().filter_map(|(at, line)| Row::parse(at + 1, line)).collect();
    let mut seen = BTreeMap::new();
    for row in &rows {
        problems.extend(row.faults(&defined, &code).map(|fault| format!("{LEDGER}:{}: {fault}", row.line)));
        if let Some(first) = seen.insert((row.id, row.side), row.line) {
            let Row { line, id, side, .. } = row;
            problems.push(format!("{LEDGER}:{line}: {id} {side} stands in line {first} too: remove one"));
        }
    }
    let listed: BTreeSet<_> = rows.iter().map(|row| row.id).collect();
    // W describes messages, not behaviour.
    let missing = defined.iter().filter(|(id, _)| !id.starts_with('W') && !listed.contains(id.as_str()));
    problems.extend(missing.map(|(id, place)| {
        format!("{place}: {id} has no line in {LEDGER}: add one for each side that it concerns")
    }));
    for side in SIDES {
        let of_side = || rows.iter().filter(|row| row.side == side);
        let in_state = |state| of_side().filter(|row| row.state == state).count();
        let (done, exceptions) = (in_state("done"), in_state("exception"));
        println!("{side}: {done} of {} done, {exceptions} exceptions", of_side().count());
    }
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

/// A line of the ledger.
struct Row<'a> {
    line: usize,
    id: &'a str,
    side: &'a str,
    wording: &'a str,
    state: &'a str,
    reason: &'a str,
}

impl<'a> Row<'a> {
    fn parse(line: usize, text: &'a str) -> Option<Self> {
        if text.is_empty() || text.starts_with('#') {
            return None;
        }
        let mut columns = text.splitn(5, '\t');
        let [id, side, wording, state, reason] = std::array::from_fn(|_| columns.next().unwrap_or_default());
        Some(Self { line, id, side, wording, state, reason })
    }

    /// The errors in the line itself.
    fn faults(&self, defined: &BTreeMap<String, String>, code: &Code) -> impl Iterator<Item = String> {
        let Self { id, side, state, .. } = self;
        let is_done = *state == "done";
        let is_cited = id.starts_with('V') || code.cited.contains_key(*id);
        let test = id.to_lowercase();
        let checks = [
            (!defined.contains_key(*id), format!("{id} is no rule of {RULES}: correct the id")),
            (!SIDES.contains(side), format!("{side:?} is no side: write one of {SIDES:?}")),
            (!STATES.contains(state), format!("{state:?} is no state: write one of {STATES:?}")),
            (
                self.wording.is_empty(),
                format!("{id} has no wording: say in a few own words what it asks for"),
            ),
            (
                self.reason.is_empty() && !is_done,
                format!("{id} is {state} without a reason: add why, or the work that will do it"),
            ),
            (
                is_done && !is_cited,
                format!("{id} is done, but no comment in src names it: write `// {id}: ..` where it is done"),
            ),
            (
                is_done && !code.named.contains_key(*id),
                format!("{id} is done, but no test names it: start a test's name with `{test}_`"),
            ),
        ];
        checks.into_iter().filter(|(is_fault, _)| *is_fault).map(|(_, fault)| fault)
    }
}

/// The rules that the code cites, each with the first file and line.
#[derive(Default)]
struct Code {
    cited: BTreeMap<String, String>,
    named: BTreeMap<String, String>,
}

impl Code {
    fn read(root: &Path) -> Self {
        let crates = entries(root).into_iter().filter(|path| file_name(path).starts_with("xds-"));
        let crates: Vec<_> = crates.chain([root.to_owned(), root.join("fuzz")]).collect();
        let folders = crates.iter().flat_map(|path| [path.join("src"), path.join("tests")]);
        let files: Vec<_> = folders.filter(|path| path.is_dir()).flat_map(|path| files(&path)).collect();
        let of_kind = |kind: &str| {
            let files = files.iter().filter(|path| path.extension().is_some_and(|found| found == kind));
            files.map(|path| (path.strip_prefix(root).expect("is below"), read(path))).collect::<Vec<_>>()
        };
        let (rust, scripts) = (of_kind("rs"), of_kind("txt"));
        let mut tests: BTreeSet<_> = rust.iter().flat_map(|(_, text)| test_modules(text)).collect();
        tests.extend(["tests".to_owned(), "fuzz".to_owned()]);
        let mut code = Self::default();
        for (path, text) in &rust {
            let is_test = path.with_extension("").iter().any(|part| tests.contains(&*part.to_string_lossy()));
            code.read_rust(path, text, !is_test);
        }
        for (path, text) in scripts.iter().filter(|(path, _)| path.starts_with("tests/conformance")) {
            let place = format!("{}:1", path.display());
            code.name(&file_name(&path.with_extension("")), &place);
            let head = text.split(['\n', ':']).next().unwrap_or_default();
            code.named.extend(ids(head).map(|id| (id, place.clone())));
        }
        code
    }

    fn read_rust(&mut self, path: &Path, text: &str, mut is_src: bool) {
        let (mut is_test, mut before) = (false, "");
        for (at, line) in text.lines().enumerate() {
            let place = || format!("{}:{}", path.display(), at + 1);
            let code = line.trim_start();
            is_src &= !(before == "#[cfg(test)]" && code.ends_with("mod tests {"));
            let comment = code.split_once("//").map_or("", |(_, comment)| comment);
            for id in ids(comment).filter(|_| is_src) {
                self.cited.entry(id).or_insert_with(place);
            }
            is_test |= code.starts_with("#[test]") || code.starts_with("#[tokio::test");
            let function = code.strip_prefix("fn ").or_else(|| code.strip_prefix("async fn "));
            if let Some(function) = function.filter(|_| is_test) {
                self.name(function.split('(').next().unwrap_or_default(), &place());
                is_test = false;
            }
            before = code;
        }
    }

    /// Reads the ids at the start of a test's name, and then those at its end; `v04` is V4.
    fn name(&mut self, test: &str, place: &str) {
        let words: Vec<_> = test.split('_').map(|word| id(&word.to_uppercase())).collect();
        let first = words.iter().map_while(Option::as_ref);
        let last = words.iter().rev().map_while(Option::as_ref).filter(|_| words[0].is_some());
        self.named.extend(first.chain(last).map(|id| (id.clone(), place.to_owned())));
    }
}

/// The rules of the document with the lines where they begin.
fn defined(path: &str, text: &str) -> BTreeMap<String, String> {
    let rule = |line: &str| id(line.strip_prefix("- ")?.split(' ').next()?);
    let place = |at| format!("{path}:{}", at + 1);
    text.lines().enumerate().filter_map(|(at, line)| Some((rule(line)?, place(at)))).collect()
}

/// The ids in a comment. `store/D5` is an id of another document.
fn ids(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '/').filter_map(id)
}

/// `(ST|SG|SR|SV|[SDTXGCVW])[0-9]+[a-f]?`; letters behind the number may be in upper case.
fn id(word: &str) -> Option<String> {
    let (prefix, number) = PREFIXES.iter().find_map(|prefix| Some((prefix, word.strip_prefix(prefix)?)))?;
    let digits = number.trim_end_matches(|letter| matches!(letter, 'a'..='f' | 'A'..='F'));
    let letter = &number[digits.len()..];
    let is_id = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.is_empty() && letter.len() < 2;
    is_id.then(|| format!("{prefix}{}{}", digits.trim_start_matches('0'), letter.to_lowercase()))
}

/// The files of modules that only tests use.
fn test_modules(text: &str) -> Vec<String> {
    let lines: Vec<_> = text.lines().collect();
    let module = |pair: &[&str]| {
        let declaration = pair[1].strip_suffix(';').filter(|_| pair[0] == "#[cfg(test)]")?;
        Some(declaration.split_once("mod ")?.1.to_owned())
    };
    lines.windows(2).filter_map(module).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let inside = |path: PathBuf| if path.is_dir() { files(&path) } else { vec![path] };
    entries(folder).into_iter().flat_map(inside).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

const SIDES: [&str; 4] = ["server", "client", "proxy", "store"];

/// Longer ones first.
const PREFIXES: [&str; 12] = ["ST", "SG", "SR", "SV", "S", "D", "T", "X", "G", "C", "V", "W"];
const STATES: [&str; 3] = ["done", "exception", "todo"];
