//! Table Rd of the rules: what may be read (SV6).

use super::refusal::{SchemaRefusal, SchemaRule};
use super::version::{MarkedVersion, SchemaVersion};
use super::write::StoredForms;

/// The form that a reader gets, with its version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadEffect {
    /// The only form that is stored.
    Alone(MarkedVersion),
    /// The old form.
    Old(MarkedVersion),
    /// The new form.
    New(MarkedVersion),
    /// The new form, converted to the old one.
    ConvertedDown(MarkedVersion),
}

/// What a server of this version answers to a client that understands a version.
///
/// # Errors
/// The row of the table that refuses.
pub fn judge_read(
    stored: StoredForms,
    server: SchemaVersion,
    knows: SchemaVersion,
) -> Result<Option<ReadEffect>, SchemaRefusal> {
    let shown = |of: SchemaVersion| {
        let version = of.min(server).min(knows);
        // Something newer is stored, so the content must not be written back.
        MarkedVersion { version, is_downgraded: version < of }
    };
    let old = |of: SchemaVersion| {
        let version = of.min(server).min(knows);
        // SV8: the new form counts, so the old one is a downgraded form of it.
        ReadEffect::Old(MarkedVersion { version, is_downgraded: true })
    };
    Ok(Some(match stored {
        StoredForms::Absent => return Ok(None),
        StoredForms::Alone(of) if of.major() > server.major() => {
            let rule = if knows.major() < of.major() { SchemaRule::Rd3 } else { SchemaRule::Rd4 };
            return Err(SchemaRefusal { rule, stored, written: None, server });
        }
        StoredForms::Alone(of) if of.major() > knows.major() => {
            ReadEffect::ConvertedDown(MarkedVersion { version: knows, is_downgraded: true })
        }
        StoredForms::Alone(of) => ReadEffect::Alone(shown(of)),
        StoredForms::Both { old: of, new } if new.major() > server.major() || new.major() > knows.major() => {
            old(of)
        }
        StoredForms::Both { new, .. } => ReadEffect::New(shown(new)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> SchemaVersion {
        text.parse().unwrap()
    }

    /// What is read: the form and its version.
    fn read(stored: StoredForms, server: &str, knows: &str) -> Result<(&'static str, String), SchemaRule> {
        let judged = judge_read(stored, version(server), version(knows)).map_err(|refused| refused.rule)?;
        Ok(match judged.expect("something is stored") {
            ReadEffect::Alone(marked) => ("alone", marked.to_string()),
            ReadEffect::Old(marked) => ("old", marked.to_string()),
            ReadEffect::New(marked) => ("new", marked.to_string()),
            ReadEffect::ConvertedDown(marked) => ("converted", marked.to_string()),
        })
    }

    fn alone(stored: &str, server: &str, knows: &str) -> Result<(&'static str, String), SchemaRule> {
        read(StoredForms::Alone(version(stored)), server, knows)
    }

    fn both(server: &str, knows: &str) -> Result<(&'static str, String), SchemaRule> {
        read(StoredForms::Both { old: version("1.1"), new: version("2.0") }, server, knows)
    }

    fn is(form: &'static str, text: &str) -> Result<(&'static str, String), SchemaRule> {
        Ok((form, text.to_owned()))
    }

    #[test]
    fn sv6_row_rd1_rd2_a_server_downgrades_to_what_it_knows_whatever_the_client_knows() {
        for knows in ["1.1", "1.2", "2.0"] {
            assert_eq!(alone("1.2", "1.1", knows), is("alone", "1.1+downgraded"), "{knows}");
        }
    }

    #[test]
    fn sv6_row_rd3_rd4_an_unknown_major_is_not_read() {
        assert_eq!(alone("2.0", "1.1", "1.1"), Err(SchemaRule::Rd3));
        assert_eq!(alone("2.0", "1.1", "2.0"), Err(SchemaRule::Rd4));
    }

    #[test]
    fn sv6_row_rd5_a_client_gets_no_newer_version_than_it_knows() {
        assert_eq!(alone("1.1", "1.1", "1"), is("alone", "1.0+downgraded"));
    }

    #[test]
    fn sv6_row_rd6_rd7_a_client_that_knows_more_gets_what_is_stored() {
        for knows in ["1.1", "1.2", "2.0", "3.1"] {
            assert_eq!(alone("1.1", "1.1", knows), is("alone", "1.1"), "{knows}");
            assert_eq!(alone("1.1", "2.0", knows), is("alone", "1.1"), "{knows}");
        }
    }

    #[test]
    fn sv6_sv8_row_rd8_rd9_a_server_that_does_not_know_the_new_form_reads_the_old_one_downgraded() {
        for knows in ["1.1", "2.0"] {
            assert_eq!(both("1.1", knows), is("old", "1.1+downgraded"), "{knows}");
        }
        assert_eq!(both("1.0", "2.0"), is("old", "1.0+downgraded"));
    }

    #[test]
    fn sv6_row_rd10_the_new_form_counts() {
        assert_eq!(both("2.0", "2.0"), is("new", "2.0"));
    }

    #[test]
    fn sv6_sv8_row_rd11_a_client_that_knows_the_old_form_gets_it_downgraded() {
        assert_eq!(both("2.0", "1.1"), is("old", "1.1+downgraded"));
    }

    #[test]
    fn sv6_without_an_old_form_the_new_one_is_converted_down() {
        assert_eq!(alone("2.0", "2.0", "1.1"), is("converted", "1.1+downgraded"));
    }
}
