//! The admin port of `xds serve` and `xds proxy`, for people and monitoring.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use axum::Router;
use clap::Args;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use xds::admin::{self, HostNames, RemoteAccess};

use super::Failure;
use super::listen::Port;
use super::running::LogFormat;

#[derive(Debug, Args)]
pub(super) struct AdminOptions {
    /// Address and port of the admin page; `none` for no page [default: 127.0.0.1 and the port
    /// after that of --listen, or any port if that is taken]
    ///
    /// The page shows clients, resources, commits and their state; GET /api/ returns the same as
    /// JSON. Everybody who can connect may read it, so by default it listens on the loopback
    /// address.
    #[arg(id = "admin", long = "admin", value_name = "ADDRESS", help_heading = ADMIN)]
    address_option: Option<PageAddress>,
    /// A host name that the admin page accepts, in addition to IP addresses and localhost; may be
    /// repeated
    #[arg(id = "admin_host", long = "admin-host", value_name = "NAME", help_heading = ADMIN)]
    hosts: Vec<String>,
}

/// The value of `--admin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageAddress {
    Off,
    At(SocketAddr),
}

/// Why the admin port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdminError {
    #[error(
        "cannot listen on {address} for the admin page: {error}; use another --admin ADDRESS, or --admin none for \
         no page"
    )]
    Listen { address: SocketAddr, error: io::Error },
    #[error(
        "--admin {address} would let other machines read all clients and resources: use a loopback address, or give \
         --listen-client-ca and a --policy with rules for inspect, or --insecure if something else protects the port"
    )]
    Open { address: SocketAddr },
}

/// The port, opened but not served yet, so that an error is reported before the server starts.
#[derive(Debug)]
pub(super) struct AdminPort {
    listener: TcpListener,
    address: SocketAddr,
    names: HostNames,
    remote_access: Option<RemoteAccess>,
}

/// The served port. Dropping this ends it.
#[derive(Debug)]
pub(super) struct ServedPage(JoinHandle<()>);

impl AdminOptions {
    /// Opens the admin port beside `port`, the port of the clients. `None` with `--admin none`.
    ///
    /// If other machines can reach it, it uses TLS like `--listen`, and accepts only clients that
    /// the policy lets inspect.
    pub(super) async fn open(&self, port: &Port) -> Result<Option<AdminPort>, Failure> {
        let listen = port.address();
        let (address, is_explicit) = match self.address_option {
            Some(PageAddress::Off) => return Ok(None),
            Some(PageAddress::At(address)) => (address, true),
            None => (beside(listen), false),
        };
        let opened = async {
            let is_local = address.ip().is_loopback();
            let remote_access = port.remote_access().filter(|_| !is_local);
            check_reach(address, port.is_insecure() || remote_access.is_some())?;
            let error = |error| AdminError::Listen { address, error };
            let listener = match xds::listen(address) {
                // The user did not choose this port. Another server may have it, for its own admin
                // page.
                Err(taken) if !is_explicit && taken.kind() == io::ErrorKind::AddrInUse => {
                    xds::listen(SocketAddr::new(address.ip(), 0))
                }
                bound => bound,
            };
            let listener = listener.map_err(error)?;
            let address = listener.local_addr().map_err(error)?;
            Ok(AdminPort { listener, address, names: self.hosts.iter().cloned().collect(), remote_access })
        };
        opened.await.map(Some).map_err(Failure::Admin)
    }
}

impl AdminPort {
    /// The address that was opened.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Opens a second port for the services of gRPC alone, for programs of this machine, which cannot
    /// know the name in the certificate of the first one. `None` if the first one is for this machine
    /// alone: then it has no TLS.
    pub(super) fn open_local(&self) -> Result<Option<Self>, Failure> {
        if self.address.ip().is_loopback() {
            return Ok(None);
        }
        let address = SocketAddr::new(loopback(self.address.ip()), 0);
        let error = |error| Failure::Admin(AdminError::Listen { address, error });
        let listener = xds::listen(address).map_err(error)?;
        let address = listener.local_addr().map_err(error)?;
        Ok(Some(Self { listener, address, names: HostNames::default(), remote_access: None }))
    }

    /// Serves the services of gRPC alone from now on.
    pub(super) fn serve_grpc(self, grpc: Router) -> ServedPage {
        let Self { listener, names, remote_access, .. } = self;
        ServedPage(tokio::spawn(async move {
            match admin::serve_with_grpc(listener, Router::new(), grpc, names, remote_access).await {}
        }))
    }

    /// Serves these routes from now on, and services of gRPC.
    pub(super) fn serve(self, routes: Router, grpc: Option<Router>, log_format: LogFormat) -> ServedPage {
        let scheme = if self.remote_access.is_some() { "https" } else { "http" };
        log_format.announce(&format!("admin page on {scheme}://{}/", self.address));
        let Self { listener, names, remote_access, .. } = self;
        ServedPage(tokio::spawn(async move {
            match grpc {
                Some(grpc) => {
                    match admin::serve_with_grpc(listener, routes, grpc, names, remote_access).await {}
                }
                None => match admin::serve(listener, routes, names, remote_access).await {},
            }
        }))
    }
}

impl Drop for ServedPage {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl AdminError {
    /// As in [`Failure::exit_code`].
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Listen { .. } => 1,
            Self::Open { .. } => 2,
        }
    }
}

impl FromStr for PageAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::Off);
        }
        text.parse().map(Self::At).map_err(|error| format!("{error}: expected IP:PORT or none"))
    }
}

/// Refuses addresses that other machines can reach, unless that is allowed.
fn check_reach(address: SocketAddr, is_open_allowed: bool) -> Result<(), AdminError> {
    if address.ip().is_loopback() || is_open_allowed { Ok(()) } else { Err(AdminError::Open { address }) }
}

/// The loopback address with the next port. Port 0 (the system chooses) if `--listen` has port 0 or
/// the last port.
fn beside(listen: SocketAddr) -> SocketAddr {
    let port = if listen.port() == 0 { 0 } else { listen.port().checked_add(1).unwrap_or(0) };
    SocketAddr::new(loopback(listen.ip()), port)
}

/// The loopback address of the same kind.
fn loopback(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    }
}

const ADMIN: &str = "Admin page";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_beside_the_port_of_the_clients_and_for_this_machine_alone() {
        let beside = |listen: &str| beside(listen.parse().unwrap()).to_string();
        assert_eq!(beside("0.0.0.0:18000"), "127.0.0.1:18001");
        assert_eq!(beside("127.0.0.1:0"), "127.0.0.1:0");
        assert_eq!(beside("[::]:65535"), "[::1]:0");
    }

    #[test]
    fn addresses_that_others_reach_are_refused_unless_they_are_allowed() {
        let check = |address: &str, is_allowed| check_reach(address.parse().unwrap(), is_allowed).is_ok();
        assert!(check("127.0.0.1:1", false) && check("[::1]:1", false) && check("10.0.0.1:1", true));
        assert!(!check("10.0.0.1:1", false) && !check("0.0.0.0:1", false) && !check("[::]:1", false));
    }
}
