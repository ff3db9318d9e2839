//! Messages about a reference that arrive after it is gone, or after the record has it again.

use xds_proto::xds::store::v1::check_references_response::Answer;
use xds_store::commit::RefusalCode;
use xds_store::store::{Event, RegionRequest, RegionResponse, Unanswered};

use super::{World, ask};
use crate::driven::envoy::*;
use crate::driven::*;

/// `us` refers to `eu/c`, and no more. Its confirmation is on the way, and the release has arrived.
fn released() -> (World, RegionRequest) {
    let mut world = World::new();
    world.begins(routes("us/r", &["eu/c"]));
    world.eu_answers().unwrap();
    let (call, late) = world.said_by_us();
    assert!(matches!(late, RegionRequest::Confirm(_)));
    world.us.step(Event::RegionAnswered(call, Err(Unanswered::Silent)));
    world.us.commit(of([routes("us/r", &[])])).unwrap();
    assert_eq!(world.eu_answers(), Ok(RegionResponse::Release));
    assert_eq!((world.eu.blocks(), world.us.blocks()), (0, 0));
    (world, late)
}

#[test]
fn sg32_sg33_a_confirmation_that_comes_after_the_release_leaves_no_block() {
    let (mut world, late) = released();
    ask(&mut world.eu, late).unwrap();
    // Until `us` has answered, the reference may exist: this store may have lost its block.
    assert_eq!(world.deletes_in_silence().unwrap_err().code, RefusalCode::Unavailable);
    world.eu.restart();
    world.eu.wait(5 * SECOND);
    assert_eq!(world.us_answers(), [Answer::Gone]);
    assert_eq!(world.eu.blocks(), 0);
    world.deletes_in_silence().unwrap();
}

#[test]
fn sg32_a_block_of_a_former_reference_does_not_stay_with_the_present_one() {
    let (mut world, late) = released();
    let commit = world.begins(routes("us/r", &["eu/c"]));
    world.eu_answers().unwrap();
    world.us.answers.remove(&commit).unwrap().unwrap();
    let (call, confirm) = world.said_by_us();
    ask(&mut world.eu, late).unwrap();
    // Nothing is dropped before `eu` is known to have the other block for good.
    assert_eq!((world.us_answers(), world.eu.blocks()), (vec![Answer::Pending], 2));
    let answer = ask(&mut world.eu, confirm).unwrap();
    world.us.step(Event::RegionAnswered(call, Ok(answer)));
    world.eu.wait(5 * SECOND);
    assert_eq!((world.us_answers(), world.eu.blocks()), (vec![Answer::Gone], 1));
    assert_eq!(world.deletes_in_silence().unwrap_err().code, RefusalCode::Unavailable);
}
