//! The syntax of RE2, the regular expressions of Envoy.
//!
//! The crate `regex` has another syntax: it has classes within classes and `(?x)`, takes `a**` and
//! `\y`, and does not take `/{id}` or `\Q`. So a pattern is read here, as RE2 reads it, and is not
//! compiled.
//!
//! A pattern is refused only if each Envoy refuses it. RE2 reads a pattern as UTF-8 or, as in Envoy
//! 1.40, as Latin-1. What it takes in one of them is taken, such as `\x{100}`. So is a script that
//! may be in a newer Unicode, and a pattern whose program is too large: an Envoy has its own limit.

/// Why RE2 does not take a pattern, with the part of the pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SyntaxFlaw {
    #[error("there is nothing before `{0}` that it could repeat")]
    NothingToRepeat(String),
    #[error("`{0}` repeats a repetition")]
    RepeatedTwice(String),
    #[error(
        "the counts of `{0}` are not valid: a repetition, with the repetitions in it, is at most 1000 times"
    )]
    RepeatCount(String),
    #[error("a group is not closed")]
    GroupUnclosed,
    #[error("`)` closes no group")]
    GroupUnopened,
    #[error("look-around, as in `{0}`, is not supported")]
    LookAround(String),
    #[error("no group begins with `{0}`")]
    GroupFlags(String),
    #[error("{0:?} is no name of a group")]
    GroupName(String),
    #[error("a character class is not closed")]
    ClassUnclosed,
    #[error("there is no class `{0}`")]
    UnknownClass(String),
    #[error("the range `{0}` ends before it begins")]
    Range(String),
    #[error("there is no escape sequence `{0}`")]
    Escape(String),
    #[error("a backreference, as `{0}`, is not supported")]
    Backreference(String),
    #[error("nothing follows the last `\\`")]
    TrailingBackslash,
}

/// Checks the syntax of a pattern.
pub(super) fn check(pattern: &str) -> Result<(), SyntaxFlaw> {
    let mut parser = Parser { rest: pattern, outer: Vec::new(), branch: Branch::default() };
    // The repetition just before `rest`.
    let mut repetition = "";
    while let Some(next) = parser.rest.chars().next() {
        repetition = match next {
            '*' | '+' | '?' | '{' => parser.repetition(repetition)?,
            other => {
                parser.item(other)?;
                ""
            }
        };
    }
    if parser.outer.is_empty() { Ok(()) } else { Err(SyntaxFlaw::GroupUnclosed) }
}

struct Parser<'a> {
    rest: &'a str,
    /// The open groups, from the outermost one, without the last.
    outer: Vec<Branch>,
    branch: Branch,
}

/// What was read of a group since its last `|`.
#[derive(Debug, Default)]
struct Branch {
    /// How often the last item is repeated; none if there is nothing that could be repeated.
    last: Option<u64>,
    /// The most repetitions of an item of the group, also before the last `|`.
    most: u64,
}

impl Branch {
    /// Adds an item with this number of repetitions in it.
    fn add(&mut self, repetitions: u64) {
        let repetitions = repetitions.max(1);
        self.last = Some(repetitions);
        self.most = self.most.max(repetitions);
    }
}

