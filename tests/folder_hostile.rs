//! Files that block their reader, have no end, or are too large. Each is an error of that file,
//! with its name. Neither reloads nor the end of the process wait for it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![cfg(all(feature = "cli", unix))]

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use running::{Running, Scratch, http, xds};

#[path = "binary/running.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod running;

const GOOD: &str = "xds_source_last_reload_successful{source=\"folder\"}";

fn cluster(name: &str) -> String {
    format!("\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: {name}\n")
}

fn mkfifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Regression: a FIFO, or a link to a device, silently stopped all later reloads, and SIGTERM did
/// not end the process. A thread of the runtime hung in `open`, or filled the memory.
#[test]
fn a_fifo_or_a_link_to_a_device_is_an_error_of_that_file_and_stops_neither_reloads_nor_the_end() {
    for (file, kind) in [("fifo.yaml", "a FIFO"), ("zero.yaml", "a device"), ("domains.yaml", "a FIFO")] {
        let scratch = Scratch::new(&format!("hostile-{}", file.trim_end_matches(".yaml")));
        scratch.write("a.yaml", cluster("a"));
        let mut server = Running::start(&["serve", scratch.text()]);
        server.until_metric(GOOD, 1.0);
        match kind {
            "a device" => symlink("/dev/zero", scratch.path(file)).unwrap(),
            _ => mkfifo(&scratch.path(file)),
        }
        server.logs(&format!("{file}: is {kind}; it must be a regular file"));
        server.until_metric(GOOD, 0.0);
        // A read may be under way, and it ends.
        server.until_metric("xds_source_read_seconds{source=\"folder\"}", 0.0);
        let check = xds().arg("check").arg(&scratch.0).output().unwrap();
        assert_eq!(check.status.code(), Some(2), "{}", text(&check));
        assert_eq!(text(&check).matches(file).count(), 1, "{}", text(&check));
        fs::remove_file(scratch.path(file)).unwrap();
        server.logs("the folder is good again");
        scratch.write("b.yaml", cluster("b"));
        server.logs("folder reloaded");
        mkfifo(&scratch.path("again.yaml"));
        server.logs("again.yaml: is a FIFO");
        server.terminate();
        let ended = server.ends_within(Duration::from_secs(20));
        assert_eq!(ended.and_then(|status| status.code()), Some(0), "SIGTERM ends it");
    }
}

/// Regression: after `chmod 000`, the next comparison of all stamps called the folder good again, although `xds check`
/// failed and a restart did not start.
#[test]
#[cfg(target_os = "linux")]
fn a_file_that_cannot_be_read_stays_an_error_until_it_is_read_again() {
    let scratch = Scratch::new("hostile-rights");
    scratch.write("a.yaml", cluster("a"));
    scratch.write("b.yaml", cluster("b"));
    let set_mode = |mode| fs::set_permissions(scratch.path("a.yaml"), Permissions::from_mode(mode)).unwrap();
    // As root, the process would read the file all the same.
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-dac_override,-dac_read_search", env!("CARGO_BIN_EXE_xds")]);
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let command = if is_root { command } else { xds() };
    let server = Running::start_command(
        command,
        &["serve", scratch.text(), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"],
    );
    server.until_metric(GOOD, 1.0);
    set_mode(0o000);
    server.logs("a.yaml: cannot be read: permission denied");
    let troubles = || {
        let request =
            format!("GET /api/troubles HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", server.admin);
        http(&server.admin, &request)
    };
    // The signal compares all stamps, as the server does each 30 s. The trouble is seen again, and not over.
    for looks in 2..4 {
        server.signal("-HUP");
        server.logs("SIGHUP: reading files again");
        let start = Instant::now();
        while !troubles().contains(&format!("\"count\": {looks}")) {
            assert_eq!(server.metric(GOOD), Some(0.0), "look {looks}");
            assert!(start.elapsed() < Duration::from_secs(60), "look {looks}: {}", troubles());
            thread::sleep(Duration::from_millis(50));
        }
    }
    set_mode(0o644);
    server.logs("the folder is good again");
    server.until_metric(GOOD, 1.0);
}

#[test]
fn a_file_over_the_limit_is_an_error_with_its_name_its_size_and_the_limit() {
    let scratch = Scratch::new("hostile-large");
    scratch.write("a.yaml", cluster("a"));
    // A sparse file: 1 GiB without a block on the disk.
    let sparse = fs::File::create(scratch.path("sparse.yaml")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    let check = |options: &[&str]| xds().arg("check").arg(&scratch.0).args(options).output().unwrap();
    let expected =
        "sparse.yaml: has 1073741824 bytes, more than the limit of 67108864 (--file-limit raises it)";
    let refused = check(&[]);
    assert!(text(&refused).contains(expected), "{}", text(&refused));
    assert_eq!(refused.status.code(), Some(2));
    sparse.set_len(0).unwrap();
    fs::write(scratch.path("sparse.yaml"), cluster("b")).unwrap();
    assert_eq!(check(&[]).status.code(), Some(0));
    assert!(text(&check(&["--file-limit", "20"])).contains("more than the limit of 20 "));
}

/// Certificates are read again while clients are served.
#[test]
fn a_certificate_that_becomes_a_fifo_leaves_the_former_in_use_and_stops_nothing() {
    let scratch = Scratch::new("hostile-tls");
    fs::create_dir(scratch.path("config")).unwrap();
    scratch.write("config/a.yaml", cluster("a"));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    scratch.write("cert.pem", made.cert.pem());
    scratch.write("key.pem", made.signing_key.serialize_pem());
    let path = |file: &str| scratch.path(file).to_str().unwrap().to_owned();
    let (config, cert, key) = (path("config"), path("cert.pem"), path("key.pem"));
    let mut server = Running::start(&["serve", &config, "--listen-cert", &cert, "--listen-key", &key]);
    let good = "xds_source_last_reload_successful{source=\"certificates\"}";
    server.until_metric(good, 1.0);
    fs::remove_file(&cert).unwrap();
    mkfifo(Path::new(&cert));
    let line = server.logs("is a FIFO; it must be a regular file");
    assert!(line.contains("cert.pem"), "{line}");
    server.until_metric(good, 0.0);
    scratch.write("cert.pem", made.cert.pem());
    server.until_metric(good, 1.0);
    server.terminate();
    assert!(server.ends_within(Duration::from_secs(20)).is_some(), "SIGTERM ends it");
}

#[test]
fn files_that_options_name_have_a_limit_each() {
    let scratch = Scratch::new("hostile-options");
    scratch.write("a.yaml", cluster("a"));
    let run = |arguments: &[&str]| {
        let output = xds().args(arguments).arg("/dev/zero").output().unwrap();
        (output.status.code().unwrap(), text(&output))
    };
    let (code, error) = run(&["check", scratch.text(), "--descriptors"]);
    assert!(
        code == 2 && error.contains("/dev/zero: has 67108865 bytes, more than the limit of 67108864"),
        "{error}"
    );
    let (_, error) = run(&["serve", scratch.text(), "--config"]);
    assert!(error.contains("/dev/zero") && error.contains("more than the limit of 16777216"), "{error}");
    let (_, error) = run(&["get", "CDS", "*", "--bootstrap"]);
    assert!(error.contains("/dev/zero") && error.contains("more than the limit of 16777216"), "{error}");
}
