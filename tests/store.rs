//! `xds store init` and `xds serve --store` as processes.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(all(feature = "cli", unix))]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use running::{Running, SOON, Scratch, http, xds};
use xds_store::commit::Draft;
use xds_store::engine::RedbEngine;
use xds_store::phase::{Converter, Phase, PhaseStep, Plan, PlanSpec, Schemas};
use xds_store_server::{StoreConfig, StoreHandle};

#[expect(dead_code, reason = "other tests use the rest")]
#[path = "binary/running.rs"]
mod running;

/// A folder with a store; removed when dropped.
fn with_store(test: &str) -> Scratch {
    let place = Scratch::new(&format!("store-{test}"));
    assert_eq!(run(&["store", "init", place.text()]).0, Some(0));
    place
}

/// The exit code, and the lines on standard output and standard error.
fn run(arguments: &[&str]) -> (Option<i32>, String) {
    let output = xds().args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn status_of(server: &Running, path: &str) -> String {
    let answer = http(
        &server.admin,
        &format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", server.admin),
    );
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    format!("{} {}", head.split(' ').nth(1).unwrap(), body.trim())
}

#[test]
fn st1_init_creates_a_store_for_its_user_alone_in_a_new_or_empty_folder_only() {
    let scratch = Scratch::new("store-init");
    let place = scratch.path("new");
    let init = ["store", "init", place.to_str().unwrap()];
    let (code, text) = run(&init);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("a new store, node "), "{text}");
    let file = place.join("store.redb");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let before = fs::read(&file).unwrap();
    let (code, text) = run(&init);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("is not empty"), "{text}");
    assert_eq!(fs::read(&file).unwrap(), before);
}

#[test]
fn st1_the_rest_of_an_interrupted_init_is_no_store() {
    let place = Scratch::new("store-interrupted");
    fs::write(place.0.join("store.redb.new"), "half").unwrap();
    assert_eq!(run(&["serve", "--store", place.text()]).0, Some(2));
    assert_eq!(run(&["store", "init", place.text()]).0, Some(0));
}

#[test]
fn st2_a_folder_without_a_store_is_refused_with_the_command_that_makes_one() {
    let scratch = Scratch::new("store-missing");
    let place = scratch.path("missing");
    let folder = place.to_str().unwrap();
    let (code, text) = run(&["serve", "--store", folder]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains(&format!("`xds store init {}`", folder)), "{text}");
    assert!(!place.exists());
}

