//! The text of a line of the log. Whatever a value quotes, the line stays one line.

use std::fmt;

use tracing::field::{Field, Visit};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::Writer;
use xds::{printable, shortened};

/// Writes the message and `name=value` for each field: shortened, and with an escape for each character that a
/// terminal does not print as itself. Texts of clients and servers are in both.
#[derive(Debug, Clone, Copy)]
pub(super) struct PrintableFields;

impl<'w> FormatFields<'w> for PrintableFields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut line = Line { writer, separator: "", result: Ok(()) };
        fields.record(&mut line);
        line.result
    }
}

struct Line<'w> {
    writer: Writer<'w>,
    separator: &'static str,
    result: fmt::Result,
}

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.result.is_err() {
            return;
        }
        // A field that has the name of a keyword is written `r#type`.
        let name = field.name().strip_prefix("r#").unwrap_or_else(|| field.name());
        let text = format!("{value:?}");
        let text = shortened(&text, VALUE_LIMIT_BYTES);
        let (separator, text) = (self.separator, printable(&text));
        self.result = match (name, self.writer.has_ansi_escapes()) {
            ("message", _) => write!(self.writer, "{separator}{text}"),
            (_, false) => write!(self.writer, "{separator}{name}={text}"),
            // The name in italics, as other programs have it.
            (_, true) => write!(self.writer, "{separator}\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{text}"),
        };
        self.separator = " ";
    }
}

/// The longest message or value. Most texts of peers have lower limits of their own.
const VALUE_LIMIT_BYTES: usize = 16 * 1024;
