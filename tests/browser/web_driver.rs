//! A real browser, driven over WebDriver (<https://www.w3.org/TR/webdriver2/>): the part that these
//! tests need.
//!
//! Crates for WebDriver have about sixty dependencies, or a licence that this project does not
//! accept.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

/// Chromium without a window. Dropping this ends it, and then its driver.
#[derive(Debug)]
pub(crate) struct Browser {
    _driver: Child,
    port: u16,
    session: String,
    /// The profile of the browser, new for each.
    profile: PathBuf,
}

impl Browser {
    /// `name` distinguishes browsers that run at the same time.
    pub(crate) async fn start(driver: &Path, chromium: &Path, name: &str) -> Self {
        let profile = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let profile = profile.join(format!("browser-{}-{name}", std::process::id()));
        let (child, port) = timeout(LONG, start(driver)).await.expect("the driver listens in time");
        let mut arguments: Vec<_> = FLAGS.iter().map(|flag| (*flag).to_owned()).collect();
        arguments.push(format!("--user-data-dir={}", profile.display()));
        let options = json!({ "binary": chromium, "args": arguments });
        let wanted = json!({ "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } });
        let mut browser = Self { _driver: child, port, session: String::new(), profile };
        let session = browser.post("/session", &json!({ "capabilities": { "alwaysMatch": wanted } })).await;
        browser.session = session["sessionId"].as_str().expect("a session").to_owned();
        browser
    }

    pub(crate) async fn open(&self, url: &str) {
        self.command("/url", &json!({ "url": url })).await;
    }

    /// The value of a JavaScript expression in the page.
    pub(crate) async fn value(&self, expression: &str) -> Value {
        let script = format!("return {expression}");
        self.command("/execute/sync", &json!({ "script": script, "args": [] })).await
    }

    /// Waits until the expression is true.
    pub(crate) async fn until(&self, expression: &str) {
        let begun = Instant::now();
        while self.value(expression).await != json!(true) {
            if begun.elapsed() > LONG {
                self.picture("failed").await;
                let text = self.value("document.body.innerText").await;
                panic!(
                    "waited in vain for {expression}; the page says\n{}",
                    text.as_str().unwrap_or_default()
                );
            }
            // The page does not report changes, so poll it.
            sleep(BETWEEN_LOOKS).await;
        }
    }

    /// Presses these keys, one after the other.
    pub(crate) async fn press(&self, keys: &[&str]) {
        let strokes = keys.iter().flat_map(|key| {
            [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })]
        });
        let source = json!({ "type": "key", "id": "keyboard", "actions": strokes.collect::<Vec<_>>() });
        self.command("/actions", &json!({ "actions": [source] })).await;
    }

    /// Types a text into the focused element.
    pub(crate) async fn write(&self, text: &str) {
        let letters: Vec<_> = text.chars().map(String::from).collect();
        self.press(&letters.iter().map(|letter| &**letter).collect::<Vec<_>>()).await;
    }

    /// Sets the colour scheme of the system: `light` or `dark`.
    pub(crate) async fn prefer(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let cmd = "Emulation.setEmulatedMedia";
        self.command("/goog/cdp/execute", &json!({ "cmd": cmd, "params": { "features": features } })).await;
    }

    pub(crate) async fn resize(&self, width: u32, height: u32) {
        let params = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        let cmd = "Emulation.setDeviceMetricsOverride";
        self.command("/goog/cdp/execute", &json!({ "cmd": cmd, "params": params })).await;
    }

    /// Writes a screenshot into the folder of `XDS_SCREENSHOTS`, if that is set.
    pub(crate) async fn picture(&self, name: &str) {
        let Some(folder) = std::env::var_os("XDS_SCREENSHOTS") else { return };
        let path = format!("/session/{}/screenshot", self.session);
        let picture = self.request("GET", &path, "").await;
        let picture = BASE64_STANDARD.decode(picture.as_str().expect("a text")).expect("base64");
        fs::create_dir_all(&folder).expect("the folder can be made");
        fs::write(Path::new(&folder).join(format!("{name}.png")), picture).expect("a file can be written");
    }

    /// The errors in the browser's log, including refused scripts.
    pub(crate) async fn complaints(&self) -> Vec<String> {
        let log = self.command("/se/log", &json!({ "type": "browser" })).await;
        let entries = log.as_array().into_iter().flatten();
        entries.map(|entry| entry["message"].as_str().unwrap_or_default().to_owned()).collect()
    }

    async fn command(&self, path: &str, body: &Value) -> Value {
        self.post(&format!("/session/{}{path}", self.session), body).await
    }

    async fn post(&self, path: &str, body: &Value) -> Value {
        self.request("POST", path, &body.to_string()).await
    }

    async fn request(&self, method: &str, path: &str, body: &str) -> Value {
        let asked = async {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.expect("the driver listens");
            let head = format!(
                "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all((head + body).as_bytes()).await.expect("the driver reads");
            // The driver does not close the connection.
            let (mut stream, mut head, mut body) = (BufReader::new(stream), String::new(), Vec::new());
            while !head.ends_with("\r\n\r\n") {
                assert_ne!(
                    stream.read_line(&mut head).await.expect("the driver answers"),
                    0,
                    "{path}: {head}"
                );
            }
            let length = head.to_ascii_lowercase();
            let length = length.split_once("content-length:").and_then(|(_, rest)| rest.lines().next());
            body.resize(length.and_then(|length| length.trim().parse().ok()).expect("a length"), 0);
            stream.read_exact(&mut body).await.expect("the driver answers");
            (head, body)
        };
        let (head, body) = timeout(LONG, asked).await.unwrap_or_else(|_| panic!("no answer to {path}"));
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {}", String::from_utf8_lossy(&body));
        let mut answer: Value = serde_json::from_slice(&body).expect("JSON");
        answer["value"].take()
    }
}

/// The driver and its port.
async fn start(driver: &Path) -> (Child, u16) {
    // The driver needs its IPv4 port in IPv6 too, and ends if another driver has that one.
    loop {
        let mut child = Command::new(driver)
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the driver starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        while let Some(line) = lines.next_line().await.expect("it can be read") {
            if let Some((_, port)) = line.split_once("successfully on port ") {
                let port = port.trim_end_matches('.').parse().expect("a port");
                // Read the rest of its output, so that the pipe does not fill up.
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return (child, port);
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // End the session first: a killed driver leaves its browser running.
        let (port, path) = (self.port, format!("/session/{}", self.session));
        let end = || -> io::Result<()> {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
            stream.set_read_timeout(Some(LONG))?;
            write!(stream, "DELETE {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")?;
            // The driver answers when the browser has ended.
            stream.read(&mut [0; 64]).map(drop)
        };
        if let Err(error) = end() {
            eprintln!("the browser may still run: {error}");
        }
        _ = fs::remove_dir_all(&self.profile);
    }
}

/// Special keys, as WebDriver encodes them.
pub(crate) const TAB: &str = "\u{e004}";
pub(crate) const ENTER: &str = "\u{e007}";
pub(crate) const ESCAPE: &str = "\u{e00c}";
pub(crate) const RIGHT: &str = "\u{e014}";
pub(crate) const DOWN: &str = "\u{e015}";

/// Options without any network traffic except the page.
const FLAGS: [&str; 8] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

const LONG: Duration = Duration::from_secs(30);

const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
