//! Claim: a commit of one resource into 100,000 takes less than 100 us of CPU and allocates less
//! than 64 KiB. A commit of 100,000 resources into an empty cache handles more than 300,000
//! resources per second.
//!
//! Size: up to 100,000 resources of 10 endpoints, as in the load benchmark, and 10,000 streams; no
//! sockets, one thread. The groups show the cost of each step and what it grows with. The claim is
//! checked after them. Linux only.
//!
//!     cargo bench --bench engine [-- GROUP]
#![expect(clippy::unwrap_used, reason = "a bench may panic")]

mod claim;
mod client;
mod commit;
mod diff;
mod encode;
mod interest;
mod resources;

use std::time::Duration;

use criterion::Criterion;

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .nresamples(2_000)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .configure_from_args();
    commit::group(&mut criterion);
    interest::group(&mut criterion);
    diff::group(&mut criterion);
    encode::group(&mut criterion);
    criterion.final_summary();
    // Not when each function runs only once, as with `cargo test`.
    if std::env::args().any(|word| word == "--bench") {
        claim::check();
    }
}
