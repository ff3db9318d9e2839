//! The `xds` binary with the rights of its manifest.

use std::fs;
use std::time::Duration;

use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::api_server::ApiServer;
use crate::running::{Running, SOON, http, xds};
use crate::wait::until;

/// A server of all endpoints, and of the ConfigMaps with the label `xds=serve`.
pub(crate) struct Xds {
    running: Running,
    pub(crate) port: u16,
}

impl Xds {
    /// Waits until it listens: it has then read everything.
    pub(crate) async fn start(api: &ApiServer) -> Self {
        let mut command = xds();
        command.env("KUBECONFIG", api.kubeconfig("xds"));
        let options = ["serve", "--kubernetes-endpoints", "--kubernetes-config-maps", "xds=serve"];
        let ports = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let running = block_in_place(|| Running::start_command(command, &[&options[..], &ports].concat()));
        let port = running.address.rsplit_once(':').unwrap().1.parse().unwrap();
        Self { running, port }
    }

    /// The output of `xds get`.
    pub(crate) fn get(&self, arguments: &[&str]) -> String {
        block_in_place(|| self.running.get(arguments).1)
    }

    /// The names of all resources of a type.
    pub(crate) fn names(&self, of_type: &str) -> Vec<String> {
        let output = self.get(&[of_type, "*"]);
        let names = output.lines().filter_map(|line| line.strip_prefix("+ ")?.split(' ').nth(1));
        let mut names: Vec<_> = names.map(str::to_owned).collect();
        names.sort();
        names
    }

    /// Waits until an assignment has this text.
    pub(crate) async fn until_assignment(&self, name: &str, text: &str) {
        until(&format!("{name} has {text}"), SOON, async || {
            self.get(&["EDS", name]).contains(text).then_some(())
        })
        .await;
    }

    pub(crate) async fn until_absent(&self, of_type: &str, name: &str) {
        until(&format!("{name} is absent"), SOON, async || {
            (!self.names(of_type).iter().any(|found| found == name)).then_some(())
        })
        .await;
    }

    /// Waits for a line of the metrics.
    pub(crate) async fn until_metric(&self, line: &str) {
        let admin = &self.running.admin;
        let request = format!("GET /metrics HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
        until(line, SOON, async || {
            let has = block_in_place(|| http(admin, &request)).lines().any(|found| found.trim() == line);
            if !has {
                sleep(Duration::from_millis(100)).await;
            }
            has.then_some(())
        })
        .await;
    }

    /// Waits for a line of the log.
    pub(crate) async fn until_logged(&self, text: &str) {
        block_in_place(|| self.running.logs(text));
    }

    /// The CPU time that it has used.
    pub(crate) fn cpu(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.running.child.id())).unwrap();
        // The name of the program, in parentheses, may have spaces.
        let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }
}