#[test]
fn st3_a_second_process_is_refused() {
    let place = with_store("second");
    let _first = Running::start(&["serve", "--store", place.text()]);
    let (code, text) = run(&["serve", "--store", place.text(), "--listen", "127.0.0.1:0"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("another process has the store"), "{text}");
}

#[test]
fn st47_a_damaged_store_is_not_served_and_the_remedies_are_named() {
    let place = with_store("damaged");
    let file = place.0.join("store.redb");
    let mut bytes = fs::read(&file).unwrap();
    let end = bytes.len() / 2;
    bytes[100..end].fill(0x5a);
    fs::write(&file, bytes).unwrap();
    let (code, text) = run(&["serve", "--store", place.text(), "--listen", "127.0.0.1:0"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("is damaged") && text.contains("xds store restore"), "{text}");
}

#[test]
fn st5_st59_a_store_without_a_commit_accepts_commits_and_is_not_ready_for_clients() {
    let place = with_store("waiting");
    let mut server = Running::start(&["serve", "--store", place.text()]);
    let waiting = "503 the store has no commit yet: clients wait for the first one";
    assert_eq!(status_of(&server, "/readyz"), waiting);
    assert_eq!(status_of(&server, "/readyz/store"), "200 ready");
    server.terminate();
    assert!(server.ends_within(SOON).unwrap().success());
}

#[test]
fn a_store_in_memory_says_that_it_keeps_nothing() {
    let server = Running::start(&["serve", "--store", "memory:"]);
    server.logs("--store memory: keeps nothing");
}

/// The alarms of `xds store status`, and its exit code.
fn alarms(place: &Scratch) -> (Option<i32>, Vec<String>) {
    let (code, text) = run(&["store", "status", "--store", place.text()]);
    let alarms = text.lines().filter_map(|line| line.strip_prefix("ALARM: "));
    (code, alarms.map(str::to_owned).collect())
}

/// Waits until these are the beginnings of the alarms.
fn until_alarms(place: &Scratch, expected: &[&str]) {
    let start = Instant::now();
    loop {
        let (code, found) = alarms(place);
        let are_equal = found.len() == expected.len()
            && found.iter().zip(expected).all(|(found, expected)| found.starts_with(expected));
        if are_equal {
            return assert_eq!(code, Some(i32::from(!expected.is_empty())));
        }
        assert!(start.elapsed() < SOON, "waited in vain for {expected:?}; there are {found:?}");
    }
}

#[test]
fn st72_a_refused_folder_and_a_failed_backup_are_alarms_until_they_are_mended() {
    let (place, scratch) = (with_store("alarms"), Scratch::new("alarms-folder"));
    let (folder, backups) = (scratch.path("config"), scratch.path("backups"));
    fs::create_dir(&folder).unwrap();
    scratch.write("config/a.yaml", cluster("a", 1));
    // A file in the place of the folder.
    fs::write(&backups, "").unwrap();
    let backup = ["--backup-dir", backups.to_str().unwrap(), "--backup-every", "50ms"];
    let serve = ["serve", "--store", place.text(), folder.to_str().unwrap()];
    let server = Running::start(&[&serve[..], &backup].concat());
    let failed = "The last backup of the store failed: ";
    until_alarms(&place, &[failed]);
    let metric = "xds_troubles{kind=\"store_backup_failed\",severity=\"error\"}";
    server.until_metric(metric, 1.0);
    scratch.write("config/a.yaml", "name: [");
    until_alarms(&place, &[failed, "The folder is refused; its last good content is served: "]);
    fs::remove_file(&backups).unwrap();
    scratch.write("config/a.yaml", cluster("a", 2));
    until_alarms(&place, &[]);
    let status = run(&["store", "status", "--store", place.text(), "--format", "json"]).1;
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert!(status["last_backup_at"].is_string() && status["size_bytes"].as_u64() > Some(4096), "{status:#}");
    let start = Instant::now();
    while server.metric(metric).is_some() {
        assert!(start.elapsed() < SOON, "the metric stays");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn st22_st59_st72_while_the_disk_is_full_the_server_says_so_and_finds_out_by_itself_that_there_is_room() {
    let place = with_store("full");
    let mut command = std::process::Command::new("sh");
    // Then a write beyond the largest file is an error, as on a full disk.
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_xds")]);
    let server = Running::start_command(
        command,
        &["serve", "--store", place.text(), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"],
    );
    let put = |name: &str| {
        let file = place.0.join("put.yaml");
        fs::write(&file, cluster(name, 1)).unwrap();
        run(&["put", file.to_str().unwrap(), "--store", place.text()])
    };
    assert_eq!(put("a").0, Some(0));
    let file_size = |bytes: u64| {
        let pid = i32::try_from(server.child.id()).unwrap();
        rlimit::prlimit(pid, rlimit::Resource::FSIZE, Some((bytes, u64::MAX)), None).unwrap();
    };
    file_size(4096);
    let (code, text) = put("b");
    assert!(code == Some(1) && text.contains("no space is left"), "{text}");
    until_alarms(&place, &["the disk of the store is full"]);
    let full = "503 the disk of the store is full: commits are refused until there is room";
    assert_eq!(status_of(&server, "/readyz/store"), full);
    assert_eq!(status_of(&server, "/readyz"), "200 ready");
    assert_eq!(server.metric("xds_troubles{kind=\"store_full\",severity=\"error\"}"), Some(1.0));
    assert_eq!(server.metric("xds_store_accepts_commits"), Some(0.0));
    assert_eq!(run(&["list", "CDS", "a", "--store", place.text()]).0, Some(0));
    file_size(u64::MAX);
    until_alarms(&place, &[]);
    assert_eq!(status_of(&server, "/readyz/store"), "200 ready");
    assert_eq!(put("b").0, Some(0));
}

/// A cluster with this timeout.
fn cluster(name: &str, seconds: u32) -> String {
    format!(
        "\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: {name}\nconnect_timeout: {seconds}s\n"
    )
}

/// The label of the last commit to the cache: the revision of the store.
fn revision(server: &Running) -> String {
    let answer = status_of(server, "/api/commits");
    let body: serde_json::Value = serde_json::from_str(answer.split_once(' ').unwrap().1).unwrap();
    body["rows"][0]["origin"]["label"].as_str().unwrap_or_else(|| panic!("{body:#}")).to_owned()
}

/// Waits until a client gets a cluster whose text has this.
fn until_served(server: &Running, name: &str, text: &str) {
    let start = Instant::now();
    while !server.get(&["CDS", name]).1.contains(text) {
        assert!(start.elapsed() < SOON, "waited in vain for {name} with {text}");
    }
}

#[test]
fn st60_st61_an_applied_folder_is_one_commit_per_change_and_survives_without_the_folder() {
    let (place, folder) = (with_store("applied"), Scratch::new("applied-folder"));
    folder.write("a.yaml", cluster("a", 1));
    folder.write("b.yaml", cluster("b", 1));
    let arguments = ["serve", "--store", place.text(), folder.text()];
    let mut server = Running::start(&arguments);
    until_served(&server, "a", "connect_timeout: 1s");
    assert_eq!(status_of(&server, "/readyz"), "200 ready");
    assert!(revision(&server).ends_with("-1"), "{}", revision(&server));
    folder.write("a.yaml", cluster("a", 2));
    until_served(&server, "a", "connect_timeout: 2s");
    fs::remove_file(folder.path("b.yaml")).unwrap();
    let start = Instant::now();
    while server.get(&["CDS", "b"]).0 == Some(0) {
        assert!(start.elapsed() < SOON, "waited in vain for the end of b");
    }
    assert!(revision(&server).ends_with("-3"), "{}", revision(&server));
    server.terminate();
    assert!(server.ends_within(SOON).unwrap().success());
    assert!(!place.0.join("server.json").exists());

    // Applying the same again is UNCHANGED.
    let server = Running::start(&arguments);
    until_served(&server, "a", "connect_timeout: 2s");
    assert!(revision(&server).ends_with("-3"), "{}", revision(&server));
    drop(server);

    let server = Running::start(&["serve", "--store", place.text()]);
    until_served(&server, "a", "connect_timeout: 2s");
    assert_ne!(server.get(&["CDS", "b"]).0, Some(0));
}

#[test]
fn st60_what_others_changed_or_deleted_stays_after_a_restart_until_somebody_acts_as_the_owner() {
    let (place, folder) = (with_store("others"), Scratch::new("others-folder"));
    for name in ["a", "b"] {
        folder.write(&format!("{name}.yaml"), cluster(name, 1));
    }
    let arguments = ["serve", "--store", place.text(), folder.text()];
    let server = Running::start(&arguments);
    until_served(&server, "a", "connect_timeout: 1s");
    let changed = Scratch::new("others-changed");
    changed.write("a.yaml", cluster("a", 9));
    let file = changed.path("a.yaml");
    // SG15: whoever does not own them says so.
    let taken = ["--owner", "night-watch", "--take-over"];
    let arguments_of_put = [&["put", file.to_str().unwrap(), "--store", place.text()], &taken[..]].concat();
    let (code, text) = run(&arguments_of_put);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = run(&["delete", "CDS", "b", "--store", place.text(), "--take-over"]);
    assert_eq!(code, Some(0), "{text}");
    drop(server);
    folder.write("a.yaml", cluster("a", 2));
    let server = Running::start(&arguments);
    server.logs(
        "a.yaml:1:1: the store refuses it: the store has another content for Cluster a that does not belong",
    );
    server.logs("b.yaml:1:1: the store refuses it: somebody else deleted Cluster b in the store");
    until_served(&server, "a", "connect_timeout: 9s");
    assert_ne!(server.get(&["CDS", "b"]).0, Some(0));
    // What the message says.
    let (code, text) =
        run(&["apply", folder.text(), "--store", place.text(), "--owner", "folder", "--take-over"]);
    assert_eq!(code, Some(0), "{text}");
    until_served(&server, "a", "connect_timeout: 2s");
    folder.write("a.yaml", cluster("a", 3));
    until_served(&server, "a", "connect_timeout: 3s");
    until_served(&server, "b", "connect_timeout: 1s");
}

#[test]
fn st60_a_folder_with_an_error_at_the_start_leaves_the_last_good_state() {
    let (place, folder) = (with_store("wrong"), Scratch::new("wrong-folder"));
    folder.write("a.yaml", cluster("a", 1));
    let arguments = ["serve", "--store", place.text(), folder.text()];
    let server = Running::start(&arguments);
    until_served(&server, "a", "connect_timeout: 1s");
    drop(server);
    folder.write("a.yaml", "name: [");
    let server = Running::start(&arguments);
    server.logs("a.yaml:");
    until_served(&server, "a", "connect_timeout: 1s");
    folder.write("a.yaml", cluster("a", 3));
    until_served(&server, "a", "connect_timeout: 3s");
}

#[test]
fn st61_an_empty_folder_is_refused_without_allow_empty() {
    let (place, folder) = (with_store("emptied"), Scratch::new("emptied-folder"));
    folder.write("a.yaml", cluster("a", 1));
    let server = Running::start(&["serve", "--store", place.text(), folder.text()]);
    until_served(&server, "a", "connect_timeout: 1s");
    fs::remove_file(folder.path("a.yaml")).unwrap();
    server.logs("no resource in any");
    until_served(&server, "a", "connect_timeout: 1s");
    drop(server);
    let arguments = ["serve", "--store", place.text(), folder.text(), "--allow-empty"];
    let server = Running::start(&arguments);
    assert_ne!(server.get(&["CDS", "a"]).0, Some(0));
}

#[test]
fn the_server_file_is_for_its_user_alone() {
    let place = with_store("server-file");
    let server = Running::start(&["serve", "--store", place.text()]);
    let file = place.0.join("server.json");
    let start = Instant::now();
    while !file.exists() {
        assert!(start.elapsed() < SOON, "waited in vain for server.json");
    }
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let written: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(written["address"], server.admin);
    assert_eq!(written["token"].as_str().unwrap().len(), 64);
    assert_eq!(written["pid"], server.child.id());
}

/// Regression: the server did not start. The folder has the name of a file that it writes first.
#[test]
fn a_server_that_cannot_write_how_it_is_reached_serves_and_tries_again() {
    let place = with_store("no-server-file");
    let in_the_way = place.0.join("server.json.new");
    fs::create_dir(&in_the_way).unwrap();
    let server = Running::start(&["serve", "--store", place.text()]);
    assert_eq!(status_of(&server, "/readyz/store"), "200 ready");
    let trouble =
        || server.metric("xds_troubles{kind=\"server_file\",severity=\"warning\"}").unwrap_or_default();
    assert_eq!((trouble(), place.0.join("server.json").exists()), (1.0, false));
    fs::remove_dir(&in_the_way).unwrap();
    let start = Instant::now();
    while trouble() > 0.0 || !place.0.join("server.json").exists() {
        assert!(start.elapsed() < SOON, "waited in vain for server.json");
    }
    assert_eq!(run(&["list", "--store", place.text()]).0, Some(0));
}

#[test]
fn st70_seal_keys_that_cannot_be_used_are_refused_without_showing_them() {
    let place = with_store("seal");
    let keys = place.0.join("keys");
    let start = |text: &str| {
        fs::write(&keys, text).unwrap();
        run(&[
            "serve",
            "--store",
            place.text(),
            "--seal-keys",
            keys.to_str().unwrap(),
            "--listen",
            "127.0.0.1:0",
        ])
    };
    for (text, why) in [("", "there is no key"), ("k1 hunter2", "line 1: the key \"k1\" is not 32 bytes")] {
        let (code, shown) = start(text);
        assert_eq!(code, Some(2), "{shown}");
        assert!(shown.contains(why) && !shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn sv9_the_plans_of_a_file_are_known_and_its_errors_are_refused_with_their_places() {
    let place = with_store("schemas");
    let file = place.0.join("schemas.yaml");
    let arguments = ["serve", "--store", place.text(), "--schemas", file.to_str().unwrap()];
    let plan =
        "plans:\n- { number: 1, name: new-names, from: { type: CDS }, to: { type: acme.v2.Cluster } }\n";
    fs::write(&file, plan).unwrap();
    drop(Running::start(&arguments));
    let (code, text) = run(&["serve", "--schemas", file.to_str().unwrap(), place.text()]);
    assert!(code == Some(2) && text.contains("--store"), "{text}");
    fs::write(&file, plan.replace("1", "2")).unwrap();
    let (code, text) = run(&arguments);
    assert_eq!(code, Some(2), "{text}");
    let expected = format!("error: {}:2:13: plan new-names: plans have the numbers from 1", file.display());
    assert!(text.contains(&expected), "{text}");
    fs::remove_file(&file).unwrap();
    let (code, text) = run(&arguments);
    assert!(code == Some(1) && text.contains("--schemas"), "{text}");
}

#[test]
fn sv13_a_store_with_a_plan_that_the_file_lacks_is_refused_with_its_name() {
    let place = with_store("lacks-plan");
    let file = place.0.join("schemas.yaml");
    let plan = |to: &str| {
        format!("plans: [{{ number: 1, name: new-names, from: {{ type: CDS }}, to: {{ type: {to} }} }}]")
    };
    begin_plan(&place);
    let arguments = ["serve", "--store", place.text()];
    let with_file = [&arguments[..], &["--schemas", file.to_str().unwrap()]].concat();
    fs::write(&file, plan("acme.v3.Cluster")).unwrap();
    // Without a file, and with another plan of this number.
    for arguments in [&arguments[..], &with_file] {
        let (code, text) = run(arguments);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("is in phase F1 of plan 1, new-names"), "{text}");
    }
    fs::write(&file, plan("acme.v2.Cluster")).unwrap();
    drop(Running::start(&with_file));
}

/// Begins the plan `new-names` of the tests.
fn begin_plan(place: &Scratch) {
    let to_type = "type.googleapis.com/acme.v2.Cluster";
    let plan = PlanSpec {
        number: 1,
        name: "new-names".into(),
        from_type: xds::type_url::CLUSTER.into(),
        from_names: Vec::new(),
        to_type: to_type.into(),
        to_name: "{name}".into(),
        to_version: "2".parse().unwrap(),
        up: Converter::Identity,
        down: Converter::Identity,
        heartbeat: false,
        rewrite_references: false,
    };
    let schemas = Schemas::default().with_plans(vec![Plan::new(plan).unwrap()]).unwrap();
    let mut config = StoreConfig::default();
    config.schemas = schemas.into();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let engine = RedbEngine::open(&place.0.join("store.redb")).unwrap();
        let store = StoreHandle::start(Box::new(engine), config).unwrap();
        let step = PhaseStep { plan: 1, from: Phase::F0, to: Phase::F1 };
        store.commit(Draft::set_phase(step, "operator".into(), false)).await.unwrap();
        store.stop().await;
    });
}

#[test]
fn st42_a_commit_above_a_limit_is_refused_with_the_option_and_succeeds_with_a_higher_one() {
    let (place, folder) = (with_store("limit"), Scratch::new("limit-folder"));
    folder.write("a.yaml", cluster("a", 1));
    folder.write("b.yaml", cluster("b", 1));
    let arguments = ["serve", "--store", place.text(), folder.text(), "--commit-changes-limit"];
    let server = Running::start(&[&arguments[..], &["1"]].concat());
    let line = server.logs("the store refuses it");
    assert!(line.contains("--commit-changes-limit"), "{line}");
    drop(server);
    let server = Running::start(&[&arguments[..], &["2"]].concat());
    until_served(&server, "a", "connect_timeout: 1s");
}

#[test]
fn the_page_has_the_condition_the_commits_and_the_history_of_a_record() {
    let (place, folder) = (with_store("page"), Scratch::new("page-folder"));
    folder.write("a.yaml", cluster("a", 1));
    let server = Running::start(&["serve", "--store", place.text(), folder.text()]);
    folder.write("b.yaml", cluster("b", 1));
    until_served(&server, "b", "connect_timeout: 1s");
    let json = |path: &str| -> serde_json::Value {
        let answer = status_of(&server, path);
        let (status, body) = answer.split_once(' ').unwrap();
        assert_eq!(status, "200", "{body}");
        serde_json::from_str(body).unwrap()
    };
    let store = json("/api/store");
    assert_eq!((&store["condition"], &store["records"]), (&"SERVING".into(), &2.into()));
    assert!(store["size_bytes"].as_u64().unwrap() > 0);
    let commits = json("/api/store/commits");
    let of = |row: usize, field: &str| commits["rows"][row][field].clone();
    assert_eq!(commits["rows"].as_array().unwrap().len(), 2);
    assert_eq!((of(0, "identity"), of(0, "owner")), ("folder".into(), "folder".into()));
    assert_eq!(of(0, "message"), format!("folder {}", folder.text()));
    assert_eq!(of(0, "changes")[0]["name"], "b");
    let history = json("/api/store/history/CDS/a");
    assert_eq!(history["rows"].as_array().unwrap().len(), 1);
    assert_eq!(history["rows"][0]["changes"][0]["outcome"], "CREATED");
    let first = json(&format!("/api/store/commits?before={}", of(0, "revision").as_str().unwrap()));
    assert_eq!(first["rows"][0]["changes"][0]["name"], "a");
}
