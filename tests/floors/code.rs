//! The code of a file, without the parts that import nothing.

/// The text with comments, quoted text and test code replaced by spaces. Lines keep their numbers.
pub(crate) fn code(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    blank_texts(&mut bytes);
    blank_tests(&mut bytes);
    String::from_utf8(bytes).unwrap()
}

fn blank_texts(bytes: &mut [u8]) {
    let mut at = 0;
    while at < bytes.len() {
        let end = end_of_text(bytes, at);
        blank(&mut bytes[at..end.unwrap_or(at)]);
        at = end.unwrap_or(at + 1);
    }
}

/// The end of a comment or quoted text that begins here.
fn end_of_text(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = &bytes[at..];
    let after = |len: usize, end: &[u8]| {
        let found = rest[len..].windows(end.len()).position(|window| window == end);
        found.map_or(bytes.len(), |found| at + len + found + end.len())
    };
    match rest {
        [b'/', b'/', ..] => Some(after(2, b"\n") - 1),
        [b'/', b'*', ..] => Some(at + end_of_comment(rest)),
        [b'r', b'"' | b'#', ..] if !ends_in_word(&bytes[..at]) || bytes[at - 1] == b'b' => {
            let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
            let is_text = rest.get(1 + hashes) == Some(&b'"');
            is_text.then(|| after(2 + hashes, &[b"\"", &b"#".repeat(hashes)[..]].concat()))
        }
        [b'"', ..] => {
            let mut len = 1;
            while rest.get(len).is_some_and(|byte| *byte != b'"') {
                len += if rest[len] == b'\\' { 2 } else { 1 };
            }
            Some(at + len + 1)
        }
        [b'\'', b'\\', ..] => Some(after(3, b"'")),
        [b'\'', first, ..] => {
            // A lifetime has no second quote.
            let len = if *first < 0x80 { 1 } else { first.leading_ones() as usize };
            (rest.get(1 + len) == Some(&b'\'')).then_some(at + len + 2)
        }
        _ => None,
    }
}

/// Comments may be nested.
fn end_of_comment(text: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        match &text[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn blank_tests(bytes: &mut [u8]) {
    let mark = b"#[cfg(test)]";
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(mark.len()).position(|window| window == mark) {
        at += found;
        let end = at + mark.len() + end_of_item(&bytes[at + mark.len()..]);
        blank(&mut bytes[at..end]);
        at = end;
    }
}

/// The end of an item: its semicolon or closing brace; for a field or a variant its comma.
fn end_of_item(text: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        match text[at] {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b';' if depth == 0 => return at + 1,
            b',' if depth == 0 && !is_item(&text[..at]) => return at + 1,
            b'{' => return at + end_of_braces(&text[at..]),
            _ => {}
        }
        at += 1;
    }
    at
}

fn end_of_braces(text: &[u8]) -> usize {
    let mut depth = 0;
    for (at, byte) in text.iter().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    text.len()
}

fn is_item(text: &[u8]) -> bool {
    let items = ["fn", "use", "mod", "impl", "struct", "enum", "const", "static", "type", "trait"];
    let mut words = text.split(|byte| !is_word(*byte));
    words.any(|word| items.iter().any(|item| item.as_bytes() == word))
}

fn ends_in_word(text: &[u8]) -> bool {
    text.last().is_some_and(|byte| is_word(*byte))
}

pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn blank(bytes: &mut [u8]) {
    bytes.iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
}
