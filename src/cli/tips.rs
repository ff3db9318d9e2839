//! Tips that clap adds to its errors: without those that lead astray.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Corrects the tips of an error.
///
/// clap suggests any option of the same command that has some letters in common, such as `--owner`
/// for `--folder`. And it suggests `-- --port` for `--port`, as if that could be a value.
pub(super) fn corrected(mut error: clap::Error) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    error.remove(ContextKind::Suggested);
    let (Some(ContextValue::String(given)), Some(ContextValue::String(suggested))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::SuggestedArg))
    else {
        return error;
    };
    if !is_similar(given.trim_start_matches('-'), suggested.trim_start_matches('-')) {
        error.remove(ContextKind::SuggestedArg);
        // It shows the suggested option.
        error.remove(ContextKind::Usage);
    }
    error
}

/// The most similar word, if one is similar enough.
pub(super) fn nearest<'a>(word: &str, words: impl Iterator<Item = &'a str>) -> Option<String> {
    let similar = words.filter(|other| is_similar(word, other));
    let nearest = similar.max_by(|a, b| similarity(word, a).total_cmp(&similarity(word, b)));
    nearest.map(str::to_owned)
}

/// Whether one word is probably a misspelling of the other.
fn is_similar(a: &str, b: &str) -> bool {
    similarity(a, b) >= SIMILAR
}

fn similarity(a: &str, b: &str) -> f64 {
    strsim::normalized_damerau_levenshtein(a, b)
}

/// At most four edits in ten letters.
const SIMILAR: f64 = 0.6;

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::super::Cli;
    use super::*;

    fn error(arguments: &[&str]) -> String {
        let arguments = ["xds"].iter().chain(arguments);
        corrected(Cli::command().try_get_matches_from(arguments).unwrap_err()).to_string()
    }

    #[test]
    fn a_misspelt_option_gets_a_tip_and_a_different_word_none() {
        for (command, given, meant) in [
            ("serve", "--listn", "--listen"),
            ("serve", "--names-limt", "--names-limit"),
            ("serve", "--limit-names", ""),
            ("serve", "--listen-crt", "--listen-cert"),
            ("get", "--sever", "--server"),
            ("serve", "--folder", ""),
            ("serve", "--port", ""),
            ("serve", "--cert", ""),
            ("proxy", "--server", ""),
            ("check", "--json", ""),
        ] {
            let error = error(&[command, given]);
            let tip = error.split_once("tip: ").map_or("", |(_, tip)| tip);
            assert!(error.contains(&format!("unexpected argument '{given}'")), "{error}");
            match meant {
                "" => assert!(!error.contains("tip:"), "{error}"),
                _ => assert!(tip.contains(&format!("'{meant}'")), "{error}"),
            }
        }
    }

    #[test]
    fn the_nearest_word_is_the_one_with_the_fewest_edits() {
        let words = ["names-limit", "name", "listen"];
        assert_eq!(nearest("name-limits", words.into_iter()).as_deref(), Some("names-limit"));
        assert_eq!(nearest("folder", words.into_iter()), None);
    }
}
