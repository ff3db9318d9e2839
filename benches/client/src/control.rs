//! The process of the server, as the client's process controls it: one line for each order, and one
//! for each event.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout};

use crate::Error;
use crate::workload::Workload;

/// The process ends with this value, or with the client's process.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    orders: ChildStdin,
    reports: Lines<BufReader<ChildStdout>>,
}

/// An order to the server.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    /// Send all resources.
    Load,
    Change {
        index: usize,
        revision: u32,
    },
}

impl Server {
    pub(crate) async fn start(workload: &Workload) -> Result<Self, Error> {
        let mut command = Command::new(std::env::current_exe()?);
        let command = command.arg("serve").args(workload.arguments());
        // The process ends with its input, so no wait is needed.
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = ChildStdin::from_std(process.stdin.expect("it is piped"))?;
        let reports = ChildStdout::from_std(process.stdout.expect("it is piped"))?;
        let mut reports = BufReader::new(reports).lines();
        let address = reports.next_line().await?.ok_or("the server ended")?.parse()?;
        Ok(Self { address, orders, reports })
    }

    pub(crate) fn uri(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns once a request had all names.
    pub(crate) async fn subscribed(&mut self) -> Result<(), Error> {
        let report = self.reports.next_line().await?.ok_or("the server ended")?;
        if report == SUBSCRIBED { Ok(()) } else { Err(report.into()) }
    }

    pub(crate) async fn order(&mut self, order: Order) -> Result<(), Error> {
        Ok(self.orders.write_all(order.line().as_bytes()).await?)
    }
}

impl Order {
    fn line(self) -> String {
        match self {
            Self::Load => "load\n".to_owned(),
            Self::Change { index, revision } => format!("{index} {revision}\n"),
        }
    }

    pub(crate) fn read(line: &str) -> Result<Self, Error> {
        let Some((index, revision)) = line.split_once(' ') else { return Ok(Self::Load) };
        Ok(Self::Change { index: index.parse()?, revision: revision.parse()? })
    }
}

/// The report that a request had all names.
pub(crate) const SUBSCRIBED: &str = "subscribed";
