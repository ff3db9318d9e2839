//! Table W of the rules: what may be written (SV5).

use std::fmt;

use super::refusal::{SchemaRefusal, SchemaRule};
use super::version::{MarkedVersion, SchemaVersion};

/// The forms of a resource that are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredForms {
    /// There is none.
    Absent,
    /// There is one.
    Alone(SchemaVersion),
    /// A mirrored write made both, and they belong together.
    Both {
        /// The version of the old form.
        old: SchemaVersion,
        /// The version of the new form.
        new: SchemaVersion,
    },
}

/// Whether a writer overrides the refusals that can be overridden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Force {
    /// It does not.
    Off,
    /// `force_schema` is set.
    On,
}

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteEffect {
    /// The content with this version, in all forms that the store writes.
    AllForms(SchemaVersion),
    /// The content with this version as the old form; the new form stays as it is.
    OldAlone(SchemaVersion),
}

/// What a server of this version does with a content that is written over what is stored.
///
/// # Errors
/// The row of the table that refuses.
pub fn judge_write(
    stored: StoredForms,
    written: MarkedVersion,
    server: SchemaVersion,
    force: Force,
) -> Result<WriteEffect, SchemaRefusal> {
    let refused = |rule| Err(SchemaRefusal { rule, stored, written: Some(written), server });
    let MarkedVersion { version, is_downgraded } = written;
    match (is_downgraded, force, version > server) {
        (true, Force::Off, _) => return refused(SchemaRule::W6),
        (true, Force::On, true) => return refused(SchemaRule::W8),
        // Force does not help: nobody can say what the content means.
        (false, _, true) => return refused(SchemaRule::W5),
        (true, Force::On, false) | (false, Force::Off | Force::On, false) => {}
    }
    match stored {
        StoredForms::Alone(stored) if stored.major() > server.major() => refused(SchemaRule::W14),
        StoredForms::Alone(stored) if stored > server && force == Force::Off => refused(SchemaRule::W2),
        StoredForms::Both { new, .. } if new.major() > server.major() => match force {
            Force::Off => refused(SchemaRule::W9),
            Force::On => Ok(WriteEffect::OldAlone(version)),
        },
        StoredForms::Both { old, new } if old.max(new) > server && force == Force::Off => {
            refused(SchemaRule::W2)
        }
        StoredForms::Absent | StoredForms::Alone(_) | StoredForms::Both { .. } => {
            Ok(WriteEffect::AllForms(version))
        }
    }
}

impl fmt::Display for StoredForms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => Ok(()),
            Self::Alone(version) => version.fmt(f),
            Self::Both { old, new } => write!(f, "{old} and {new}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> SchemaVersion {
        text.parse().unwrap()
    }

    fn judge(stored: &str, written: &str, server: &str, force: Force) -> Result<WriteEffect, SchemaRule> {
        let stored = match stored.split_once('+') {
            None if stored.is_empty() => StoredForms::Absent,
            None => StoredForms::Alone(version(stored)),
            Some((old, new)) => StoredForms::Both { old: version(old), new: version(new) },
        };
        let judged = judge_write(stored, written.parse().unwrap(), version(server), force);
        judged.map_err(|refused| refused.rule)
    }

    fn all(text: &str) -> Result<WriteEffect, SchemaRule> {
        Ok(WriteEffect::AllForms(version(text)))
    }

    const STORED: [&str; 7] = ["", "1.0", "1.1", "1.2", "2.0", "1.1+2.0", "1.2+2.0"];
    const ANY: [Force; 2] = [Force::Off, Force::On];

    #[test]
    fn sv5_row_w1_a_known_version_is_written() {
        assert_eq!(judge("1.1", "1.1", "1.1", Force::Off), all("1.1"));
        // An older label is the writer's choice: its content has no newer fields.
        assert_eq!(judge("1.1", "1.0", "1.1", Force::Off), all("1.0"));
    }

    #[test]
    fn sv5_row_w2_w3_a_newer_stored_version_is_overwritten_by_force_only() {
        assert_eq!(judge("1.2", "1.1", "1.1", Force::Off), Err(SchemaRule::W2));
        assert_eq!(judge("1.2", "1.1", "1.1", Force::On), all("1.1"));
    }

    #[test]
    fn sv5_row_w4_a_newer_version_that_the_server_knows_is_written() {
        ANY.iter().for_each(|force| assert_eq!(judge("1.1", "1.2", "1.2", *force), all("1.2")));
    }

    #[test]
    fn sv5_row_w5_a_version_that_the_server_does_not_know_is_never_written() {
        for (stored, force) in STORED.iter().flat_map(|stored| ANY.map(|force| (stored, force))) {
            assert_eq!(judge(stored, "1.2", "1.1", force), Err(SchemaRule::W5), "{stored} {force:?}");
        }
    }

    #[test]
    fn sv5_sv7_row_w6_a_downgraded_content_is_not_written() {
        for (stored, server) in STORED.iter().flat_map(|stored| ["1.0", "1.1", "2.0"].map(|of| (stored, of)))
        {
            assert_eq!(judge(stored, "1.1+downgraded", server, Force::Off), Err(SchemaRule::W6));
        }
    }

    #[test]
    fn sv5_sv7_row_w7_by_force_it_is_written_without_the_mark() {
        for stored in ["", "1.0", "1.1", "1.2"] {
            assert_eq!(judge(stored, "1.1+downgraded", "1.1", Force::On), all("1.1"), "{stored}");
        }
    }

    #[test]
    fn sv5_row_w8_by_force_it_is_not_written_either_if_the_server_does_not_know_its_version() {
        for stored in STORED {
            assert_eq!(judge(stored, "1.1+downgraded", "1.0", Force::On), Err(SchemaRule::W8), "{stored}");
        }
    }

    #[test]
    fn sv5_row_w9_w10_beside_a_new_form_that_the_server_does_not_know_force_writes_the_old_one_alone() {
        for written in ["1.0", "1.1"] {
            assert_eq!(judge("1.1+2.0", written, "1.1", Force::Off), Err(SchemaRule::W9));
            let alone = Ok(WriteEffect::OldAlone(version(written)));
            assert_eq!(judge("1.1+2.0", written, "1.1", Force::On), alone);
        }
        let unmarked = Ok(WriteEffect::OldAlone(version("1.1")));
        assert_eq!(judge("1.1+2.0", "1.1+downgraded", "1.1", Force::On), unmarked);
    }

    #[test]
    fn sv5_row_w11_w12_a_server_that_knows_both_forms_writes_both() {
        for (written, force) in ["1.0", "2.0"].iter().flat_map(|written| ANY.map(|force| (written, force))) {
            assert_eq!(judge("1.1+2.0", written, "2.0", force), all(written));
        }
    }

    #[test]
    fn sv5_row_w13_an_absent_record_is_written() {
        ANY.iter().for_each(|force| assert_eq!(judge("", "1.1", "1.1", *force), all("1.1")));
    }

    #[test]
    fn sv5_row_w14_an_unknown_major_is_not_overwritten() {
        ANY.iter().for_each(|force| assert_eq!(judge("2.0", "1.1", "1.1", *force), Err(SchemaRule::W14)));
    }
}
