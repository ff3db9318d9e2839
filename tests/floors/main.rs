//! The floors: which module may use which. The test reads the `use` lines and the paths in the
//! code, and follows re-exports to the definition of a name.
//!
//! | rule | applies to |
//! | --- | --- |
//! | A module uses only lower floors and itself | the large modules of xds-core ([`CORE`]), and the crates ([`CRATES`]) |
//! | Large modules form no circle | every crate |
//! | A source imports no sink | [`SOURCES`] and [`SINKS`] |
//!
//! A large module is one that `lib.rs` or `main.rs` declares. The root of a crate is above all of
//! its modules: it declares and re-exports them. Code for tests alone (`#[cfg(test)]`) is not read:
//! tests of a lower floor may drive it from above.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use imports::{Import, read};

mod code;
mod imports;

/// The floors of xds-core, from the lowest. Modules on one floor do not use each other.
const CORE: &[&[&str]] = &[
    // The terms of the protocol, without I/O and without state.
    &["code", "hash", "known_type", "protocol"],
    &["parameters", "printable", "shortened"],
    &["constraint", "mapping", "name"],
    &["access", "matching", "xdstp"],
    &["subscription", "wire"],
    // Resources: their references, their extras, and their variants.
    &["extras", "field_path", "references"],
    &["resource"],
    &["variants"],
    &["payload"],
    // The machines.
    &["cache"],
    &["client", "rollout", "server"],
    &["proxy", "testing"],
];

/// The crates, from the lowest. `main` is the program; its crate has the same name as the library.
const CRATES: &[&[&str]] = &[
    &["xds_file", "xds_proto"],
    &["xds_core"],
    &["xds_client", "xds_server", "xds_store"],
    &["xds_store_server"],
    &["xds"],
    &["main"],
];

/// The modules that bring resources into the cache.
const SOURCES: &[&str] =
    &["xds::folder", "xds::kubernetes", "xds::source", "xds_client", "xds_core::client", "xds_file"];

/// The modules that bring resources from the cache to clients and readers.
const SINKS: &[&str] = &["xds::admin", "xds::metrics", "xds::rest", "xds_core::server", "xds_server"];

/// The roots of the crates that are read.
const ROOTS: &[(&str, &str)] = &[
    ("main", "src/main.rs"),
    ("xds", "src/lib.rs"),
    ("xds_client", "xds-client/src/lib.rs"),
    ("xds_core", "xds-core/src/lib.rs"),
    ("xds_file", "xds-file/src/lib.rs"),
    ("xds_proto", "xds-proto/src/lib.rs"),
    ("xds_server", "xds-server/src/lib.rs"),
    ("xds_store", "xds-store/src/lib.rs"),
    ("xds_store_server", "xds-store-server/src/lib.rs"),
];

fn all() -> Vec<Import> {
    assert!(Path::new("xds-core").exists(), "tests run at the top of their package");
    ROOTS.iter().flat_map(|(name, root)| imports_of(name, Path::new(root))).collect()
}

fn imports_of(name: &str, root: &Path) -> Vec<Import> {
    read(name, root, &|path| fs::read_to_string(path).ok())
}

/// A crate and the large module in it; `None` for the root of the crate.
fn large(path: &str) -> (&str, Option<&str>) {
    let (name, rest) = path.split_once("::").map_or((path, None), |(name, rest)| (name, Some(rest)));
    (name, rest.map(|rest| rest.split_once("::").map_or(rest, |(module, _)| module)))
}

