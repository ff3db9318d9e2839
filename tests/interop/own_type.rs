//! The migrations of `examples/migrations/own-type`, with an old and a new server of one store in a real
//! etcd, clients of our library, and real Envoys under load.

use std::fs;
use std::ops::Range;
use std::path::Path;

use prost::Message as _;
use prost_types::Struct;
use serde_json::{Value, json};
use xds_client::bootstrap::Bootstrap;
use xds_client::{Client, Protocol};

use crate::mode::{self, Mode};
use crate::shared_store::{SharedStore, succeeds};
use crate::side_by_side::{Ceiling, SideBySide};
use crate::wait::{SOON, until};
use crate::watched::Watched;
use crate::world::every_turn;

const THINGS: &str = "thing-v2";
const LIMITS: &str = "limit-v2";
const OLD_THINGS: Ceiling<'static> = ["--schema-ceiling", "acme.v1.Thing=1"];
const OLD_LIMITS: Ceiling<'static> = ["--schema-ceiling", "acme.v1.Limit=1"];

mod v1 {
    #[derive(Clone, prost::Message)]
    pub(super) struct Thing {
        #[prost(string, tag = "1")]
        pub(super) name: String,
        #[prost(string, tag = "2")]
        pub(super) color: String,
    }

    #[derive(Clone, prost::Message)]
    pub(super) struct Limit {
        #[prost(string, tag = "1")]
        pub(super) name: String,
        #[prost(uint32, tag = "2")]
        pub(super) requests: u32,
    }

    impl prost::Name for Thing {
        const PACKAGE: &'static str = "acme.v1";
        const NAME: &'static str = "Thing";
    }

    impl prost::Name for Limit {
        const PACKAGE: &'static str = "acme.v1";
        const NAME: &'static str = "Limit";
    }
}

mod v2 {
    #[derive(Clone, prost::Message)]
    pub(super) struct Thing {
        #[prost(string, tag = "1")]
        pub(super) name: String,
        #[prost(message, optional, tag = "2")]
        pub(super) paint: Option<Paint>,
    }

    #[derive(Clone, prost::Message)]
    pub(super) struct Paint {
        #[prost(string, tag = "1")]
        pub(super) color: String,
    }

    impl prost::Name for Thing {
        const PACKAGE: &'static str = "acme.v2";
        const NAME: &'static str = "Thing";
    }
}

/// Things get another type, and then limits another meaning: forward, back and forward again. In F0 to F3 an
/// old server, which knows only the old form, is side by side with a new one; then it is upgraded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sv10_sv18_sv25_sv27_sv31_types_of_ones_own_are_migrated_and_back_and_clients_choose_their_form() {
    if !SideBySide::is_possible() {
        return;
    }
    let _turns = every_turn().await;
    for mode in Mode::ADS {
        eprintln!("--- {mode}");
        let mut migrating = Migrating::start(mode).await;
        for (plan, ceiling) in [(THINGS, OLD_THINGS), (LIMITS, OLD_LIMITS)] {
            migrating.begin(plan).await;
            migrating.forward(ceiling).await;
            migrating.back().await;
            migrating.downgrade(ceiling).await;
            migrating.forward(ceiling).await;
        }
        migrating.finish().await;
    }
}

#[derive(Debug)]
struct Migrating {
    plan: &'static str,
    phase: u32,
    /// Whether the second server knows the old form only.
    is_old: bool,
    /// The color of the thing, and the number of requests of the limit. Each write makes another one.
    written: u32,
    /// Those of the new server, and those of the other one.
    consumers: [Vec<Consumer>; 2],
    all: SideBySide,
}

/// A program that uses our client.
#[derive(Debug)]
struct Consumer {
    choice: Choice,
    old_thing: Option<Watched<v1::Thing>>,
    new_thing: Watched<v2::Thing>,
    limit: Watched<v1::Limit>,
    client: Client,
}

/// How a client says that it knows the new meaning of limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// It does not know it.
    None,
    /// In the metadata of its node (T46).
    Metadata,
    /// As a parameter of its subscriptions.
    Parameter,
}

