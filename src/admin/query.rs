//! The query string of a request.

use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use xds_core::{Parameters, Snapshot, TypeUrl};

use super::answer::ApiError;
use crate::type_name;

/// The keys and values of a query string. A key may occur several times.
#[derive(Debug, Default)]
pub(super) struct RequestQuery(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for RequestQuery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let refused = |error: QueryRejection| ApiError::bad(error.body_text());
        let Query(pairs) =
            Query::<Vec<(String, String)>>::from_request_parts(parts, state).await.map_err(refused)?;
        Ok(Self(pairs))
    }
}

impl RequestQuery {
    /// The last value of a key; empty if the key is missing.
    pub(super) fn text(&self, key: &str) -> &str {
        self.values(key).last().unwrap_or_default()
    }

    fn values(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(name, _)| name == key).map(|(_, value)| &**value)
    }

    /// Refuses other keys than these, so that a misspelt key is not silently ignored.
    pub(super) fn only(&self, keys: &[&str]) -> Result<(), ApiError> {
        match self.0.iter().find(|(key, _)| !keys.contains(&&**key)) {
            Some((key, _)) => {
                Err(ApiError::bad(format!("unknown parameter {key:?}; this path has {}", keys.join(", "))))
            }
            None => Ok(()),
        }
    }

    /// Whether the value is `true`; false if the key is missing.
    pub(super) fn switch(&self, key: &str) -> Result<bool, ApiError> {
        match self.text(key) {
            "true" => Ok(true),
            "" | "false" => Ok(false),
            text => Err(ApiError::bad(format!("{key}={text}: expected true or false"))),
        }
    }

    /// The number of the page; 1 if the key is missing.
    pub(super) fn page(&self) -> Result<usize, ApiError> {
        self.number("page")
    }

    /// The number of a page; 1 if the key is missing.
    pub(super) fn number(&self, key: &str) -> Result<usize, ApiError> {
        match self.text(key) {
            "" => Ok(1),
            text => text.parse().map_err(|_| ApiError::bad(format!("{key}={text}: expected a number"))),
        }
    }

    /// The search words.
    pub(super) fn search(&self) -> Search {
        Search::new(self.text("search"))
    }

    /// The type, by any of its names (see [`type_name::parse`]); `None` if the key is missing.
    pub(super) fn type_url(&self, snapshot: &Snapshot) -> Result<Option<TypeUrl>, ApiError> {
        let word = self.text("type");
        if word.is_empty() { Ok(None) } else { type_url(word, snapshot).map(Some) }
    }

    /// `parameters=env=prod,version=v2`; the key may occur several times. A value that contains a
    /// comma needs quotes, as in JSON.
    pub(super) fn parameters(&self) -> Result<Parameters, ApiError> {
        let mut pairs = Vec::new();
        for list in self.values("parameters") {
            let mut rest = list.trim();
            while !rest.is_empty() {
                let (pair, left) = pair(rest)
                    .ok_or_else(|| ApiError::bad(format!("parameters: expected KEY=VALUE,.. at {rest:?}")))?;
                pairs.push(pair);
                rest = left.trim_start();
            }
        }
        Ok(pairs.iter().map(|(key, value)| (&**key, &**value)).collect())
    }
}

/// The first `KEY=VALUE`, and the text after its comma.
fn pair(text: &str) -> Option<((String, String), &str)> {
    let (key, rest) = text.split_once('=')?;
    let (key, rest) = (key.trim(), rest.trim_start());
    if key.contains(',') {
        return None;
    }
    if rest.starts_with('"') {
        let mut strings = serde_json::Deserializer::from_str(rest).into_iter::<String>();
        let value = strings.next()?.ok()?;
        let rest = rest.get(strings.byte_offset()..)?.trim_start();
        let rest = if rest.is_empty() { rest } else { rest.strip_prefix(',')? };
        return Some(((key.into(), value), rest));
    }
    let (value, rest) = rest.split_once(',').unwrap_or((rest, ""));
    Some(((key.into(), value.trim().into()), rest))
}

/// The type that a word names.
pub(super) fn type_url(word: &str, snapshot: &Snapshot) -> Result<TypeUrl, ApiError> {
    let present: Vec<_> = snapshot.counts().map(|(type_url, _)| type_url.clone()).collect();
    type_name::parse(word, &present).map_err(|error| ApiError::missing(error.to_string()))
}

/// Words that a text has to contain, in any case.
#[derive(Debug)]
pub(super) struct Search(Vec<String>);

impl Search {
    fn new(text: &str) -> Self {
        Self(text.split_whitespace().map(str::to_lowercase).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn finds(&self, text: &str) -> bool {
        if self.is_empty() {
            return true;
        }
        // Most names are ASCII without capitals. Skip the conversion for them: there are many.
        let is_small = text.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase());
        if is_small {
            return self.0.iter().all(|word| text.contains(&**word));
        }
        let text = text.to_lowercase();
        self.0.iter().all(|word| text.contains(&**word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(text: &str) -> Option<String> {
        let query = RequestQuery(vec![("parameters".into(), text.into())]);
        query.parameters().ok().map(|parameters| parameters.to_string())
    }

    #[test]
    fn parameters_are_pairs_between_commas_and_quotes_keep_a_comma() {
        let cases = [
            ("", Some("{}")),
            ("env=prod,version=v2", Some("env=\"prod\", version=\"v2\"")),
            (" env = prod , k=", Some("env=\"prod\", k=\"\"")),
            ("k=\"a,b\", env=prod", Some("env=\"prod\", k=\"a,b\"")),
            ("k=a=b", Some("k=\"a=b\"")),
            ("env", None),
            ("a,b=c", None),
            ("k=\"a\"b", None),
            ("k=\"a", None),
        ];
        for (text, expected) in cases {
            let found = parameters(text);
            match expected {
                Some("{}") => assert!(found.is_some(), "{text}"),
                _ => assert_eq!(found.as_deref(), expected, "{text}"),
            }
        }
    }

    #[test]
    fn a_search_finds_all_its_words_in_any_case() {
        let finds = |search: &str, text: &str| Search::new(search).finds(text);
        assert!(finds("", "a") && finds("WEB 12", "edge-12-web") && finds("é", "É"));
        assert!(!finds("web 13", "edge-12-web"));
    }
}
