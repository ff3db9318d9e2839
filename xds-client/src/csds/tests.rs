use std::time::Duration;

use prost::Message;
use xds_core::client::{
    ClientConfig as MachineConfig, ErrorPolicy, Protocol, Restored, ServerConfig, StreamEnd,
};
use xds_core::{Constraints, Parameters, VariantId};
use xds_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryResponse, DynamicParameterConstraints, Resource, ResourceError, ResourceName,
};
use xds_proto::google::rpc;
use xds_proto::type_url::SECRET;

use super::*;

const THING: &str = "type.googleapis.com/acme.Thing";
const START: Duration = Duration::from_secs(1000);

/// A machine that is connected to a delta server, and takes any content but `bad`.
struct Fixture {
    machine: Machine,
    now: Duration,
}

impl Fixture {
    fn new(errors: ErrorPolicy) -> Self {
        let server = ServerConfig { name: "origin".into(), protocol: Protocol::Delta, errors };
        let mut config = MachineConfig::new(bytes::Bytes::new(), server);
        config.default_authority.speaks_locators = true;
        let mut machine = Machine::new(config);
        let decode = |_: &_, payload: &bytes::Bytes| match &payload[..] {
            b"bad" => Err("it is bad".to_owned()),
            _ => Ok(Arc::new(()) as Arc<_>),
        };
        machine.declare(&THING.into(), Arc::new(decode));
        Self { machine, now: Duration::ZERO }
    }

    fn watching(errors: ErrorPolicy, names: &[&str]) -> Self {
        let mut fixture = Self::new(errors);
        names.iter().for_each(|name| fixture.watch(name, &[]));
        fixture.open();
        fixture
    }

    fn watch(&mut self, name: &str, parameters: &[(&str, &str)]) {
        let parameters: Parameters = parameters.iter().copied().collect();
        self.machine.on_watch(&THING.into(), name, Some(parameters)).unwrap();
    }

    fn open(&mut self) {
        self.machine.on_connecting(0);
        self.machine.on_open(self.now, 0);
        self.ask();
    }

    fn ask(&mut self) {
        while self.machine.next_request(self.now, 0).is_some() {}
    }

    /// One second later, a response: `a=1 b[env=prod]=2` are resources, `-a` a removal, `a!5` an
    /// error.
    fn get(&mut self, version: &str, items: &str) {
        self.now += Duration::from_secs(1);
        let mut response = DeltaDiscoveryResponse {
            system_version_info: version.to_owned(),
            type_url: THING.to_owned(),
            nonce: version.to_owned(),
            ..Default::default()
        };
        for item in items.split(' ') {
            if let Some(gone) = item.strip_prefix('-') {
                response.removed_resources.push(gone.to_owned());
            } else if let Some((name, code)) = item.split_once('!').filter(|(_, code)| !code.contains('=')) {
                let code = code.parse().unwrap();
                let error_detail = rpc::Status { code, message: "refused".to_owned(), details: Vec::new() };
                response.resource_errors.push(ResourceError {
                    resource_name: Some(named(name)),
                    error_detail: Some(error_detail),
                });
            } else {
                let (name, content) = item.rsplit_once('=').unwrap();
                let value = content.to_owned().into();
                response.resources.push(Resource {
                    resource_name: Some(named(name)),
                    version: version.to_owned(),
                    resource: Some(Any { type_url: THING.to_owned(), value }),
                    ..Default::default()
                });
            }
        }
        let frame = response.encode_to_vec().into();
        self.machine.on_response(self.now, 0, &frame).unwrap();
        self.ask();
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.machine.on_timeout(self.now);
    }

    fn entries(&self, payloads: Payloads) -> Vec<GenericXdsConfig> {
        entries(&self.machine.report(), SystemTime::UNIX_EPOCH + START, payloads)
    }

    fn shown(&self) -> Vec<String> {
        self.entries(Payloads::Included).iter().map(show).collect()
    }
}

/// `a` or `a[env=prod]`.
fn named(text: &str) -> ResourceName {
    let (name, constraints) =
        text.strip_suffix(']').and_then(|text| text.split_once('[')).unwrap_or((text, ""));
    let constraints = (!constraints.is_empty()).then(|| {
        let constraints: Constraints = constraints.parse().unwrap();
        DynamicParameterConstraints::decode(constraints.wire().clone()).unwrap()
    });
    ResourceName { name: name.to_owned(), dynamic_parameter_constraints: constraints }
}