impl Consumer {
    fn start(port: u16, mode: Mode, choice: Choice) -> Self {
        let mut bootstrap = Bootstrap::to_server(format!("127.0.0.1:{port}"));
        bootstrap.node.id = format!("{choice:?}");
        // What the server removes is used no longer.
        bootstrap.servers[0].features.fail_on_data_errors = true;
        let (key, two) = ("xds.schema", "2");
        match choice {
            Choice::None => {}
            Choice::Metadata => {
                let value = prost_types::value::Kind::StringValue(two.into());
                let fields = [(key.to_owned(), prost_types::Value { kind: Some(value) })].into();
                bootstrap.node.metadata = Some(Struct { fields });
            }
            Choice::Parameter => bootstrap.parameters = [(key, two)].into_iter().collect(),
        }
        let protocol = match mode.protocol {
            mode::Protocol::Sotw => Protocol::Sotw,
            mode::Protocol::Delta => Protocol::Delta,
        };
        let mut client = Client::builder(bootstrap).protocol(protocol);
        if choice == Choice::Parameter {
            client = client.speaks_locators();
        }
        let client = client.start().expect("it starts");
        Self {
            choice,
            old_thing: Some(Watched::start(&client, "door")),
            new_thing: Watched::start(&client, "door"),
            limit: Watched::start(&client, "door"),
            client,
        }
    }

    /// What it has: the color of the old thing and of the new one, and the limit.
    fn has(&self) -> [Option<u32>; 3] {
        let color = |color: &str| color.parse().expect("a number");
        let old = self.old_thing.as_ref().and_then(Watched::value).map(|thing| color(&thing.color));
        let new = self.new_thing.value().map(|thing| color(&thing.paint.unwrap_or_default().color));
        [old, new, self.limit.value().map(|limit| limit.requests)]
    }
}

impl Migrating {
    async fn start(mode: Mode) -> Self {
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/migrations/own-type");
        let store = SharedStore::start().await;
        let protos = ["v1.proto", "v2.proto"].map(|file| example.join(file));
        let descriptors = protox::compile(protos, [&example]).expect("the example is right");
        fs::write(store.path("acme.binpb"), descriptors.encode_to_vec()).expect("the folder is writable");
        let schemas = example.join("schemas.yaml");
        let schemas = schemas.to_str().expect("a text");
        let descriptors = store.path("acme.binpb");
        // In SotW, clients see the end of a form by a resource error only (S37).
        let options = ["--schemas", schemas, "--descriptors", &descriptors, "--sotw-not-found"];
        let all = SideBySide::start(mode, "one", store, &options, &[OLD_THINGS, OLD_LIMITS]).await;
        let consumers = all.recorders.each_ref().map(|recorder| {
            let choices = [Choice::None, Choice::Metadata, Choice::Parameter];
            choices.map(|choice| Consumer::start(recorder.port, mode, choice)).into()
        });
        let mut migrating = Self { plan: THINGS, phase: 0, is_old: true, written: 0, consumers, all };
        migrating.write(0).await;
        migrating
    }

    /// The plan is the next one. It can begin when the one before is done.
    async fn begin(&mut self, plan: &'static str) {
        (self.plan, self.phase, self.is_old) = (plan, 0, true);
        let begins = async || self.all.migrate(plan, "next").await.status.success().then_some(());
        until(&format!("{plan} begins"), SOON, begins).await;
        self.phase = 1;
        self.all.go(plan, "back", 0).await;
        self.phase = 0;
        self.until_right().await;
    }

    /// From F0 to F5, with an old server to F3.
    async fn forward(&mut self, ceiling: Ceiling<'_>) {
        for phase in 1..=3 {
            self.go("next", phase).await;
            self.write(0).await;
            match phase {
                1 => self.write(1).await,
                // Row W9.
                _ => self.refused_by(1).await,
            }
        }
        self.all.upgrade(ceiling).await;
        self.is_old = false;
        self.until_right().await;
        self.go("next", 4).await;
        for server in [0, 1] {
            self.write(server).await;
        }
        if self.plan == THINGS {
            // Clients of the old type prevent the last step.
            self.all.waits(THINGS, "next", "streams ask for the old form").await;
            for consumer in self.consumers.iter_mut().flatten() {
                consumer.old_thing = None;
            }
            let ends = async || self.all.migrate(THINGS, "next").await.status.success().then_some(());
            until("nobody asks for the old form", SOON, ends).await;
            self.phase = 5;
            self.until_right().await;
        } else {
            self.go("next", 5).await;
        }
        for server in [0, 1] {
            self.write(server).await;
        }
    }

    /// From F5 to F0, with what was written meanwhile.
    async fn back(&mut self) {
        for phase in (0..=4).rev() {
            self.all.go(self.plan, "back", phase).await;
            self.phase = phase;
            if phase == 4 && self.plan == THINGS {
                for consumer in self.consumers.iter_mut().flatten() {
                    consumer.old_thing = Some(Watched::start(&consumer.client, "door"));
                }
            }
            self.until_right().await;
            self.write(phase as usize % 2).await;
        }
    }

