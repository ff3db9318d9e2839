//! The writers of a region: a replica takes the place of one that is lost, and two of them at once (SG22, SR34).

use std::thread;

use prost::Message as _;
use xds_proto::google;

use super::regions::{Said, cluster_of, policy, routes};
use super::*;

/// Two nodes of the region `eu`, of which the second one is a replica, and a node of `us`.
async fn nodes(test: &str) -> ([Node; 3], Vec<String>) {
    let mut nodes = [Node::new(test, "one").await, Node::new(test, "two").await, Node::new(test, "us").await];
    let urls: Vec<_> = nodes.iter().map(Node::url).collect();
    nodes[0].init(None, &["--region", "eu"]);
    nodes[0].start(&urls, &[]);
    for (number, options) in [(1, &["--region", "eu", "--replica"][..]), (2, &["--region", "us"])] {
        let (joined, joining) = nodes.split_at_mut(number);
        joining[0].init(Some(&joined[0]), options);
        joining[0].start(&urls, &[]);
        joining[0].accepts_commits().await;
    }
    nodes[0].put(&policy("eu-", "eu", &["us"]), &["--ack", "2"]).succeeds();
    (nodes, urls)
}

impl Node {
    /// Makes it the writer of its region, or a replica; its server is stopped.
    fn command(&self, command: &str, peers: &[&str]) -> Said {
        let (store, token) = (self.path("store"), self.path("token"));
        let mut arguments = vec!["store", command, &store];
        arguments.extend(peers.iter().flat_map(|peer| ["--peer", peer]));
        if !peers.is_empty() {
            arguments.extend(["--peer-token-file", &token]);
        }
        Said(xds().args(arguments).output().unwrap())
    }

    fn status(&self) -> String {
        self.xds(&["store", "status"]).text()
    }

    /// The refusal of a put of a name of `eu`: the region, and the address of its writer.
    async fn refused(&self) -> (String, String) {
        let status = self.api().await.put("eu-refused", 1, 0).await.unwrap_err();
        let details = google::rpc::Status::decode(status.details()).unwrap().details;
        let refusal = proto::Refusal::decode(&*details[0].value).unwrap();
        match refusal.violations.into_iter().next().unwrap().why {
            Some(proto::violation::Why::Region(region)) => (region.owner_region, region.writer_address),
            why => panic!("{why:?}"),
        }
    }

    fn has_cluster(&self, name: &str) -> bool {
        self.xds(&["list", "CDS", name]).0.status.success()
    }
}

#[test]
fn sg22_a_replica_is_promoted_when_the_writer_is_lost_and_refusals_name_the_writer() {
    Runtime::new().unwrap().block_on(async {
        let ([mut one, mut two, us], urls) = nodes("promote").await;
        for other in [&two, &us] {
            other.until("it knows the writer", |_| {
                other.put(&cluster_of("eu-x"), &["--dry-run"]).text().contains(&one.url())
            });
            assert_eq!(other.refused().await, ("eu".to_owned(), one.url()));
        }
        two.kill();
        two.command("promote", &[&one.url()]).fails(&["is the writer", "eu"]);
        one.kill();
        two.command("promote", &[&one.url()]).succeeds();
        two.start(&urls, &[]);
        two.put(&cluster_of("eu-x"), &[]).succeeds();
        us.until("its commits reach other regions", |us| us.has_cluster("eu-x"));
        us.until("and its address", |us| {
            us.put(&cluster_of("eu-y"), &["--dry-run"]).text().contains(&two.url())
        });
        // The former writer comes back as a replica.
        one.command("demote", &[]).succeeds();
        one.start(&urls, &[]);
        one.until("it has what it missed", |one| one.has_cluster("eu-x"));
        one.until("it knows the writer", |one| {
            one.put(&cluster_of("eu-y"), &["--dry-run"]).text().contains(&two.url())
        });
        assert!(!two.status().contains("ALARM"), "{}", two.status());
    });
}

#[test]
fn sr34_the_writes_of_two_writers_are_merged_and_both_raise_an_alarm() {
    Runtime::new().unwrap().block_on(async {
        let ([one, mut two, us], urls) = nodes("two").await;
        // Cut off from all others.
        let cut = |is_cut| [&one, &two, &us].iter().for_each(|node| node.link.cut(is_cut));
        cut(true);
        one.api().await.put("eu-one", 1, 0).await.unwrap();
        one.api().await.put("eu-both", 1, 0).await.unwrap();
        two.kill();
        two.command("promote", &["http://127.0.0.1:9"]).succeeds();
        two.start(&urls, &[]);
        for number in 2..4 {
            two.api().await.put("eu-both", number, 0).await.unwrap();
        }
        two.api().await.put("eu-two", 2, 0).await.unwrap();
        [&one, &two, &us].iter().for_each(|node| node.link.cut(false));
        let start = Instant::now();
        let all = loop {
            let all = [one.records().await, two.records().await, us.records().await];
            if all[0].len() == 3 && all[0] == all[1] && all[1] == all[2] {
                break all;
            }
            assert!(start.elapsed() < PATIENCE, "{all:#?}");
            thread::sleep(Duration::from_millis(100));
        };
        let numbers: Vec<_> = all[0].iter().map(|(name, (_, number))| (&**name, *number)).collect();
        assert_eq!(numbers, [("eu-both", 3), ("eu-one", 1), ("eu-two", 2)], "the higher generation");
        for node in [&one, &two] {
            node.until("it raises an alarm", |node| {
                node.status().contains("is a writer of the region of this node, too")
            });
        }
        two.kill();
        two.command("demote", &[]).succeeds();
        two.start(&urls, &[]);
        one.until("the alarm ends", |one| !one.status().contains("ALARM"));
        two.until("it is a replica", |two| {
            two.put(&cluster_of("eu-x"), &["--dry-run"]).text().contains(&one.url())
        });
    });
}

#[test]
fn sg32_a_promoted_writer_deletes_nothing_until_other_regions_said_what_they_refer_to() {
    Runtime::new().unwrap().block_on(async {
        let ([mut one, mut two, us], urls) = nodes("asks").await;
        // The writers of `eu` get no copies of names of `us`.
        us.put(&policy("us-", "us", &[]), &["--ack", "2"]).succeeds();
        for name in ["eu-one", "eu-two"] {
            one.put(&cluster_of(name), &["--ack", "2"]).succeeds();
        }
        us.put(&routes("us-web", "eu-one"), &["--ack", "2"]).succeeds();
        two.kill();
        one.kill();
        two.link.cut(true);
        us.link.cut(true);
        two.command("promote", &[&one.url()]).succeeds();
        two.start(&urls, &[]);
        two.accepts_commits().await;
        let delete = |name| two.xds(&["delete", "CDS", name]);
        for name in ["eu-one", "eu-two"] {
            delete(name).fails(&[
                "may be used by other regions",
                "of region us",
                "forget a node that is gone",
            ]);
        }
        two.put(&cluster_of("eu-three"), &[]).succeeds();
        two.link.cut(false);
        us.link.cut(false);
        two.until("it has heard of all references", |_| delete("eu-two").0.status.success());
        delete("eu-one").fails(&["us-web in region us"]);
        us.xds(&["delete", "RDS", "us-web"]).succeeds();
        two.until("nothing refers to it", |_| delete("eu-one").0.status.success());
    });
}