/// `ACKED a v1 = content @ time; error: details, rejected version @ time`.
fn show(entry: &GenericXdsConfig) -> String {
    let mut line = format!("{} {}", entry.client_status().as_str_name(), entry.name);
    if !entry.version_info.is_empty() {
        line += &format!(" {}", entry.version_info);
    }
    if let Some(config) = &entry.xds_config {
        assert_eq!(config.type_url, entry.type_url);
        line += &format!(" = {}", String::from_utf8_lossy(&config.value));
    }
    if let Some(at) = &entry.last_updated {
        line += &format!(" @ {}", at.seconds);
    }
    if let Some(error) = &entry.error_state {
        let at = error.last_update_attempt.unwrap().seconds;
        line += &format!("; error: {}, {:?} @ {at}", error.details, error.version_info);
    }
    line
}

const FAIL: ErrorPolicy = ErrorPolicy { fail_on_data_errors: true, resource_timer_is_transient_error: false };
const TRANSIENT: ErrorPolicy =
    ErrorPolicy { fail_on_data_errors: false, resource_timer_is_transient_error: true };

#[test]
fn c19_p1_21_each_status_has_what_belongs_to_it() {
    let mut fixture = Fixture::watching(ErrorPolicy::default(), &["a", "b", "c", "d", "e"]);
    fixture.get("v1", "a=1 b=bad -c d!7");
    assert_eq!(
        fixture.shown(),
        [
            "ACKED a v1 = 1 @ 1001",
            "NACKED b; error: INVALID_ARGUMENT: \"b\": it is bad, \"v1\" @ 1001",
            "DOES_NOT_EXIST c; error: NOT_FOUND: origin reports that \"c\" does not exist, \"\" @ 1001",
            "RECEIVED_ERROR d; error: PERMISSION_DENIED: \"d\": refused, \"\" @ 1001",
            "REQUESTED e",
        ]
    );
    // C5
    fixture.pass(15);
    assert_eq!(
        fixture.shown()[4],
        "DOES_NOT_EXIST e; error: NOT_FOUND: origin did not send \"e\" within 15s, \"\" @ 1016"
    );
}

#[test]
fn c6_c19_silence_of_a_server_that_tells_errors_is_a_timeout() {
    let mut fixture = Fixture::watching(TRANSIENT, &["a"]);
    fixture.pass(30);
    assert_eq!(
        fixture.shown(),
        ["TIMEOUT a; error: UNAVAILABLE: origin did not send \"a\" within 30s, \"\" @ 1030"]
    );
}

#[test]
fn p1_6_p1_9_p1_12_p1_15_p6_6_a_kept_copy_is_shown_beside_its_error() {
    let mut fixture = Fixture::watching(ErrorPolicy::default(), &["a", "b", "c", "d"]);
    fixture.get("v1", "a=1 b=1 c=1 d=1");
    fixture.get("v2", "a=bad -b c!5 d!14");
    assert_eq!(
        fixture.shown(),
        [
            "NACKED a v1 = 1 @ 1001; error: INVALID_ARGUMENT: \"a\": it is bad, \"v2\" @ 1002",
            "DOES_NOT_EXIST b v1 = 1 @ 1001; error: NOT_FOUND: origin reports that \"b\" does not exist, \"\" @ 1002",
            "RECEIVED_ERROR c v1 = 1 @ 1001; error: NOT_FOUND: \"c\": refused, \"\" @ 1002",
            "RECEIVED_ERROR d v1 = 1 @ 1001; error: UNAVAILABLE: \"d\": refused, \"\" @ 1002",
        ]
    );
    // P6.4: the next valid one clears the error.
    fixture.get("v3", "a=3");
    assert_eq!(fixture.shown()[0], "ACKED a v3 = 3 @ 1003");
}