    async fn downgrade(&mut self, ceiling: Ceiling<'_>) {
        self.all.downgrade(ceiling).await;
        self.is_old = true;
        self.until_right().await;
        self.write(1).await;
    }

    async fn go(&mut self, step: &str, phase: u32) {
        self.all.go(self.plan, step, phase).await;
        self.phase = phase;
        self.until_right().await;
    }

    /// Writes both resources of one's own through a server, in one of the forms that the phase takes, and the
    /// cluster of the Envoys.
    async fn write(&mut self, server: usize) {
        self.written += 1;
        let resources = [self.thing(), self.limit()];
        let descriptors = self.all.store.path("acme.binpb");
        let servers = &self.all.servers;
        let output = self.all.store.put(&servers[server], &resources, &["--descriptors", &descriptors]).await;
        succeeds(&output);
        self.until_right().await;
        self.all.change_cluster(server, "one", "one", &["one"]).await;
    }

    async fn refused_by(&self, server: usize) {
        let resource = if self.plan == THINGS { self.thing() } else { self.limit() };
        let descriptors = self.all.store.path("acme.binpb");
        let servers = &self.all.servers;
        let output =
            self.all.store.put(&servers[server], &[resource], &["--descriptors", &descriptors]).await;
        assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn thing(&self) -> Value {
        let color = self.written.to_string();
        let is_new = match (self.plan, self.phase) {
            (LIMITS, _) | (_, 5) => true,
            // F4 takes both forms, as F2 and F3 do.
            (_, 2..=4) => self.written.is_multiple_of(2),
            _ => false,
        };
        match is_new {
            true => wrapped("acme.v2.Thing", json!({"name": "door", "paint": {"color": color}}), None),
            false => wrapped("acme.v1.Thing", json!({"name": "door", "color": color}), None),
        }
    }

    fn limit(&self) -> Value {
        let is_new = match (self.plan, self.phase) {
            (LIMITS, 5) => true,
            (LIMITS, 2..=4) => self.written.is_multiple_of(2),
            _ => false,
        };
        let when = is_new.then_some("xds.schema=2");
        wrapped("acme.v1.Limit", json!({"name": "door", "requests": self.written}), when)
    }

    /// Waits until each client has what it shall have in this phase.
    async fn until_right(&self) {
        for (server, consumers) in self.consumers.iter().enumerate() {
            for consumer in consumers {
                let right = self.right(server, consumer);
                let what = format!(
                    "{}: {} in F{}: {:?} of server {server} has {right:?}",
                    self.all.mode, self.plan, self.phase, consumer.choice
                );
                let has = async || (consumer.has() == right).then_some(());
                until(&what, SOON, has).await;
            }
        }
    }

    fn right(&self, server: usize, consumer: &Consumer) -> [Option<u32>; 3] {
        let among = |phases: Range<u32>| phases.contains(&self.phase).then_some(self.written);
        // SV29: the old server serves the old form alone.
        let is_old = self.is_old && server == 1;
        let written = Some(self.written);
        match (self.plan, consumer.choice) {
            (THINGS, _) => [among(0..5), among(2..6).filter(|_| !is_old), written],
            (_, Choice::None) => [None, written, among(0..5)],
            (_, Choice::Metadata | Choice::Parameter) => [None, written, written],
        }
    }

    async fn finish(self) {
        for consumer in self.consumers.iter().flatten() {
            // Others lose limits each time in F5. T31: a client that changes the form has no gap.
            let limits_lost = if consumer.choice == Choice::None { 2 } else { 0 };
            // On the way back.
            let things_lost = 1;
            let lost = (consumer.limit.lost(), consumer.new_thing.lost());
            assert_eq!(lost, (limits_lost, things_lost), "{}: {:?}", self.all.mode, consumer.choice);
        }
        self.all.finish().await;
    }
}

fn wrapped(type_name: &str, mut message: Value, when: Option<&str>) -> Value {
    message["@type"] = format!("type.googleapis.com/{type_name}").into();
    let mut wrapper = json!({
        "@type": "type.googleapis.com/envoy.service.discovery.v3.Resource",
        "name": "door",
        "resource": message,
    });
    if let Some(when) = when {
        wrapper["when"] = when.into();
    }
    wrapper
}
