use super::*;
use std::time::Duration;

fn failure(code: Code) -> Arc<ResourceFailure> {
    Arc::new(ResourceFailure::new(code, "it failed", Duration::ZERO))
}

#[test]
fn c15_p4_3_what_is_known_not_to_exist_counts_as_cached() {
    let policy = ErrorPolicy::default();
    let after = |event: fn(&mut ResourceState, Arc<ResourceFailure>, ErrorPolicy), code| {
        let mut state = ResourceState::default();
        event(&mut state, failure(code), policy);
        state.is_missing()
    };
    assert!(ResourceState::default().is_missing());
    assert!(!after(ResourceState::on_absence, Code::NOT_FOUND));
    assert!(!after(ResourceState::on_timer, Code::NOT_FOUND));
    assert!(!after(ResourceState::on_error, Code::NOT_FOUND));
    assert!(after(ResourceState::on_error, Code::UNAVAILABLE));
    assert!(after(ResourceState::on_nack, Code::INVALID_ARGUMENT));
}

#[test]
fn p1_21_an_outage_is_shown_and_is_no_state() {
    let mut state = ResourceState { outage: Some(failure(Code::UNAVAILABLE)), ..ResourceState::default() };
    state.on_absence(failure(Code::NOT_FOUND), ErrorPolicy::default());
    assert_eq!(state.view().error.map(|error| error.code), Some(Code::UNAVAILABLE));
    assert_eq!(state.status, ResourceStatus::DoesNotExist);
    state.outage = None;
    assert_eq!(state.view().error.map(|error| error.code), Some(Code::NOT_FOUND));
}
