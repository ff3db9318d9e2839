//! The tab of a durable store, with the binary.

use std::fs;

use serde_json::json;

use crate::running::{Running, Scratch, xds};
use crate::troubles::{dot, shows};
use crate::{FITS, READABLE, browser};

/// Runs a command of the binary, which has to succeed.
fn run(arguments: &[&str]) {
    let output = xds().args(arguments).output().expect("it starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_tab_shows_condition_commits_and_alarms_and_html_in_them_is_text() {
    let Some(browser) = browser("store").await else { return };
    let scratch = Scratch::new("browser-store");
    let [data, backups, file] = ["data", "backups", "a.yaml"].map(|name| scratch.path(name));
    let [data, backups, file] = [&data, &backups, &file].map(|path| path.to_str().expect("it is UTF-8"));
    run(&["store", "init", data]);
    // A file in the place of the folder, so backups fail.
    scratch.write("backups", "");
    let backup = ["--backup-dir", backups, "--backup-every", "1s"];
    let server = Running::start(&[&["serve", "--store", data][..], &backup].concat());
    let page = |view: &str| format!("http://{}/{view}", server.admin);
    browser.open(&page("#/store")).await;
    browser.until("document.querySelector('[aria-selected=true]')?.textContent === 'Store'").await;
    browser.until(&pill("waiting")).await;
    browser.until(&main_shows("The store has no commit yet.")).await;

    // Names, messages and owners come from clients of the API.
    let cluster = |name: &str| {
        format!("\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: '{name}'\n")
    };
    scratch.write("a.yaml", cluster(HOSTILE));
    run(&["put", file, "--store", data, "--owner", "shop", "--message", SCRIPT]);
    browser.until(&pill("serving")).await;
    for text in [HOSTILE, SCRIPT, "local", "as shop", "created"] {
        browser.until(&main_shows(text)).await;
    }
    assert_eq!(browser.value(&format!("{ROWS}.length")).await, json!(1));
    for number in 0..60 {
        scratch.write("a.yaml", cluster(&format!("n-{number}")));
        run(&["put", file, "--store", data]);
    }
    browser.until(&main_shows("n-59")).await;
    browser.until(&fact("records", "61")).await;
    let older = "[...document.querySelectorAll('main a')].find((of) => of.textContent === 'older commits')";
    browser.value(&format!("{older}.click()")).await;
    browser.until(&main_shows(HOSTILE)).await;
    browser.until(&main_shows(SCRIPT)).await;

    browser.until(&dot("bad", "1 error")).await;
    browser.until(&shows("The last backup of the store failed")).await;
    for width in [1180, 400] {
        browser.resize(width, 800).await;
        browser.until(READABLE).await;
        browser.until(FITS).await;
        browser.picture(&format!("admin-store-{width}")).await;
    }
    fs::remove_file(backups).expect("it is there");
    browser.until(&dot("good", "no trouble")).await;
    assert_eq!(browser.value("[document.images.length, window.broken ?? null]").await, json!([0, null]));
    assert_eq!(browser.complaints().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sg10_the_store_tab_lists_deletions_in_progress_and_a_record_has_a_page_of_its_own() {
    let Some(browser) = browser("deletions").await else { return };
    let scratch = Scratch::new("browser-deletions");
    let [data, file] = ["data", "a.yaml"].map(|name| scratch.path(name));
    let [data, file] = [&data, &file].map(|path| path.to_str().expect("it is UTF-8"));
    run(&["store", "init", data]);
    let server = Running::start(&["serve", "--store", data]);
    let types = "type.googleapis.com/envoy.config";
    scratch.write(
        "a.yaml",
        format!(
            "\"@type\": {types}.cluster.v3.Cluster\nname: '{HOSTILE}'\n---\n\"@type\": \
             {types}.route.v3.RouteConfiguration\nname: web\nvirtual_hosts: [{{ name: v, domains: ['*'], routes: [{{ \
             match: {{ prefix: / }}, route: {{ cluster: '{HOSTILE}' }} }}] }}]\n"
        ),
    );
    run(&["put", file, "--store", data, "--owner", "shop"]);
    run(&["delete", "CDS", HOSTILE, "--store", data, "--owner", "shop", "--drain"]);
    browser.open(&format!("http://{}/#/store", server.admin)).await;
    browser.until(&main_shows("Deletions in progress")).await;
    let row = "document.querySelector('table[aria-label=\"Deletions in progress\"] tbody tr')";
    browser.until(&format!("{row}?.innerText.includes({})", json!(HOSTILE))).await;
    browser.until(&format!("{row}?.innerText.includes('web')")).await;
    browser.value(&format!("{row}.querySelector('a').click()")).await;
    for text in
        ["Its deletion is blocked by", "virtual_hosts.routes.route.cluster", "deleting", "History", "as shop"]
    {
        browser.until(&main_shows(text)).await;
    }
    let link = "[...document.querySelectorAll('main a')].find((of) => of.textContent === 'web')";
    browser.value(&format!("{link}.click()")).await;
    browser.until(&main_shows("Nothing names it.")).await;
    browser.until(&fact("owners", "shop")).await;
    assert_eq!(
        browser.value("document.querySelector('[aria-selected=true]').textContent").await,
        json!("Store")
    );
    for width in [1180, 400] {
        browser.resize(width, 800).await;
        browser.until(READABLE).await;
        browser.until(FITS).await;
        browser.picture(&format!("admin-record-{width}")).await;
    }
    assert_eq!(browser.value("[document.images.length, window.broken ?? null]").await, json!([0, null]));
    assert_eq!(browser.complaints().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_store_has_no_store_tab() {
    let Some(browser) = browser("storeless").await else { return };
    let server = Running::start(&["serve", "examples/variants"]);
    browser.open(&format!("http://{}/", server.admin)).await;
    browser.until("'ready' in document.body.dataset").await;
    let tabs = "[...document.querySelectorAll('[role=tab]')].map((tab) => tab.textContent)";
    assert_eq!(browser.value(tabs).await, json!(["Clients", "Resources", "Try", "Gaps", "Commits"]));
}

/// The condition of the store is this.
fn pill(text: &str) -> String {
    format!("document.querySelector('main .pill')?.textContent === {}", json!(text))
}

fn main_shows(text: &str) -> String {
    format!("document.querySelector('main').innerText.includes({})", json!(text))
}

/// The fact of this name begins with the text.
fn fact(name: &str, text: &str) -> String {
    format!(
        "[...document.querySelectorAll('main dt')].some((of) => of.textContent === {} && \
         of.nextElementSibling.textContent.startsWith({}))",
        json!(name),
        json!(text)
    )
}

const ROWS: &str = "document.querySelectorAll('main tbody tr')";
const HOSTILE: &str = "<img src=x onerror=\"window.broken=1\">";
const SCRIPT: &str = "<script>window.broken=2</script> & why";
