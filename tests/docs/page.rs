//! The steps of a page, in its order.

/// One step.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The line of the page.
    pub(super) line: usize,
    pub(super) needs_envoy: bool,
    pub(super) what: What,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A file to write.
    File { name: String, text: String },
    /// A command to run, and its output.
    Run { command: String, expected: Vec<String> },
    /// A background command, and the beginning of its output.
    Start { command: String, expected: Vec<String> },
    /// Wait until a background command, counted from 1, has printed this.
    Until { job: usize, text: String },
    /// Code that is compiled with the documentation of the crate.
    Rust,
}

/// Reads a page.
///
/// # Errors
/// The page has blocks that the test cannot run; the errors have their lines.
pub(super) fn steps(page: &str) -> Result<Vec<Step>, Vec<String>> {
    let (mut steps, mut errors) = (Vec::new(), Vec::new());
    let mut lines = page.lines().enumerate().map(|(at, line)| (at + 1, line));
    while let Some((line, text)) = lines.next() {
        if let Some(directive) = text.trim().strip_prefix("<!-- ").and_then(|text| text.strip_suffix(" -->"))
        {
            let (needs_envoy, directive) = marked(directive);
            steps.extend(directed(&directive).map(|what| Step { line, needs_envoy, what }));
        }
        let Some(info) = text.trim_start().strip_prefix("```") else { continue };
        let indented_by = text.len() - text.trim_start().len();
        let block = lines.by_ref().take_while(|(_, text)| text.trim() != "```");
        let block: Vec<_> =
            block.map(|(at, text)| (at, text.get(indented_by..).unwrap_or_default())).collect();
        match read(info, &block) {
            Ok(of_block) => steps.extend(of_block),
            Err(error) => errors.push(format!("line {line}: {error}")),
        }
    }
    if errors.is_empty() { Ok(steps) } else { Err(errors) }
}

/// Whether a comment or the header of a block says `needs an Envoy`, and the rest of it.
fn marked(text: &str) -> (bool, String) {
    let without = text.replacen(", needs an Envoy", "", 1).replacen("(needs an Envoy)", "", 1);
    (without != text, without.trim().to_owned())
}

/// Steps in comments, which only the test needs: `run: COMMAND` and `until %1: TEXT`.
fn directed(directive: &str) -> Option<What> {
    if let Some(command) = directive.strip_prefix("run: ") {
        return Some(command_of(command.to_owned(), Vec::new()));
    }
    let (job, text) = directive.strip_prefix("until %")?.split_once(": ")?;
    Some(What::Until { job: job.parse().ok()?, text: text.to_owned() })
}

fn read(info: &str, block: &[(usize, &str)]) -> Result<Vec<Step>, String> {
    let (needs_envoy, info) = marked(info);
    // rustdoc, which reads some of these pages, ignores text in brackets.
    let (language, rest) = info.split_once(' ').unwrap_or((&info, ""));
    let rest = rest.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(rest);
    let first = block.first().map_or(0, |(at, _)| *at);
    let text = || block.iter().map(|(_, line)| format!("{line}\n")).collect::<String>();
    let one = |what| Ok(vec![Step { line: first, needs_envoy, what }]);
    match (language, rest) {
        (_, rest) if rest.starts_with("file: ") => {
            one(What::File { name: rest["file: ".len()..].to_owned(), text: text() })
        }
        (_, rest) if rest.strip_prefix("unrun: ").is_some_and(|why| !why.trim().is_empty()) => Ok(Vec::new()),
        ("console", "") if !block.first().is_some_and(|(_, line)| line.starts_with("$ ")) => {
            Err("a `console` begins with `$ COMMAND`".into())
        }
        ("console", "") => Ok(commands(block, needs_envoy)),
        ("sh", "terminal") => {
            one(What::Start { command: text().trim_end().to_owned(), expected: Vec::new() })
        }
        ("rust" | "rust,no_run", "") => one(What::Rust),
        ("text", "") if block.iter().any(|(_, line)| line.starts_with("$ ")) => {
            Err("a command in a text that nobody runs; make it `console`".into())
        }
        ("text", "") => Ok(Vec::new()),
        _ => Err(format!(
            "nobody runs `{info}`: use `console` with lines of `$ COMMAND`, `{language} (file: NAME)`, `sh (terminal)`, or \
             say why not by `{language} (unrun: REASON)`"
        )),
    }
}

/// The commands of a block, each with its output.
fn commands(block: &[(usize, &str)], needs_envoy: bool) -> Vec<Step> {
    let mut steps: Vec<(usize, String, Vec<String>)> = Vec::new();
    for (at, line) in block {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push((*at, command.to_owned(), Vec::new())),
            (None, Some((_, command, expected))) if expected.is_empty() && command.ends_with('\\') => {
                command.pop();
                command.push_str(line.trim_start());
            }
            (None, Some((_, _, expected))) => expected.push((*line).to_owned()),
            (None, None) => {}
        }
    }
    steps
        .into_iter()
        .map(|(line, command, expected)| Step { line, needs_envoy, what: command_of(command, expected) })
        .collect()
}

fn command_of(command: String, expected: Vec<String>) -> What {
    match command.strip_suffix('&') {
        Some(command) => What::Start { command: command.trim().to_owned(), expected },
        None => What::Run { command, expected },
    }
}

/// Whether an output matches the page: `..` or `...` on a line of its own means any lines, `...`
/// within a line any text.
pub(super) fn shows(expected: &[String], output: &[String]) -> bool {
    match (expected.split_first(), output.split_first()) {
        (None, None) => true,
        (Some((wild, rest)), _) if matches!(wild.trim(), ".." | "...") => {
            shows(rest, output) || output.split_first().is_some_and(|(_, later)| shows(expected, later))
        }
        (Some((line, rest)), Some((printed, later))) => {
            is_like(line.trim_end(), printed.trim_end()) && shows(rest, later)
        }
        _ => false,
    }
}

fn is_like(expected: &str, printed: &str) -> bool {
    let Some((before, after)) = expected.split_once("...") else { return expected == printed };
    let Some(rest) = printed.strip_prefix(before) else { return false };
    let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    ends.into_iter().any(|end| is_like(after, &rest[end..]))
}
