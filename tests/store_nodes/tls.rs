//! Nodes that know each other by certificates: one with a wrong certificate gets nothing and gives nothing.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType, date_time_ymd};

use super::*;

/// An authority of certificates.
struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes a certificate of a node and its key.
    fn sign(
        &self,
        node: &Node,
        file: &str,
        [host, uri]: [&str; 2],
        edit: impl FnOnce(&mut CertificateParams),
    ) {
        let mut params = CertificateParams::default();
        params.subject_alt_names =
            vec![SanType::DnsName(host.try_into().unwrap()), SanType::URI(uri.try_into().unwrap())];
        edit(&mut params);
        let key = KeyPair::generate().unwrap();
        fs::write(node.path(&format!("{file}.pem")), params.signed_by(&key, &self.0).unwrap().pem()).unwrap();
        fs::write(node.path(&format!("{file}.key")), key.serialize_pem()).unwrap();
    }
}

/// Serves with certificates alone; the policy lets nodes of the cluster replicate.
fn start(node: &mut Node, ca: &Ca, peer: &Node) {
    fs::write(node.path("ca.pem"), ca.0.pem()).unwrap();
    let policy = "rules:\n- client: spiffe://cluster.example/node/*\n  replicate: '*'\n";
    fs::write(node.path("policy.yaml"), policy).unwrap();
    let names = ["store", "node.pem", "node.key", "peer.pem", "peer.key", "ca.pem", "policy.yaml"];
    let files = names.map(|file| node.path(file));
    let [store, cert, key, peer_cert, peer_key, ca, policy] = &files;
    let (admin, peer) = (format!("0.0.0.0:{}", node.admin.port()), url(peer));
    let mut arguments = vec!["serve", "--store", store, "--listen", "127.0.0.1:0", "--admin", &admin];
    arguments.extend(["--listen-cert", cert, "--listen-key", key, "--listen-client-ca", ca]);
    arguments.extend(["--policy", policy, "--peer", &peer, "--pull-interval", "300ms"]);
    arguments.extend(["--peer-cert", peer_cert, "--peer-key", peer_key, "--peer-ca", ca]);
    node.process = Some(Running::start_with(&arguments));
}

fn url(node: &Node) -> String {
    format!("https://localhost:{}", node.admin.port())
}

/// Waits until the only peer of a node has such a state, and answers its error.
async fn until(node: &Node, is_it: impl Fn(&Value) -> bool) -> String {
    let begun = Instant::now();
    loop {
        let peers = node.peers().1;
        if is_it(&peers["peers"][0]) {
            return peers["peers"][0]["error"].as_str().unwrap_or_default().to_owned();
        }
        assert!(begun.elapsed() < PATIENCE, "{peers:#}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn sr50_st71_a_node_with_a_wrong_certificate_gets_and_gives_nothing_until_it_has_a_right_one() {
    Runtime::new().unwrap().block_on(async {
        let (mut a, mut b) = (Node::new("tls", "a").await, Node::new("tls", "b").await);
        drop((behind::offline(&a, "a"), behind::offline(&b, "b")));
        let (ca, other) = (Ca::new(), Ca::new());
        let of_a = ["localhost", "spiffe://cluster.example/node/a"];
        ["node", "peer"].into_iter().for_each(|file| ca.sign(&a, file, of_a, |_| {}));
        start(&mut a, &ca, &b);
        let right = ["localhost", "spiffe://cluster.example/node/b"];
        let foreign = ["b.other.example", "spiffe://other.example/node/b"];
        for (number, what) in (1..).zip(["unknown_authority", "certificate_expired", "foreign name"]) {
            // With an expired one for its port a node does not start, so only what it presents has expired.
            match what {
                "unknown_authority" => other.sign(&b, "peer", right, |_| {}),
                "certificate_expired" => {
                    ca.sign(&b, "peer", right, |params| params.not_after = date_time_ymd(2020, 1, 1));
                }
                _ => ca.sign(&b, "peer", foreign, |_| {}),
            }
            match what {
                "foreign name" => ca.sign(&b, "node", foreign, |_| {}),
                _ => other.sign(&b, "node", right, |_| {}),
            }
            start(&mut b, &ca, &a);
            a.api().await.put(&format!("a/{number}"), number, 0).await.unwrap();
            b.api().await.put(&format!("b/{number}"), number, 0).await.unwrap();
            // The node that it calls refuses its certificate, or its name.
            let at_b = until(&b, |peer| peer["error"] != "").await;
            if what == "foreign name" {
                assert!(at_b.contains("replicate"), "{at_b}");
            } else {
                a.process.as_ref().unwrap().logs(what);
            }
            // So does the node that calls it.
            let reason = ["BadSignature", "BadSignature", "not valid for name"][number as usize - 1];
            until(&a, |peer| peer["is_up"] == false && peer["error"].as_str().unwrap().contains(reason))
                .await;
            for (node, own) in [(&a, "a/"), (&b, "b/")] {
                let records = node.records().await;
                assert_eq!(records.len(), number as usize, "{what}: {records:?}");
                assert!(records.keys().all(|name| name.starts_with(own)), "{what}: {records:?}");
            }
            b.kill();
        }
        ["node", "peer"].into_iter().for_each(|file| ca.sign(&b, file, right, |_| {}));
        start(&mut b, &ca, &a);
        until(&a, |peer| peer["is_up"] == true).await;
        until(&b, |peer| peer["is_up"] == true).await;
        assert_eq!(converged(&[a, b]).await.len(), 6);
    });
}
