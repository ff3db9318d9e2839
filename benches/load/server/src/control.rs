//! The control port of the contract. It supports only the part of HTTP/1.1 that its caller uses, so
//! that C1 measures an update and not a web server. The floor has the same.

use std::sync::Arc;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::resources::Error;

/// Takes the path of a request.
pub(crate) type OnPath = dyn Fn(&str) -> Result<(), Error> + Send + Sync;

/// Answers each request after `on_path` took its path.
pub(crate) async fn serve(listener: TcpListener, on_path: Arc<OnPath>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => return eprintln!("the control port failed: {error}"),
        };
        let on_path = Arc::clone(&on_path);
        tokio::spawn(async move {
            if let Err(error) = connection(stream, &*on_path).await {
                eprintln!("a control connection failed: {error}");
            }
        });
    }
}

async fn connection(stream: TcpStream, on_path: &OnPath) -> Result<(), Error> {
    let mut stream = BufReader::new(stream);
    let (mut path, mut line) = (String::new(), String::new());
    while stream.read_line(&mut line).await? > 0 {
        match line.trim_end() {
            "" => {
                let status = match on_path(&path) {
                    Ok(()) => "200 OK",
                    Err(error) => {
                        eprintln!("{path}: {error}");
                        "500 Internal Server Error"
                    }
                };
                let response = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                stream.write_all(response.as_bytes()).await?;
                path.clear();
            }
            // The request line; the headers are not needed.
            first if path.is_empty() => path = first.split(' ').nth(1).unwrap_or("/").to_owned(),
            _ => {}
        }
        line.clear();
    }
    Ok(())
}

/// The number after `name=` in the query of a path.
pub(crate) fn query(path: &str, name: &str) -> Option<usize> {
    let query = path.split_once('?')?.1;
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}
