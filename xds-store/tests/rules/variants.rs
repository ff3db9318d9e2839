use xds_store::check::check_store;
use xds_store::commit::RefusalCode;
use xds_store::engine::Engine;
use xds_store::key::RecordKey;
use xds_store::phase::{Phase, Plan, PlanSpec, Schemas};

use crate::driven::migrating::*;
use crate::driven::*;

/// A plan that changes neither type nor name.
fn schemas() -> Schemas {
    let plan = PlanSpec { to_type: TYPE.into(), to_name: "{name}".into(), ..spec() };
    Schemas::default().with_plans(vec![Plan::new(plan).unwrap()]).unwrap()
}

fn server() -> Server {
    Server::with(Server::new().engine, SECOND, |config| config.schemas = schemas().into())
}

fn payload(server: &Server, when: &str) -> String {
    shown(server, &key("a", when), "").0
}

/// The constraints and names of what the last commit changes for clients of xDS.
fn served(server: &Server) -> Vec<String> {
    let served = server.store.served(server.published.last().unwrap());
    served.iter().map(|(key, _)| format!("{key:?}").split_once(' ').unwrap().1.to_owned()).collect()
}

#[test]
fn sv31_the_new_form_has_the_key_of_the_old_one_with_a_constraint() {
    let mut server = server();
    server.commit(of([put("a", "1")])).unwrap();
    assert_eq!(served(&server), ["a"]);
    let new = put_when("a", "xds.schema=2", "new:1");
    assert_eq!(server.code(of([new])), RefusalCode::FailedPrecondition, "SV37");
    go_to(&mut server, Phase::F2);
    assert_eq!((payload(&server, ""), payload(&server, "xds.schema=2")), ("1".into(), "new:1".into()));
    server.commit(of([put("a", "2")])).unwrap();
    assert_eq!(served(&server), ["a [xds.schema!=2]", "a [xds.schema=2]"]);
    assert_eq!(payload(&server, "xds.schema=2"), "new:2");
    server.commit(of([put_when("a", "xds.schema=2", "new:3|more")])).unwrap();
    assert_eq!((payload(&server, ""), payload(&server, "xds.schema=2")), ("3".into(), "new:3|more".into()));
    step(&mut server, 2, 3).unwrap();
    server.wait(2 * SECOND);
    step(&mut server, 3, 4).unwrap();
    server.commit(of([put_when("a", "xds.schema=2", "new:4")])).unwrap();
    assert_eq!(served(&server), ["a [xds.schema!=2]", "a [xds.schema=2]"]);
    assert_eq!(payload(&server, ""), "4");
    server.commit(of([delete("a")])).unwrap();
    assert_eq!(served(&server), ["a [xds.schema!=2]", "a [xds.schema=2]"]);
    assert_eq!((payload(&server, ""), payload(&server, "xds.schema=2")), (String::new(), String::new()));
    check_store(&*server.engine.view().unwrap(), &mut |finding| panic!("{finding}")).unwrap();
}

#[test]
fn sv31_st10_variants_of_a_name_are_compared_with_those_of_the_same_form() {
    let mut server = server();
    go_to(&mut server, Phase::F2);
    server.commit(of([put_when("a", "env=prod", "1"), put_when("a", "env!=prod", "2")])).unwrap();
    assert_eq!(payload(&server, "env=prod,xds.schema=2"), "new:1");
    let overlapping = server.commit(of([put_when("a", "env=test", "3")])).unwrap_err();
    let text = &overlapping.violations[0].message;
    assert!(text.contains("[env!=prod]") && text.contains("[env=test]"), "{text}");
    assert_eq!(server.code(of([put_when("a", "", "3")])), RefusalCode::FailedPrecondition, "T12");
    // Both forms of one variant are exchanged for those of another one.
    server.commit(of([delete_when("a", "env!=prod"), put_when("a", "env=test", "3")])).unwrap();
    // What names the parameter itself is no form of the plan.
    server.commit(of([put_when("a1", "xds.schema=3", "4")])).unwrap();
    assert_eq!(served(&server), ["a1 [xds.schema=3]"]);
    // A server that starts finds the same variants.
    let next = Server::with(server.engine.clone(), SECOND, |config| config.schemas = schemas().into());
    assert_eq!(payload(&next, "env=test,xds.schema=2"), "new:3");
}

#[test]
fn sv31_clients_get_the_old_form_under_a_key_that_leads_to_its_record() {
    let stored =
        |when: &str| schemas().stored_key(RecordKey::parse(&key("a", when)).unwrap()).to_proto().when;
    assert_eq!(stored("env=prod,xds.schema!=2"), "env=prod");
    assert_eq!(stored("xds.schema!=2"), "");
    for when in ["", "xds.schema=2", "xds.schema!=3"] {
        assert_eq!(stored(when), when);
    }
}