#[test]
fn p1_7_p1_10_p1_13_without_a_kept_copy_there_is_no_version_either() {
    let mut fixture = Fixture::watching(FAIL, &["a", "b", "c"]);
    fixture.get("v1", "a=1 b=1 c=1");
    fixture.get("v2", "a=bad -b c!5");
    assert_eq!(
        fixture.shown(),
        [
            "NACKED a; error: INVALID_ARGUMENT: \"a\": it is bad, \"v2\" @ 1002",
            "DOES_NOT_EXIST b; error: NOT_FOUND: origin reports that \"b\" does not exist, \"\" @ 1002",
            "RECEIVED_ERROR c; error: NOT_FOUND: \"c\": refused, \"\" @ 1002",
        ]
    );
}

#[test]
fn p1_1_p1_2_an_outage_is_no_error_of_a_resource() {
    let mut fixture = Fixture::watching(ErrorPolicy::default(), &["a", "b"]);
    fixture.get("v1", "a=1");
    fixture.machine.on_end(fixture.now, 0, StreamEnd::lost("gone", 0));
    fixture.machine.on_connecting(0);
    fixture.machine.on_end(fixture.now, 0, StreamEnd::lost("refused", 0));
    assert_eq!(fixture.shown(), ["ACKED a v1 = 1 @ 1001", "REQUESTED b"]);
}

#[test]
fn c19_each_variant_is_an_entry_and_locators_of_the_same_share_it() {
    let mut fixture = Fixture::new(ErrorPolicy::default());
    for env in ["prod", "test", "stage"] {
        fixture.watch("r", &[("env", env)]);
    }
    fixture.watch("s", &[("env", "prod")]);
    fixture.watch("t", &[("env", "prod")]);
    fixture.open();
    fixture.get("v1", "r[env=prod]=1 t=1");
    assert_eq!(
        fixture.shown(),
        [
            "ACKED r [env=prod] v1 = 1 @ 1001",
            "REQUESTED r {env=\"stage\"}",
            "REQUESTED r {env=\"test\"}",
            "REQUESTED s",
            "ACKED t v1 = 1 @ 1001",
        ]
    );
    fixture.get("v2", "r[env!=prod]=2");
    assert_eq!(
        fixture.shown()[..3],
        ["ACKED r [env=prod] v1 = 1 @ 1001", "ACKED r [env!=prod] v2 = 2 @ 1002", "REQUESTED s"]
    );
}

#[test]
fn c19_members_of_a_wildcard_are_entries() {
    let mut fixture = Fixture::watching(ErrorPolicy::default(), &["*", "a"]);
    fixture.get("v1", "a=1 b=1");
    assert_eq!(fixture.shown(), ["ACKED a v1 = 1 @ 1001", "ACKED b v1 = 1 @ 1001"]);
}

#[test]
fn c19_contents_are_left_out_if_asked_and_those_of_secrets_always() {
    let mut fixture = Fixture::watching(ErrorPolicy::default(), &["a"]);
    fixture.get("v1", "a=1");
    let without: Vec<_> = fixture.entries(Payloads::Excluded).iter().map(show).collect();
    assert_eq!(without, ["ACKED a v1 @ 1001"]);
    let mut reports = fixture.machine.report();
    reports[0].type_url = SECRET.into();
    let secret = entries(&reports, SystemTime::UNIX_EPOCH + START, Payloads::Included);
    assert_eq!(secret.iter().map(show).collect::<Vec<_>>(), ["ACKED a v1 @ 1001"]);
}

#[test]
fn a_restored_copy_is_shown_without_a_time_until_a_server_brings_it() {
    let mut fixture = Fixture::new(ErrorPolicy::default());
    let id = VariantId::unconstrained(THING, "a");
    let payload = bytes::Bytes::from_static(b"0");
    let restored = Restored { id, payload, version: "v0".into(), ttl: None, aliases: Vec::new() };
    assert_eq!(fixture.machine.restore(Duration::ZERO, vec![restored]), 1);
    fixture.watch("a", &[]);
    fixture.open();
    assert_eq!(fixture.shown(), ["REQUESTED a v0 = 0"]);
    fixture.get("v1", "a=1");
    assert_eq!(fixture.shown(), ["ACKED a v1 = 1 @ 1001"]);
}

#[test]
fn p6_1_node_matchers_are_refused() {
    let request = ClientStatusRequest { node_matchers: vec![Default::default()], ..Default::default() };
    let refused = ClientStatus::new().answer(&request).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
}