impl<'a> Parser<'a> {
    /// Reads a repetition, or a `{` that begins none. Returns the text of the repetition.
    fn repetition(&mut self, before: &'a str) -> Result<&'a str, SyntaxFlaw> {
        let text = self.rest;
        let Some((counts, rest)) = counts(text) else {
            self.rest = &text[1..];
            self.branch.add(1);
            return Ok("");
        };
        self.rest = rest.strip_prefix('?').unwrap_or(rest);
        let read = &text[..text.len() - self.rest.len()];
        let shown = || read.to_owned();
        if !before.is_empty() {
            return Err(SyntaxFlaw::RepeatedTwice(format!("{before}{read}")));
        }
        if counts.least > COUNT_LIMIT
            || counts.most.is_some_and(|most| most > COUNT_LIMIT || most < counts.least)
        {
            return Err(SyntaxFlaw::RepeatCount(shown()));
        }
        let inner = self.branch.last.ok_or_else(|| SyntaxFlaw::NothingToRepeat(shown()))?;
        let times = counts.most.unwrap_or(counts.least);
        let repetitions = inner * times.max(1);
        if times > 1 && repetitions > COUNT_LIMIT {
            return Err(SyntaxFlaw::RepeatCount(shown()));
        }
        self.branch.add(repetitions);
        Ok(read)
    }

    /// Reads what is no repetition.
    fn item(&mut self, first: char) -> Result<(), SyntaxFlaw> {
        match first {
            '(' => return self.open(),
            ')' => {
                let group =
                    std::mem::replace(&mut self.branch, self.outer.pop().ok_or(SyntaxFlaw::GroupUnopened)?);
                self.branch.add(group.most);
            }
            '|' => self.branch.last = None,
            '[' => {
                self.class()?;
                return Ok(());
            }
            '\\' => return self.escaped_item(),
            _ => self.branch.add(1),
        }
        self.rest = &self.rest[first.len_utf8()..];
        Ok(())
    }

    /// Reads the beginning of a group, or flags such as `(?i)`.
    fn open(&mut self) -> Result<(), SyntaxFlaw> {
        let text = self.rest;
        let Some(flags) = text.strip_prefix("(?") else {
            self.begin_group(&text[1..]);
            return Ok(());
        };
        if let Some(look) = ["=", "!", "<=", "<!"].into_iter().find(|look| flags.starts_with(look)) {
            return Err(SyntaxFlaw::LookAround(format!("(?{look}")));
        }
        if let Some(name) = flags.strip_prefix("P<").or_else(|| flags.strip_prefix('<')) {
            let (name, rest) = name.split_once('>').unwrap_or((name, ""));
            // Other letters are taken in UTF-8.
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || !c.is_ascii();
            if name.is_empty() || !name.chars().all(is_word) {
                return Err(SyntaxFlaw::GroupName(name.to_owned()));
            }
            self.begin_group(rest);
            return Ok(());
        }
        let (mut is_negated, mut needs_flag) = (false, false);
        for (at, flag) in flags.char_indices() {
            let rest = &flags[at + flag.len_utf8()..];
            match flag {
                'i' | 'm' | 's' | 'U' => needs_flag = false,
                '-' if !is_negated => (is_negated, needs_flag) = (true, true),
                ':' if !needs_flag => {
                    self.begin_group(rest);
                    return Ok(());
                }
                ')' if !needs_flag => {
                    self.rest = rest;
                    return Ok(());
                }
                _ => return Err(SyntaxFlaw::GroupFlags(text[..text.len() - rest.len()].to_owned())),
            }
        }
        Err(SyntaxFlaw::GroupUnclosed)
    }

    fn begin_group(&mut self, rest: &'a str) {
        self.outer.push(std::mem::take(&mut self.branch));
        self.rest = rest;
    }

    /// Reads one of these escapes, if the rest begins with one.
    fn take_one_of(&mut self, escapes: &[&str]) -> bool {
        let rest = escapes.iter().find_map(|escape| self.rest.strip_prefix(escape));
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn escaped_item(&mut self) -> Result<(), SyntaxFlaw> {
        if let Some(quoted) = self.rest.strip_prefix(r"\Q") {
            let (quoted, rest) = quoted.split_once(r"\E").unwrap_or((quoted, ""));
            if !quoted.is_empty() {
                self.branch.add(1);
            }
            self.rest = rest;
            return Ok(());
        }
        if !self.take_one_of(&ITEMS) && !self.take_one_of(&PERL_CLASSES) && !self.unicode_class()? {
            self.escape()?;
        }
        self.branch.add(1);
        Ok(())
    }

    /// Reads a class such as `[^a-z]`.
    fn class(&mut self) -> Result<(), SyntaxFlaw> {
        self.rest = &self.rest[1..];
        self.rest = self.rest.strip_prefix('^').unwrap_or(self.rest);
        let mut is_first = true;
        // A `]` at the start is one of the characters.
        while is_first || !self.rest.starts_with(']') {
            is_first = false;
            if !self.take_one_of(&PERL_CLASSES) && !self.posix_class()? && !self.unicode_class()? {
                self.range()?;
            }
        }
        self.rest = &self.rest[1..];
        self.branch.add(1);
        Ok(())
    }

    /// Reads a class within a class, such as `[:alpha:]`, if there is one.
    fn posix_class(&mut self) -> Result<bool, SyntaxFlaw> {
        let Some((name, rest)) = self.rest.strip_prefix("[:").and_then(|name| name.split_once(":]")) else {
            return Ok(false);
        };
        if !POSIX_CLASSES.contains(&name.strip_prefix('^').unwrap_or(name)) {
            return Err(SyntaxFlaw::UnknownClass(format!("[:{name}:]")));
        }
        self.rest = rest;
        Ok(true)
    }

    /// Reads a class such as `\pL` or `\P{Greek}`, if there is one.
    fn unicode_class(&mut self) -> Result<bool, SyntaxFlaw> {
        let text = self.rest;
        let Some(after) = text.strip_prefix(r"\p").or_else(|| text.strip_prefix(r"\P")) else {
            return Ok(false);
        };
        let (name, rest) = match after.strip_prefix('{') {
            Some(braced) => braced.split_once('}').unwrap_or_default(),
            None => after.split_at(after.chars().next().map_or(0, char::len_utf8)),
        };
        let name = name.strip_prefix('^').unwrap_or(name);
        let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
        let is_known = match name.len() {
            1 => "CLMNPSZ".contains(name),
            // A category of two letters, `Any`, or a script, which may be in a newer Unicode.
            _ => name.starts_with(|c: char| c.is_ascii_uppercase()) && name.chars().all(is_letter),
        };
        if !is_known {
            return Err(SyntaxFlaw::UnknownClass(text[..text.len() - rest.len()].to_owned()));
        }
        self.rest = rest;
        Ok(true)
    }

    /// Reads a character of a class, or a range.
    fn range(&mut self) -> Result<(), SyntaxFlaw> {
        let text = self.rest;
        let first = self.character()?;
        if self.rest.len() > 1 && self.rest.starts_with('-') && !self.rest.starts_with("-]") {
            self.rest = &self.rest[1..];
            let last = self.character()?;
            // Of other characters, Latin-1 compares bytes.
            if last < first && last.is_ascii() {
                return Err(SyntaxFlaw::Range(text[..text.len() - self.rest.len()].to_owned()));
            }
        }
        Ok(())
    }

    fn character(&mut self) -> Result<char, SyntaxFlaw> {
        let first = self.rest.chars().next().ok_or(SyntaxFlaw::ClassUnclosed)?;
        if first == '\\' {
            return self.escape();
        }
        self.rest = &self.rest[first.len_utf8()..];
        Ok(first)
    }

    /// Reads the escape of one character.
    fn escape(&mut self) -> Result<char, SyntaxFlaw> {
        let text = self.rest;
        let after = &text[1..];
        let escaped = after.chars().next().ok_or(SyntaxFlaw::TrailingBackslash)?;
        let digits =
            |most: usize, radix: u32| after.chars().take(most).take_while(move |c| c.is_digit(radix)).count();
        let (character, length) = match escaped {
            'a' => (Some('\x07'), 1),
            'f' => (Some('\x0c'), 1),
            'n' => (Some('\n'), 1),
            'r' => (Some('\r'), 1),
            't' => (Some('\t'), 1),
            'v' => (Some('\x0b'), 1),
            'x' => match after[1..].strip_prefix('{') {
                Some(braced) => {
                    let (code, is_closed) =
                        braced.split_once('}').map_or((braced, false), |(code, _)| (code, true));
                    (of_code(code, 16).filter(|_| is_closed), code.len() + 3)
                }
                None => (after.get(1..3).and_then(|code| of_code(code, 16)), 3),
            },
            '1'..='7' if digits(2, 8) < 2 => return Err(SyntaxFlaw::Backreference(format!("\\{escaped}"))),
            '0'..='7' => {
                let length = digits(3, 8);
                (of_code(&after[..length], 8), length)
            }
            mark if mark.is_ascii() && (!mark.is_ascii_alphanumeric()) => (Some(mark), 1),
            other => (None, other.len_utf8()),
        };
        let end = length.min(after.len());
        let Some(character) = character else {
            let shown = text.get(..1 + end).unwrap_or(text);
            return Err(SyntaxFlaw::Escape(shown.to_owned()));
        };
        self.rest = &after[end..];
        Ok(character)
    }
}

/// The character with this code. Latin-1 has those up to 255, and UTF-8 the others.
fn of_code(digits: &str, radix: u32) -> Option<char> {
    let is_number = !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix));
    let code = u32::from_str_radix(digits, radix).ok().filter(|_| is_number)?;
    // A surrogate is taken, too.
    char::from_u32(code).or_else(|| (code <= u32::from(char::MAX)).then_some(char::REPLACEMENT_CHARACTER))
}

