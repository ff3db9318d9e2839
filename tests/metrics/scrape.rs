//! Reads `/metrics`.

use std::collections::{BTreeMap, BTreeSet};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

/// All samples by their names with labels, as written.
#[derive(Debug)]
pub(crate) struct Scrape {
    samples: BTreeMap<String, f64>,
    /// Each family with its type.
    pub(crate) families: BTreeMap<String, String>,
}

impl Scrape {
    /// The value of a sample; 0 if it is missing.
    pub(crate) fn value(&self, sample: &str) -> f64 {
        self.samples.get(sample).copied().unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        self.samples.len()
    }

    /// The names of all labels of a metric, without the label of histogram bounds.
    pub(crate) fn labels_of(&self, metric: &str) -> BTreeSet<String> {
        let of_metric = self.samples.keys().filter_map(|sample| {
            let (name, labels) = sample.trim_end_matches('}').split_once('{')?;
            (name == metric || name == format!("{metric}_bucket")).then_some(labels)
        });
        let names =
            of_metric.flat_map(|labels| labels.split("\",")).filter_map(|label| label.split('=').next());
        names.filter(|name| *name != "le").map(str::to_owned).collect()
    }

    /// All values of a label.
    pub(crate) fn labels(&self, label: &str) -> BTreeSet<String> {
        let start = format!("{label}=\"");
        let values = self.samples.keys().filter_map(|sample| {
            let at = sample.find(&format!("{{{start}")).or_else(|| sample.find(&format!(",{start}")))?;
            sample[at + 1 + start.len()..].split('"').next()
        });
        values.map(str::to_owned).collect()
    }
}

/// The answer of a path, with its head.
pub(crate) async fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.0\r\nhost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

pub(crate) async fn scrape(address: SocketAddr) -> Scrape {
    let answer = get(address, "/metrics").await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 "), "{head}");
    let content_type = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.contains(content_type), "{head}");
    assert!(body.ends_with("# EOF\n"));
    let (mut samples, mut families) = (BTreeMap::new(), BTreeMap::new());
    for line in body.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            let (name, kind) = family.split_once(' ').unwrap();
            families.insert(name.to_owned(), kind.to_owned());
        } else if !line.starts_with('#') {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            assert!(samples.insert(sample.to_owned(), value.parse().unwrap()).is_none(), "twice: {sample}");
        }
    }
    Scrape { samples, families }
}

/// Scrapes until the condition holds.
pub(crate) async fn until(address: SocketAddr, what: &str, holds: impl Fn(&Scrape) -> bool) -> Scrape {
    let start = Instant::now();
    loop {
        let seen = scrape(address).await;
        if holds(&seen) {
            return seen;
        }
        assert!(start.elapsed() < SOON, "waited in vain for {what}: {seen:#?}");
    }
}
