//! The rollout that runs, on the page.

use std::process::Command;

use crate::running::{Running, Scratch, xds};
use crate::{FITS, READABLE, browser};

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_the_steps_of_a_rollout_until_it_ends() {
    let Some(browser) = browser("rollout").await else { return };
    let scratch = Scratch::new("browser-rollout");
    let cluster = |seconds: u8| {
        format!(
            "\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\nname: shop\nconnect_timeout: {seconds}s\n"
        )
    };
    let [folder, state] = ["site", "state"].map(|name| scratch.path(name));
    let [folder, state] = [&folder, &state].map(|path| path.to_str().expect("it is UTF-8"));
    std::fs::create_dir(folder).expect("it is new");
    scratch.write("site/a.yaml", cluster(1));
    let options = ["--rollout", "2 clients, 10%, 100%", "--rollout-wait", "1h", "--rollout-state", state];
    let server = Running::start(&[&["serve", folder][..], &options].concat());
    browser.open(&format!("http://{}/", server.admin)).await;
    let is_hidden = "document.getElementById('rollout').hidden";
    browser.until("document.body.dataset.ready === 'true'").await;
    browser.until(is_hidden).await;

    scratch.write("site/a.yaml", cluster(2));
    browser.until(&format!("!{is_hidden}")).await;
    for text in ["step 1 of 3", "2 clients", "100%", "0 of 0 clients ACKed", "CDS shop"] {
        let shows = format!("document.getElementById('rollout').innerText.includes('{text}')");
        browser.until(&shows).await;
    }
    browser.until("document.querySelector('#rollout [aria-current=step]').textContent === '2 clients'").await;
    for width in [1180, 400] {
        browser.resize(width, 800).await;
        browser.until(READABLE).await;
        browser.until(FITS).await;
        browser.picture(&format!("admin-rollout-{width}")).await;
    }
    let mut promote: Command = xds();
    assert!(promote.args(["rollout", "promote", state]).status().expect("it starts").success());
    browser.until(is_hidden).await;
    assert_eq!(browser.complaints().await, [""; 0]);
}
