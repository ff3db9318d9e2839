//! Claim: serving a folder of 100,000 assignments of 10 endpoints takes at most 3 times their
//! encoded size in memory, and a change of one file is on the wire in under 200 ms.
//!
//! Size: 100,000 files with resources like those of the load benchmark. Peer: the encoded size of
//! the payloads. The memory is that of the binary with this folder less that of the binary with a
//! folder of one file. Linux only.
//!
//!     cargo bench --features jemalloc --bench folder_scale [-- COUNT]
#![expect(clippy::unwrap_used, reason = "a bench may panic")]

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tonic::transport::Channel;
use xds_proto::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use xds_proto::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use xds_proto::type_url::CLUSTER_LOAD_ASSIGNMENT;

fn main() {
    let count = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(100_000);
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("folder_scale");
    let (large, small) = (root.join("large"), root.join("small"));
    fs::remove_dir_all(&root).unwrap_or_default();
    write_folder(&large, count);
    write_folder(&small, 1);

    let base = Serving::start(&small);
    let base_bytes = base.settled_rss_bytes();
    drop(base);
    let started = Instant::now();
    let serving = Serving::start(&large);
    let load = started.elapsed();
    let rest_bytes = serving.settled_rss_bytes() - base_bytes;
    let peak_bytes = serving.memory_bytes("VmHWM:");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (encoded_bytes, mut changes) = runtime.block_on(watch_changes(&serving, &large, count));
    changes.sort_unstable();

    let mb = |bytes: u64| bytes as f64 / 1e6;
    let ratio = rest_bytes as f64 / encoded_bytes as f64;
    let median = changes[changes.len() / 2];
    println!("{count} files, {:.1} MB encoded, loaded in {:.1} s", mb(encoded_bytes), load.as_secs_f64());
    println!("memory at rest  {:.1} MB = {ratio:.2}x the encoded size (claim: at most 3x)", mb(rest_bytes));
    println!("memory at peak  {:.1} MB, with {:.1} MB of the bare binary", mb(peak_bytes), mb(base_bytes));
    println!(
        "change on the wire after {median:?} (median of {}), {:?} at most (claim: 200 ms)",
        changes.len(),
        changes[changes.len() - 1]
    );
    fs::remove_dir_all(&root).unwrap();
    assert!(ratio <= 3.0 && median < Duration::from_millis(200), "a claim does not hold");
}

fn write_folder(folder: &Path, count: usize) {
    for number in 0..count {
        let file = file_of(folder, number);
        if number % 1000 == 0 {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
        }
        fs::write(file, assignment(number, 1000)).unwrap();
    }
}

fn file_of(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("{:03}/cluster-{number:06}.yaml", number / 1000))
}

fn assignment(number: usize, factor: u32) -> String {
    let mut text = format!(
        "\"@type\": {CLUSTER_LOAD_ASSIGNMENT}\n\
         cluster_name: cluster-{number:06}\n\
         policy: {{overprovisioning_factor: {factor}}}\n\
         endpoints:\n\
         - locality: {{region: region-1, zone: zone-1, sub_zone: v000}}\n  lb_endpoints:\n"
    );
    for endpoint in 0..10 {
        let address = format!("10.{}.{}.{endpoint}", number >> 8 & 255, number & 255);
        writeln!(
            text,
            "  - endpoint: {{address: {{socket_address: {{address: {address}, port_value: 8080}}}}}}\n    \
             health_status: HEALTHY\n    load_balancing_weight: 100"
        )
        .unwrap();
    }
    text
}

/// Subscribes to everything to learn its size, then edits files and waits for each change on the
/// wire.
async fn watch_changes(serving: &Serving, folder: &Path, count: usize) -> (u64, Vec<Duration>) {
    let channel =
        Channel::from_shared(format!("http://{}", serving.address)).unwrap().connect().await.unwrap();
    let mut client = AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    let (requests, stream) = mpsc::channel(4);
    let mut responses = client
        .delta_aggregated_resources(tokio_stream::wrappers::ReceiverStream::new(stream))
        .await
        .unwrap()
        .into_inner();
    let ask = |nonce: String, names: &[&str]| DeltaDiscoveryRequest {
        type_url: CLUSTER_LOAD_ASSIGNMENT.into(),
        resource_names_subscribe: names.iter().map(|name| (*name).into()).collect(),
        response_nonce: nonce,
        ..DeltaDiscoveryRequest::default()
    };
    requests.send(ask(String::new(), &["*"])).await.unwrap();
    let (mut found, mut encoded_bytes) = (0, 0);
    // D32: the resources arrive in several responses.
    while found < count {
        let part = responses.message().await.unwrap().unwrap();
        let sizes = part.resources.iter().map(|r| r.resource.as_ref().unwrap().value.len() as u64);
        (found, encoded_bytes) = (found + sizes.len(), encoded_bytes + sizes.sum::<u64>());
        requests.send(ask(part.nonce, &[])).await.unwrap();
    }
    assert_eq!(found, count);
    let mut times = Vec::new();
    for round in 1..=20 {
        let number = round * 7919 % count;
        let started = Instant::now();
        fs::write(file_of(folder, number), assignment(number, 1000 + round as u32)).unwrap();
        let response = responses.message().await.unwrap().unwrap();
        times.push(started.elapsed());
        assert_eq!(response.resources.len(), 1);
        requests.send(ask(response.nonce, &[])).await.unwrap();
    }
    (encoded_bytes, times)
}

/// The binary with a folder; its process ends with this value.
struct Serving {
    child: Child,
    address: String,
}

impl Serving {
    fn start(folder: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xds"));
        command.arg("serve").arg(folder).args(["--listen", "127.0.0.1:0"]).env("RUST_LOG", "warn");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address =
            lines.map_while(Result::ok).find_map(|line| Some(line.strip_prefix("listening on ")?.to_owned()));
        Self { child, address: address.unwrap() }
    }

    /// Resident memory once it no longer changes.
    fn settled_rss_bytes(&self) -> u64 {
        // The allocator returns freed memory to the system within 10 s.
        std::thread::sleep(Duration::from_secs(11));
        let mut last = 0;
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let now = self.memory_bytes("VmRSS:");
            if now.abs_diff(last) < 1 << 18 {
                return now;
            }
            last = now;
        }
    }

    fn memory_bytes(&self, line: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|text| text.strip_prefix(line)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.child.kill().unwrap_or_default();
        _ = self.child.wait();
    }
}