fn is_in(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The errors of imports between these floors. Each import has the names of the floors at its two
/// ends.
fn offences<'i>(
    floors: &[&[&str]],
    imports: impl IntoIterator<Item = (&'i Import, &'i str, &'i str)>,
) -> Vec<String> {
    let floor_of = |name: &str| floors.iter().position(|floor| floor.contains(&name));
    let offence = |(import, from, to): (&Import, &str, &str)| {
        if from == to {
            return None;
        }
        let why = match (floor_of(from), floor_of(to)) {
            (None, _) => format!("{from} has no floor"),
            (_, None) => format!("{to} has no floor"),
            (Some(below), Some(above)) if below < above => format!("{from} is below {to}"),
            (Some(one), Some(other)) if one == other => format!("{from} and {to} are on one floor"),
            _ => return None,
        };
        let floors: Vec<_> = floors.iter().map(|floor| floor.join(", ")).collect();
        Some(format!("{import}\n    {why}; the floors are {}", floors.join(" < ")))
    };
    imports.into_iter().filter_map(offence).collect()
}

fn offences_in_core(imports: &[Import]) -> Vec<String> {
    let of_core = imports.iter().filter_map(|import| {
        let ((from, Some(from_module)), (to, to_module)) = (large(&import.from), large(&import.to)) else {
            return None;
        };
        // A definition in the root would be above the module that uses it.
        (from == "xds_core" && to == "xds_core").then_some((
            import,
            from_module,
            to_module.unwrap_or("the root"),
        ))
    });
    offences(CORE, of_core)
}

fn offences_between_crates(imports: &[Import]) -> Vec<String> {
    let crates = imports.iter().map(|import| (import, large(&import.from).0, large(&import.to).0));
    offences(CRATES, crates)
}

fn offences_of_sources(imports: &[Import]) -> Vec<String> {
    let offence = |import: &Import| {
        let source = SOURCES.iter().find(|source| is_in(&import.from, source))?;
        let sink = SINKS.iter().find(|sink| is_in(&import.to, sink))?;
        Some(format!("{import}\n    {source} is a source and {sink} a sink, and a source imports no sink"))
    };
    imports.iter().filter_map(offence).collect()
}

/// The modules that each large module uses, for each crate.
type Uses<'i> = BTreeMap<(&'i str, &'i str), BTreeSet<&'i str>>;

/// The imports by which one large module uses another.
fn way<'i>(uses: &Uses<'i>, krate: &'i str, from: &'i str, to: &str) -> Option<String> {
    let (mut open, mut ways) = (vec![from], BTreeMap::from([(from, from.to_owned())]));
    while let Some(module) = open.pop() {
        for next in uses.get(&(krate, module)).into_iter().flatten() {
            if !ways.contains_key(next) {
                ways.insert(*next, format!("{} > {next}", ways[module]));
                open.push(*next);
            }
        }
    }
    ways.remove(to)
}

/// The imports that form a circle of large modules.
fn circles(imports: &[Import]) -> Vec<String> {
    let mut uses = Uses::new();
    let between = imports.iter().filter_map(|import| {
        let ((krate, Some(from)), (to_krate, Some(to))) = (large(&import.from), large(&import.to)) else {
            return None;
        };
        (krate == to_krate && from != to).then_some((import, krate, from, to))
    });
    let between: Vec<_> = between.collect();
    for (_, krate, from, to) in &between {
        uses.entry((*krate, *from)).or_default().insert(*to);
    }
    let circle = |&(import, krate, from, to): &(&Import, &str, &str, &str)| {
        let way = way(&uses, krate, to, from)?;
        Some(format!("{import}\n    large modules form no circle, and here is one: {from} > {way}"))
    };
    between.iter().filter_map(circle).collect()
}

#[track_caller]
fn assert_none(offences: &[String]) {
    assert!(offences.is_empty(), "\n{}\n", offences.join("\n"));
}

#[test]
fn the_modules_of_the_core_use_lower_floors_only() {
    assert_none(&offences_in_core(&all()));
}

#[test]
fn the_crates_use_lower_floors_only() {
    assert_none(&offences_between_crates(&all()));
}

#[test]
fn a_source_imports_no_sink() {
    assert_none(&offences_of_sources(&all()));
}

#[test]
fn the_large_modules_of_a_crate_form_no_circle() {
    assert_none(&circles(&all()));
}