/// How often something may be repeated.
struct Counts {
    least: u64,
    /// None if there is no limit.
    most: Option<u64>,
}

/// Reads a repetition, and returns the text after it. A `{` that RE2 reads as itself begins none.
fn counts(text: &str) -> Option<(Counts, &str)> {
    let sign = |least, most| Some((Counts { least, most }, &text[1..]));
    match text.as_bytes().first()? {
        b'*' => return sign(0, None),
        b'+' => return sign(1, None),
        b'?' => return sign(0, Some(1)),
        _ => {}
    }
    let (least, rest) = count(text.strip_prefix('{')?)?;
    let (most, rest) = match rest.strip_prefix(',') {
        None => (Some(least), rest),
        Some(rest) if rest.starts_with('}') => (None, rest),
        Some(rest) => count(rest).map(|(most, rest)| (Some(most), rest))?,
    };
    Some((Counts { least, most }, rest.strip_prefix('}')?))
}

/// Reads a number without leading zeros, of at most nine digits.
fn count(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let is_read = digits.len() <= 9 && (digits.len() == 1 || !digits.starts_with('0'));
    is_read.then(|| digits.parse().ok())?.map(|number| (number, rest))
}

/// The most repetitions, also of repetitions within each other.
const COUNT_LIMIT: u64 = 1000;

