use super::*;

fn keys(ids: &str) -> SealKeys {
    let line = |id: &str| format!("{id} {}\n", STANDARD.encode(blake3::hash(id.as_bytes()).as_bytes()));
    SealKeys::parse(&ids.split_whitespace().map(line).collect::<String>()).unwrap()
}

fn seal(ids: &str) -> Seal {
    Seal::new(keys(ids), ["t/Secret".into()])
}

fn key(name: &str) -> RecordKey {
    RecordKey::parse(&proto::Key { type_url: "t/Secret".into(), name: name.into(), when: String::new() })
        .unwrap()
}

fn content(text: &str) -> proto::Content {
    let labels = [("team".to_owned(), text.to_owned())].into();
    proto::Content { payload: text.to_owned().into(), labels, ..Default::default() }
}

/// An open state as a put makes it.
fn open_state(text: &str) -> RecordState {
    let content = Some(content(text));
    let mut state = RecordState { key: Some(key("a").to_proto()), content, ..Default::default() };
    state.digest = record::content_digest(&state);
    state
}

/// Counts up, where a caller has random numbers.
fn nonces() -> impl FnMut() -> SealNonce {
    let mut last = 0;
    move || {
        last += 1;
        [last; 24]
    }
}

fn contains(haystack: &[u8], text: &str) -> bool {
    haystack.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn st49_a_sealed_state_shows_nothing_of_its_contents_and_opens_to_the_same() {
    let seal = seal("k1");
    let mut open = open_state("the password");
    open.quarantined =
        Some(proto::Quarantined { serve: Some(content("the password before")), ..Default::default() });
    let sealed = seal.seal(&key("a"), open.clone(), &mut nonces());
    assert!(!contains(&sealed.encode_to_vec(), "password"));
    assert!(contains(&sealed.encode_to_vec(), "k1"), "the id of the key is readable");
    assert_eq!(seal.open(&key("a"), sealed.clone()), Ok(open.clone()));
    let again = seal.seal(&key("a"), open, &mut || [9; 24]);
    assert_ne!(again.content, sealed.content, "another nonce");
}

#[test]
fn st49_the_first_key_seals_and_all_open() {
    let (old, both, new) = (seal("k1"), seal("k2 k1"), seal("k2"));
    let open = open_state("x");
    let sealed = old.seal(&key("a"), open.clone(), &mut nonces());
    assert_eq!(both.open(&key("a"), sealed.clone()), Ok(open.clone()));
    let missing = UnsealError::NoKey { key: key("a"), id: "k1".into() };
    assert_eq!(
        missing.to_string(),
        "t/Secret a is sealed by the key \"k1\": give a file with this key (--seal-keys)"
    );
    assert_eq!(new.open(&key("a"), sealed), Err(missing));
    let sealed = both.seal(&key("a"), open.clone(), &mut nonces());
    assert_eq!(new.open(&key("a"), sealed), Ok(open));
}

#[test]
fn st49_a_content_that_was_changed_or_moved_to_another_record_is_not_opened() {
    let seal = seal("k1");
    let sealed = seal.seal(&key("a"), open_state("x"), &mut nonces());
    let changed = |key: &RecordKey| Err(UnsealError::Changed { key: key.clone(), id: "k1".into() });
    assert_eq!(seal.open(&key("b"), sealed.clone()), changed(&key("b")));
    let other = Seal::new(SealKeys::parse(&format!("k1 {}", STANDARD.encode([7; 32]))).unwrap(), []);
    assert_eq!(other.open(&key("a"), sealed.clone()), changed(&key("a")));
    let payload = sealed.content.as_ref().unwrap().payload.clone();
    for at in 0..payload.len() {
        let mut bytes = payload.to_vec();
        bytes[at] ^= 1;
        let mut state = sealed.clone();
        state.content = Some(proto::Content { payload: bytes.into(), ..Default::default() });
        assert!(seal.open(&key("a"), state).is_err(), "byte {at}");
    }
}

#[test]
fn st49_stored_digests_are_keyed_and_open_ones_do_not_depend_on_the_keys() {
    let open = open_state("x");
    let sealed = ["k1", "k2"].map(|id| seal(id).seal(&key("a"), open.clone(), &mut nonces()));
    assert!(sealed.iter().all(|state| state.is_sealed && state.digest.len() == 32));
    assert_ne!(sealed[0].digest, sealed[1].digest);
    assert!(sealed.iter().all(|state| state.digest != open.digest), "a guess cannot be compared");
    for state in sealed {
        assert_eq!(seal("k1 k2").open(&key("a"), state), Ok(open.clone()));
    }
    let mut other = seal("k1").seal(&key("a"), open, &mut nonces());
    other.digest = Bytes::from_static(&[0; 32]);
    assert!(matches!(seal("k1").open(&key("a"), other), Err(UnsealError::Changed { .. })));
}

#[test]
fn st49_only_contents_of_its_types_are_covered() {
    let seal = seal("k1");
    let other =
        RecordKey::parse(&proto::Key { type_url: "t/T".into(), name: "a".into(), when: String::new() });
    assert!(seal.covers(&key("a")) && !seal.covers(&other.unwrap()));
}

#[test]
fn st70_a_file_of_keys_has_an_id_and_32_bytes_in_each_line() {
    let good = STANDARD.encode([1; 32]);
    assert_eq!(SealKeys::parse(&format!("# keys\n\nb-2 {good}\n  a.1\t{good} \n")).unwrap().0.len(), 2);
    let short = STANDARD.encode([1; 31]);
    let line = 2;
    for (text, expected) in [
        (String::new(), SealKeysError::Empty),
        ("# none".into(), SealKeysError::Empty),
        (format!("a {good}\nb"), SealKeysError::Malformed { line }),
        (format!("a {good}\nb/c {good}"), SealKeysError::Malformed { line }),
        (format!("a {good}\nb {short}"), SealKeysError::NotAKey { line, id: "b".into() }),
        (format!("a {good}\nb hunter2"), SealKeysError::NotAKey { line, id: "b".into() }),
        (format!("a {good}\na {good}"), SealKeysError::Twice { line, id: "a".into() }),
    ] {
        let error = SealKeys::parse(&text).unwrap_err();
        assert_eq!(error, expected);
        assert!(!error.to_string().contains("hunter2"));
    }
    let shown = format!("{:?}", keys("a"));
    assert!(shown.contains("\"a\"") && !shown.contains("cipher"), "{shown}");
}