#[test]
fn every_floor_and_every_large_module_of_the_core_is_read() {
    let root = fs::read_to_string("xds-core/src/lib.rs").unwrap();
    let declared = root.lines().filter_map(|line| {
        let line = line.strip_prefix("pub ").unwrap_or(line);
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    let declared: BTreeSet<_> = declared.collect();
    let floors: BTreeSet<_> = CORE.iter().copied().flatten().copied().collect();
    assert_eq!(declared, floors);
    // Far fewer modules would mean that the reader missed some.
    let imports = all();
    for (krate, _) in ROOTS.iter().filter(|(krate, _)| *krate != "xds_proto" && *krate != "xds_file") {
        let count = imports.iter().filter(|import| large(&import.from).0 == *krate).count();
        assert!(count > 30, "{krate}: {count}");
    }
    assert!(imports.iter().any(|import| is_in(&import.from, "xds_core::server::order::unrelated")));
}

mod of_the_reader {
    use super::*;

    /// The errors in a crate with these files.
    fn found(check: impl Fn(&[Import]) -> Vec<String>, name: &str, files: &[(&str, &str)]) -> Vec<String> {
        let file = |path: &Path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned())
        };
        let offences = check(&read(name, Path::new("lib.rs"), &file));
        let first_line = |offence: String| offence.lines().next().unwrap().to_owned();
        offences.into_iter().map(first_line).collect()
    }

    const LIB: (&str, &str) =
        ("lib.rs", "pub use cache::Cache;\npub use server::Server;\nmod cache;\nmod server;\nmod wire;\n");

    fn in_core(cache: &str, rest: &[(&str, &str)]) -> Vec<String> {
        let files = [&[LIB, ("cache.rs", cache)], rest].concat();
        found(offences_in_core, "xds_core", &files)
    }

    #[test]
    fn an_import_of_a_higher_floor_is_shown_with_its_line() {
        let server = ("server.rs", "pub struct Server;\nuse crate::wire::Body;\n");
        let cache = "use crate::wire::Body;\n\nuse crate::server::{\n    Server,\n};\n";
        assert_eq!(in_core(cache, &[server]), ["cache.rs:4: Server,"]);
    }

    #[test]
    fn a_path_in_the_code_is_an_import() {
        let cache = "fn f(server: &crate::server::Server) {}\n";
        let server = ("server.rs", "");
        assert_eq!(in_core(cache, &[server]), ["cache.rs:1: fn f(server: &crate::server::Server) {}"]);
    }

    #[test]
    fn a_re_export_is_followed_to_where_the_name_is_defined() {
        let wire = ("wire.rs", "pub use crate::Server as Sender;\n");
        let cache = "use crate::Server;\nuse crate::wire::Sender;\n";
        let of_wire = "wire.rs:1: pub use crate::Server as Sender;";
        let of_cache = ["cache.rs:1: use crate::Server;", "cache.rs:2: use crate::wire::Sender;"];
        let server = ("server.rs", "pub struct Server;");
        assert_eq!(in_core(cache, &[wire, server]), [&of_cache[..], &[of_wire]].concat());
    }

    #[test]
    fn a_child_that_takes_a_name_from_its_parent_imports_where_the_parent_has_it_from() {
        let cache = "use crate::wire::Body;\nmod update;\n";
        let update =
            ("cache/update.rs", "use super::Body;\nuse super::super::server;\nuse super::super::wire;\n");
        let rest = [update, ("wire.rs", "pub use crate::server::Body;"), ("server.rs", "pub struct Body;")];
        let shown = [
            "cache.rs:1: use crate::wire::Body;",
            "cache/update.rs:1: use super::Body;",
            "cache/update.rs:2: use super::super::server;",
            "wire.rs:1: pub use crate::server::Body;",
        ];
        assert_eq!(in_core(cache, &rest), shown);
    }

    #[test]
    fn modules_on_one_floor_do_not_use_each_other_and_all_have_a_floor() {
        let files = [
            ("lib.rs", "mod client;\nmod server;\nmod new;\n"),
            ("client.rs", "use crate::server;\n"),
            ("server.rs", "use crate::new;\n"),
        ];
        let shown = ["client.rs:1: use crate::server;", "server.rs:1: use crate::new;"];
        assert_eq!(found(offences_in_core, "xds_core", &files), shown);
    }

    #[test]
    fn comments_texts_visibilities_and_tests_import_nothing() {
        let cache = r##"
            //! [`crate::server::Server`]
            /* use crate::server; /* */ use crate::server; */
            const TEXT: &str = "use crate::server;"; const RAW: &str = r#"" use crate::server; "#;
            const QUOTE: char = '"'; fn f<'a>(_: &'a str) {} const OTHER: &str = "\"use crate::server;";
            pub(in crate::server) struct Update { #[cfg(test)] of_test: crate::server::Server, n: u8 }
            #[cfg(test)]
            use crate::server::fixture;
            #[cfg(test)]
            mod tests { use crate::server::Server; }
        "##;
        assert_eq!(in_core(cache, &[("server.rs", "")]), [""; 0]);
    }

    #[test]
    fn a_source_imports_no_sink_by_any_way() {
        let files = [
            ("lib.rs", "pub use xds_server::Server as Serves;\npub mod folder;\npub mod rest;\n"),
            (
                "folder.rs",
                "use crate::Serves;\nuse xds_core::{client, server};\nuse crate::rest::Rest;\nmod watch;\n",
            ),
            ("folder/watch.rs", "fn f() { ::core::mem::drop(xds_server::listen) }\n"),
            ("rest.rs", "use xds_server::Server;\nuse crate::folder::Folder;\n"),
        ];
        let shown = [
            "folder.rs:1: use crate::Serves;",
            "folder.rs:2: use xds_core::{client, server};",
            "folder.rs:3: use crate::rest::Rest;",
            "folder/watch.rs:1: fn f() { ::core::mem::drop(xds_server::listen) }",
        ];
        assert_eq!(found(offences_of_sources, "xds", &files), shown);
    }

    #[test]
    fn a_crate_uses_lower_crates() {
        let files = [("lib.rs", "use xds_server::Server;\nuse xds_core::Cache;\n")];
        assert_eq!(
            found(offences_between_crates, "xds_client", &files),
            ["lib.rs:1: use xds_server::Server;"]
        );
    }

    #[test]
    fn a_circle_is_shown_by_all_of_its_imports() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\n"),
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "mod child;\n"),
            ("b/child.rs", "use crate::c;\n"),
            ("c.rs", "use crate::a::A;\nuse crate::d::D;\n"),
            ("d.rs", "use std::fmt;\n"),
        ];
        let shown = ["a.rs:1: use crate::b::B;", "b/child.rs:1: use crate::c;", "c.rs:1: use crate::a::A;"];
        assert_eq!(found(circles, "acme", &files), shown);
    }
}