/// Escapes that are no characters, outside of a class.
const ITEMS: [&str; 5] = [r"\b", r"\B", r"\A", r"\z", r"\C"];
const PERL_CLASSES: [&str; 6] = [r"\d", r"\D", r"\s", r"\S", r"\w", r"\W"];
const POSIX_CLASSES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space",
    "upper", "word", "xdigit",
];

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn what_re2_takes_is_taken() {
        let taken = [
            "a",
            "",
            "a||b",
            "()",
            "(|a)",
            "()*",
            "^*",
            r"\b+",
            "a*?",
            "a{2}?",
            "a{1000}",
            "(a{30}){30}",
            "a{1000,}",
            "(?i:a{2}){3}",
            "(?:a*)*",
            "/{id}",
            "{",
            "}",
            "]",
            "a{,5}",
            "a{01}",
            "a{9999999999}",
            "(?P<name>x)",
            "(?<a>x)",
            "(?P<a>x)(?P<a>y)",
            "(?P<1>x)",
            "(?P<é>x)",
            "(?i)a",
            "(?i-s:a)",
            "a(?i)*",
            "a*(?i)*",
            r"a*\Q\E*",
            r"\Q(*[\E",
            r"\Qab",
            "[]a]",
            "[^]a]",
            "[[]a",
            "[[:foo]",
            "[a&&b]",
            "[a-]",
            "[-a]",
            "[a-b-c]",
            r"[\d-z]",
            "[[:alpha:][:^digit:]]",
            r"\pN\PL\p{Greek}\p{^Lu}\p{Any}",
            r"[\pN]",
        ];
        for pattern in taken {
            assert_eq!(check(pattern), Ok(()), "{pattern}");
        }
    }

    #[test]
    fn what_re2_does_not_take_is_refused_with_the_reason() {
        let counts = "are not valid: a repetition, with the repetitions in it, is at most 1000 times";
        let refused = [
            ("*.a", "there is nothing before `*` that it could repeat"),
            ("+a", "there is nothing before `+` that it could repeat"),
            ("a|*", "there is nothing before `*` that it could repeat"),
            ("(?i){2}", "there is nothing before `{2}` that it could repeat"),
            ("a**", "`**` repeats a repetition"),
            ("a{2}{3}", "`{2}{3}` repeats a repetition"),
            ("a*??", "`*??` repeats a repetition"),
            ("a{1,2000}", &format!("the counts of `{{1,2000}}` {counts}")),
            ("a{2,1}", &format!("the counts of `{{2,1}}` {counts}")),
            ("(?:a{40}|b){30}", &format!("the counts of `{{30}}` {counts}")),
            ("((a{100}){2}){6}", &format!("the counts of `{{6}}` {counts}")),
            ("(a", "a group is not closed"),
            ("(?i", "a group is not closed"),
            ("a)", "`)` closes no group"),
            ("(?=a)", "look-around, as in `(?=`, is not supported"),
            ("(?<!a)b", "look-around, as in `(?<!`, is not supported"),
            ("(?x)a", "no group begins with `(?x`"),
            ("(?i-)a", "no group begins with `(?i-)`"),
            ("(?P=a)", "no group begins with `(?P`"),
            ("(?P<a-b>x)", "\"a-b\" is no name of a group"),
            ("[a", "a character class is not closed"),
            ("[]", "a character class is not closed"),
            ("[[:foo:]]", "there is no class `[:foo:]`"),
            (r"\p{greek}", r"there is no class `\p{greek}`"),
            (r"\pQ", r"there is no class `\pQ`"),
            (r"\p", r"there is no class `\p`"),
            ("[z-a]", "the range `z-a` ends before it begins"),
            (r"[\x42-A]", r"the range `\x42-A` ends before it begins"),
            (r"\y", r"there is no escape sequence `\y`"),
            (r"\Z", r"there is no escape sequence `\Z`"),
            (r"\E", r"there is no escape sequence `\E`"),
            (r"\8", r"there is no escape sequence `\8`"),
            (r"\u0041", r"there is no escape sequence `\u`"),
            (r"\é", r"there is no escape sequence `\é`"),
            (r"\x4", r"there is no escape sequence `\x4`"),
            (r"\x{}", r"there is no escape sequence `\x{}`"),
            (r"\x{110000}", r"there is no escape sequence `\x{110000}`"),
            (r"[a-\d]", r"there is no escape sequence `\d`"),
            (r"[\b]", r"there is no escape sequence `\b`"),
            (r"(a)\1", r"a backreference, as `\1`, is not supported"),
            ("a\\", r"nothing follows the last `\`"),
        ];
        for (pattern, reason) in refused {
            let flaw = check(pattern).map_err(|flaw| flaw.to_string());
            assert_eq!(flaw, Err(reason.to_owned()), "{pattern}");
        }
    }
}
