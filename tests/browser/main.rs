//! The admin page in a real browser: Debian's Chromium.
//!
//! `cargo xtask test` installs it and runs this; without it each test says `SKIPPED`. With
//! `XDS_SCREENSHOTS=FOLDER` the pictures of docs/admin.md are made anew.
#![forbid(unsafe_code)]

mod fleet;
mod incidents;
#[path = "../interop/peers.rs"]
#[expect(dead_code, reason = "it knows the programs of other tests too")]
mod peers;
mod rollouts;
#[path = "../binary/running.rs"]
#[expect(
    dead_code,
    clippy::unwrap_used,
    reason = "it serves other tests too, which cannot go on after a failure"
)]
mod running;
mod scale;
mod store;
mod troubles;
mod web_driver;

use prost_types::value::Kind;
use serde_json::json;
use xds::type_url::{CLUSTER, ROUTE_CONFIGURATION};

use crate::fleet::{Client, Fleet};
use crate::web_driver::{Browser, DOWN, ENTER, ESCAPE, RIGHT, TAB};

/// A browser; `None` if it is not installed.
pub(crate) async fn browser(name: &str) -> Option<Browser> {
    let (driver, chromium) = (peers::find("bin/chromedriver")?, peers::find("bin/chromium")?);
    let browser = Browser::start(&driver, &chromium, name).await;
    browser.resize(1180, 640).await;
    Some(browser)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_clients_decisions_commits_and_nacks_as_they_come() {
    let Some(browser) = browser("page").await else { return };
    let fleet = Fleet::start().await;
    fleet.load_example();
    let channel = fleet.connect().await;
    let mut clients = Vec::new();
    for (id, env, version) in FLEET {
        let parameters = [("env", env), ("version", version)];
        clients.push(Client::join(&channel, id, &parameters, ROUTE_CONFIGURATION, "web-routes").await);
    }
    browser.open(&fleet.page("")).await;
    browser.until(&format!("{ROWS}.length === {}", FLEET.len())).await;

    // Ids come from clients: the page shows HTML in them as text.
    browser.until("document.body.innerText.includes('<img src=x onerror=')").await;
    assert_eq!(browser.value("[document.images.length, window.broken ?? null]").await, json!([0, null]));

    // Only with the keyboard: search, open a client, go back.
    browser.press(&["/"]).await;
    browser.write("EDGE-2").await;
    browser.until(&format!("{ROWS}.length === 1")).await;
    browser.press(&[DOWN, ENTER]).await;
    browser.until("document.querySelector('h2')?.textContent === 'edge-2'").await;
    browser.until("document.body.innerText.includes('synced')").await;
    browser.until(READABLE).await;
    // The list and the selected row are as before.
    browser.press(&[ESCAPE]).await;
    browser.until("document.activeElement.textContent === 'edge-2'").await;
    browser.press(&["/", ESCAPE]).await;
    browser.until(&format!("{ROWS}.length === {}", FLEET.len())).await;

    // The tabs are one tab stop; arrow keys move between them.
    browser.open(&fleet.page("?")).await;
    browser.until("'ready' in document.body.dataset").await;
    browser.press(&[TAB, RIGHT, RIGHT]).await;
    browser.until("document.querySelector('[aria-selected=true]').textContent === 'Try'").await;
    browser.press(&[TAB]).await;
    browser.write("RDS").await;
    browser.press(&[TAB]).await;
    browser.write("web-routes").await;
    browser.press(&[TAB]).await;
    browser.write("env=prod,version=v2").await;
    browser.until("document.querySelector('#decision')?.textContent.includes('env=prod,version!=v1')").await;
    browser.until("document.body.innerText.includes('needs version=v1, but version is v2')").await;
    assert_eq!(browser.value("document.activeElement.id").await, "try-parameters", "typing goes on");
    browser.until(READABLE).await;
    browser.picture("admin-try").await;

    // A commit arrives, and the page shows that the clients have not answered yet.
    browser.open(&fleet.page("#/commits")).await;
    browser.until(&format!("{ROWS}.length === 1")).await;
    let route = "\u{a}\u{a}web-routes";
    let refused = fleet.put(ROUTE_CONFIGURATION, ["web-routes".to_owned()].into_iter(), route);
    assert!(refused.is_err(), "it is for everyone, and others are there already");
    browser.until("document.body.innerText.includes('refused')").await;
    fleet.put(CLUSTER, ["new".to_owned()].into_iter(), "\u{a}\u{3}new").expect("nothing is wrong");
    browser.until("document.body.innerText.includes('revision 2')").await;
    browser.until("document.querySelector('#head-revision').textContent === '2'").await;

    // A client rejects it with a message.
    let mut picky = Client::join(&channel, "edge-9", &[("env", "prod")], CLUSTER, "new").await;
    let again = "\u{a}\u{3}new\u{a}\u{3}new";
    fleet.put(CLUSTER, ["new".to_owned()].into_iter(), again).expect("nothing is wrong");
    picky.answer(Some("malformed: <b>connect_timeout</b> is required")).await;
    browser.until("document.body.innerText.includes('1 NACK')").await;
    browser.picture("admin-commits").await;
    browser.open(&fleet.page("#/clients?rejecting=true")).await;
    browser.until("document.querySelector('.words')?.textContent.includes('<b>connect_timeout</b>')").await;
    browser.open(&fleet.page("#/clients")).await;
    browser.until("document.querySelector('.pill.bad')?.textContent === 'NACK'").await;
    browser.picture("admin-clients").await;

    // Both colour schemes are readable.
    for scheme in ["dark", "light"] {
        browser.prefer(scheme).await;
        for view in ["#/clients", "#/resources", "#/resource?type=RDS&name=web-routes", "#/gaps", "#/commits"]
        {
            browser.open(&fleet.page(view)).await;
            browser.until("document.querySelector('main table, main .empty') !== null").await;
            browser.until(READABLE).await;
            if scheme == "dark" && view.contains("web-routes") {
                browser.until("document.querySelector('h2')?.textContent === 'web-routes'").await;
                browser.picture("admin-variants").await;
            }
        }
        let ground = browser.value("getComputedStyle(document.documentElement).backgroundColor").await;
        assert_eq!(ground == "rgb(21, 23, 27)", scheme == "dark", "{ground}");
    }
    // On a phone nothing is wider than the window, and ids and constraints stay whole.
    browser.resize(400, 800).await;
    for view in VIEWS {
        browser.open(&fleet.page(view)).await;
        browser.until("document.querySelector('main table, main .empty') !== null").await;
        browser.until(FITS).await;
        browser.until(WHOLE).await;
        browser.until(READABLE).await;
        browser.picture(&format!("phone-{}", view.replace(['#', '/', '?', '&', '='], "-"))).await;
    }
    browser.open(&fleet.page("#/clients?rejecting=true")).await;
    browser.until("document.querySelector('main .words') !== null").await;
    assert_eq!(browser.value(WORDS_IN_VIEW).await, json!(true));
    // The browser refused no script or style, and none failed.
    assert_eq!(browser.complaints().await, [""; 0]);
    drop(clients);
}

#[tokio::test(flavor = "multi_thread")]
async fn t46_the_page_of_a_client_shows_metadata_that_gives_no_parameter() {
    let Some(browser) = browser("metadata").await else { return };
    let fleet = Fleet::start().await;
    fleet.load_example();
    let metadata = vec![("version", Kind::NumberValue(1.0)), ("weight", Kind::NumberValue(0.5))];
    let channel = fleet.connect().await;
    let _client = Client::join_with(&channel, "edge", metadata, ROUTE_CONFIGURATION, "web-routes").await;
    browser.open(&fleet.page("#/client?path=/api/clients/edge")).await;
    let cure = "node.metadata.version is the number 1: write it as the string \\\"1\\\"";
    browser.until(&format!("document.querySelector('#skipped')?.textContent.includes(\"{cure}\")")).await;
    // No variant names the other one.
    browser
        .until("document.querySelector('details')?.textContent.includes('node.metadata.weight is the number 0.5')")
        .await;
    browser.until(READABLE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_reads_stays_where_it_is_while_things_change() {
    let Some(browser) = browser("still").await else { return };
    let fleet = Fleet::start().await;
    let names = |count: u32| (0..count).map(|number| format!("n-{number:02}"));
    fleet.put(CLUSTERS_OF_OURS, names(20), "one").expect("nothing is wrong");
    browser.open(&fleet.page("#/resources")).await;
    browser.until(&format!("{ROWS}.length === 20")).await;
    browser.press(&["/", DOWN, DOWN]).await;
    assert_eq!(browser.value("document.activeElement.textContent").await, "n-01");
    // New rows would move the focused row, so a button offers them.
    fleet.put(CLUSTERS_OF_OURS, ["a".to_owned()].into_iter(), "one").expect("nothing is wrong");
    browser.until("document.querySelector('#news').hidden === false").await;
    let read = "[document.activeElement.textContent, document.querySelectorAll('main tbody tr').length]";
    assert_eq!(browser.value(read).await, json!(["n-01", 20]));
    browser.press(&["r"]).await;
    browser.until(&format!("{ROWS}.length === 21")).await;
}

const CLUSTERS_OF_OURS: &str = "type.googleapis.com/acme.Thing";

const ROWS: &str = "document.querySelectorAll('main tbody tr')";

/// The connected clients; one of them is hostile.
const FLEET: [(&str, &str, &str); 7] = [
    ("edge-1", "prod", "v1"),
    ("edge-2", "prod", "v2"),
    ("edge-3", "prod", "v2"),
    ("batch-1", "test", "v1"),
    ("batch-2", "test", "v3"),
    ("canary-1", "canary", "v3"),
    ("<img src=x onerror=\"window.broken=1\">", "prod", "<script>window.broken=1</script>"),
];

const VIEWS: [&str; 7] = [
    "#/clients",
    "#/client?path=/api/clients/edge-9?cluster=web",
    "#/resources",
    "#/resource?type=RDS&name=web-routes",
    "#/try?type=RDS&name=web-routes&parameters=env=prod",
    "#/commits",
    "#/commit?revision=1",
];

/// Texts that fit into a line are on one line.
const WHOLE: &str = "[...document.querySelectorAll('main .whole')].every((of) =>
    of.getBoundingClientRect().height < 30 || of.textContent.length > 30)";

/// The message of a NACK can be read without scrolling to the side.
const WORDS_IN_VIEW: &str = "[...document.querySelectorAll('main .words')].every((of) => {
    const at = of.getBoundingClientRect();
    return at.width > 100 && at.left >= 0 && at.right <= innerWidth && of.scrollWidth <= of.clientWidth;
})";

/// Nothing is wider than the window.
const FITS: &str = "document.documentElement.scrollWidth <= innerWidth";

/// Every text has a contrast of 4.5 to its background, as level AA of WCAG requires.
const READABLE: &str = r#"(() => {
    const parts = (colour) => colour.match(/[\d.]+/g).map(Number);
    const light = (colour) => {
        const [r, g, b] = parts(colour).map((part) => part / 255).map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ground = (of) => {
        for (let at = of; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor, alpha = parts(colour)[3];
            if (alpha === undefined || alpha === 1) return colour;
        }
        return "rgb(255, 255, 255)";
    };
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const of = texts.currentNode.parentElement;
        if (!texts.currentNode.data.trim() || !of.checkVisibility() || of.closest(":disabled, script, style, noscript")) continue;
        const [one, other] = [light(getComputedStyle(of).color), light(ground(of))];
        if ((Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05) < 4.5) return of.outerHTML;
    }
    return true;
})()"#;
