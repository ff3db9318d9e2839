//! The extras of wrappers: `ttl`, `aliases`, `cache_control` and `metadata`.

use std::time::Duration;

use xds::folder::Folder;
use xds::{Cache, Resource};

use super::{CLUSTER, Scratch, errors, load};

/// A wrapper around cluster `a`, with these fields.
fn wrapper(fields: &str) -> String {
    format!(
        "\"@type\": type.googleapis.com/envoy.service.discovery.v3.Resource\nname: a\n{fields}\n\
         resource: {{\"@type\": {CLUSTER}, name: a}}\n"
    )
}

#[test]
fn s38_d24_what_a_wrapper_says_beside_the_name_goes_with_the_resource() {
    let scratch = Scratch::new("beside");
    let resource = || Resource::new(CLUSTER, "a", bytes::Bytes::from_static(b"\x0a\x01a")).unwrap();
    // filter_metadata { key: "x" value { fields { key: "b" value { bool_value: true } } } }
    let metadata: &[u8] = b"\x0a\x0e\x0a\x01x\x12\x09\x0a\x07\x0a\x01b\x12\x02\x20\x01";
    let seconds = Duration::from_millis(1500);
    let cases = [
        ("ttl: 1.5s", resource().with_ttl(seconds)),
        ("aliases: [c, b, b]", resource().with_aliases(["b".into(), "c".into()])),
        ("cacheControl: {doNotCache: true}", resource().with_do_not_cache()),
        (
            "cache_control: {do_not_cache: false}\nttl: null\naliases: []\nmetadata: {}\nversion: x",
            resource(),
        ),
        (
            "ttl: 1.5s\naliases: [xdstp://x/acme.Thing/%62]",
            resource().with_ttl(seconds).with_aliases(["xdstp://x/acme.Thing/b".into()]),
        ),
        ("metadata: {filter_metadata: {x: {b: true}}}", resource().with_metadata(metadata.into())),
    ];
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    for (fields, expected) in cases {
        scratch.write("a.yaml", wrapper(fields));
        load(&mut folder, &cache).unwrap();
        let snapshot = cache.snapshot();
        let found = snapshot.get(&CLUSTER.into(), &"a".into()).unwrap().iter().next().unwrap();
        assert_eq!(found.version(), expected.version(), "{fields}");
    }
    let snapshot = cache.snapshot();
    let found = snapshot.get(&CLUSTER.into(), &"a".into()).unwrap().iter().next().unwrap();
    assert_eq!((found.ttl(), found.aliases()), (None, &[][..]));
}

#[test]
fn s38_d24_mistakes_beside_the_name_have_their_places() {
    let scratch = Scratch::new("beside-mistakes");
    scratch.write("a.yaml", wrapper("ttl: 0s\naliases: [b, '', 'xdstp:b']"));
    scratch.write("b.yaml", wrapper("ttl: soon\naliases: b"));
    scratch.write("c.yaml", wrapper("ttl: -1s\ncache_control: {never: true}\ncacheControl: {}"));
    scratch.write("d.yaml", wrapper("ttl: -1s"));
    let found = errors(load(&mut Folder::new(&scratch.0), &Cache::new()));
    let subject = r#"envoy.service.discovery.v3.Resource "a""#;
    let ttl = "a ttl must be positive and at most 10,000 years";
    let expected = [
        format!("a.yaml:3:6: {subject}: ttl: 0 s and 0 ns: {ttl}"),
        format!("a.yaml:4:14: {subject}: aliases[1]: the string \"\": an alias must not be empty"),
        format!(
            "a.yaml:4:18: {subject}: aliases[2]: the string \"xdstp:b\": column 7: expected `//` after `xdstp:`"
        ),
        format!(
            "b.yaml:3:6: {subject}: ttl: the string \"soon\": expected a duration in seconds, such as \"5s\" or \"0.25s\""
        ),
        format!("b.yaml:4:10: {subject}: aliases: expected a list, found the string \"b\""),
        format!(
            "c.yaml:4:17: {subject}: cache_control: no field `never` in envoy.service.discovery.v3.Resource.CacheControl"
        ),
        format!("c.yaml:5:1: {subject}: cacheControl: given twice"),
        format!("d.yaml:3:6: {subject}: ttl: -1 s and 0 ns: {ttl}"),
    ];
    assert_eq!(found, expected);
}

#[test]
fn s38_d24_a_pb_file_keeps_what_its_wrappers_say() {
    use prost::Message;
    use xds_proto::Any;
    use xds_proto::envoy::service::discovery::v3::{DiscoveryResponse, Resource as Wrapper};

    let scratch = Scratch::new("beside-pb");
    let write = |seconds| {
        let cluster = Any { type_url: CLUSTER.into(), value: b"\x0a\x01a".as_slice().into() };
        let wrapper = Wrapper {
            name: "a".into(),
            resource: Some(cluster),
            aliases: vec!["b".into()],
            ttl: Some(prost_types::Duration { seconds, nanos: 0 }),
            ..Wrapper::default()
        };
        let type_url = xds_proto::type_url::RESOURCE.into();
        let wrapper = Any { type_url, value: wrapper.encode_to_vec().into() };
        let response = DiscoveryResponse { resources: vec![wrapper], ..DiscoveryResponse::default() };
        scratch.write("a.pb", response.encode_to_vec());
    };
    let (mut folder, cache) = (Folder::new(&scratch.0), Cache::new());
    write(30);
    load(&mut folder, &cache).unwrap();
    let snapshot = cache.snapshot();
    let found = snapshot.get(&CLUSTER.into(), &"a".into()).unwrap().iter().next().unwrap();
    assert_eq!((found.ttl(), found.aliases()), (Some(Duration::from_secs(30)), &["b".into()][..]));
    write(-30);
    assert_eq!(
        errors(load(&mut folder, &cache)),
        [
            r#"a.pb: envoy.service.discovery.v3.Resource "a": ttl: -30 s and 0 ns: a ttl must be positive and at most 10,000 years"#
        ]
    );
}
