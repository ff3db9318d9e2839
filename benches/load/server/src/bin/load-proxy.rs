//! The caching proxy under test. It fulfils the contract of `load-server`: it starts a
//! `load-server` behind it and passes updates to it.
//!
//! The benchmark measures this process, so the figures do not include the cost of the origin. After
//! each update it prints its upstream subscriptions to standard error.
#![forbid(unsafe_code)]

#[path = "../arguments.rs"]
mod arguments;
#[path = "../control.rs"]
mod control;

/// The modules expect this as in the main program.
mod resources {
    pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;
}

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use xds_client::bootstrap::Bootstrap;
use xds_client::proxy::{Proxy, ProxyConfig, UpstreamKind};
use xds_server::Server;

use arguments::Arguments;
use control::query;
use resources::Error;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let given: Vec<_> = std::env::args().skip(1).collect();
    let arguments = Arguments::read(given.iter().cloned())?;
    let grpc: SocketAddr = arguments.text("grpc", "127.0.0.1:18000").parse()?;
    let http: SocketAddr = arguments.text("http", "127.0.0.1:19000").parse()?;
    let beside = |address: SocketAddr| SocketAddr::new(address.ip(), address.port() + 1000);
    let origin = std::env::current_exe()?.with_file_name("load-server");
    // Of two arguments with one name the later counts. The origin ends with this process, however
    // that ends.
    let own = ["-grpc".into(), beside(grpc).to_string(), "-http".into(), beside(http).to_string()];
    let script = r#"exec 3<&0; "$@" <&- & origin=$!; cat <&3 >/dev/null; kill $origin"#;
    let mut child = Command::new("sh")
        .args(["-c", script, "origin"])
        .arg(origin)
        .args(given.iter().chain(&own))
        .stdin(Stdio::piped())
        .spawn()?;
    let _ends_it = child.stdin.take();
    while pass_on(beside(http), "/").is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let upstream =
        UpstreamKind::Locators { set_keys: Some([arguments.text("set-key", "variant").into()].into()) };
    let linger = Duration::from_secs(arguments.number("linger", 30)?.try_into()?);
    let config = ProxyConfig { upstream, linger, ..ProxyConfig::default() };
    let bootstrap = Bootstrap::to_server(format!("http://{}", beside(grpc)));
    let proxy = Proxy::builder(bootstrap).config(config).start()?;
    let listener = TcpListener::bind(grpc).await?;
    let control = TcpListener::bind(http).await?;
    let told = proxy.clone();
    let on_path = move |path: &str| {
        if query(path, "round").is_some() {
            pass_on(beside(http), path)?;
            eprintln!("{:?} {:?}", told.load(), told.counts());
        }
        Ok(())
    };
    tokio::spawn(control::serve(control, Arc::new(on_path)));
    Ok(Server::new(Arc::clone(proxy.cache())).serve(listener, std::future::pending()).await?)
}

/// Sends a request to the control port of the origin.
fn pass_on(http: SocketAddr, path: &str) -> Result<(), Error> {
    let mut stream = TcpStream::connect(http)?;
    write!(stream, "GET {path} HTTP/1.1\r\n\r\n")?;
    let mut answer = [0; 16];
    stream.read_exact(&mut answer)?;
    if &answer[9..12] == b"200" { Ok(()) } else { Err(format!("the origin refused {path}").into()) }
}
