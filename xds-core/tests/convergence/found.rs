//! Histories that once ended with another state than the cache's.

use crate::history::History;
use crate::history::Step::{self, Ask, Commit, Pass, Reconnect, Take};

/// For each the node's parameters and the steps.
pub(crate) fn histories() -> impl Iterator<Item = History> {
    let found: [(u8, Vec<Step>); 14] = [
        // D18: what came, went, came and went was not there at the cursor, so a locator that is
        // given up did not have it.
        (
            121,
            vec![
                Commit(vec![(251, 153, 36, 0)]),
                Commit(vec![(63, 18, 193, 0)]),
                Ask { type_url: 255, asked: vec![(0, 0), (3, 1)] },
                Pass { ms: 440 },
                Take { accept: true },
                Reconnect,
                Commit(vec![(63, 148, 22, 0)]),
                Commit(vec![(123, 38, 67, 0)]),
            ],
        ),
        // A wildcard that is given up while its response is on its way; a commit in between is
        // about nobody.
        (
            32,
            vec![
                Ask { type_url: 23, asked: vec![(0, 1)] },
                Commit(vec![(119, 14, 139, 1)]),
                Ask { type_url: 175, asked: vec![] },
                Commit(vec![(111, 64, 13, 0)]),
                Ask { type_url: 255, asked: vec![(39, 21)] },
                Take { accept: true },
                Commit(vec![]),
            ],
        ),
        // D20: what came by name goes with the plain wildcard, though a locator takes the wildcard
        // over.
        (
            21,
            vec![
                Ask { type_url: 126, asked: vec![(0, 0)] },
                Commit(vec![(62, 0, 157, 0)]),
                Ask { type_url: 62, asked: vec![(0, 13)] },
            ],
        ),
        // SotW: what went while a stream was replaced is gone from the full state of the next one.
        (
            161,
            vec![
                Ask { type_url: 56, asked: vec![(0, 0)] },
                Commit(vec![(0, 19, 1, 0)]),
                Commit(vec![(0, 79, 0, 0)]),
                Ask { type_url: 228, asked: vec![(0, 1)] },
                Ask { type_url: 68, asked: vec![(154, 0)] },
                Reconnect,
            ],
        ),
        // D18, V29: what a wildcard still has is held, not removed with a locator that is given up.
        (
            4,
            vec![
                Commit(vec![(0, 0, 8, 0)]),
                Ask { type_url: 152, asked: vec![(25, 1), (0, 0)] },
                Ask { type_url: 37, asked: vec![] },
                Ask { type_url: 204, asked: vec![(0, 0)] },
                Commit(vec![(0, 0, 0, 0)]),
                Commit(vec![(0, 0, 8, 0)]),
            ],
        ),
        // V29: a resource was in flight, was removed, and its removal was sent. When it comes back
        // with the same content, the server sends it again.
        (
            22,
            vec![
                Commit(vec![(5, 6, 1, 0)]),
                Ask { type_url: 177, asked: vec![(0, 0), (31, 0)] },
                Reconnect,
                Ask { type_url: 145, asked: vec![(26, 0)] },
                Commit(vec![(5, 1, 0, 0)]),
                Ask { type_url: 1, asked: vec![(0, 0)] },
                Commit(vec![(125, 96, 1, 0)]),
            ],
        ),
        // S8b: a wildcard's response is on its way when it is given up; a locator of a name in it
        // has nothing.
        (
            20,
            vec![
                Commit(vec![(0, 32, 33, 0)]),
                Ask { type_url: 236, asked: vec![(0, 17)] },
                Take { accept: true },
                Ask { type_url: 80, asked: vec![] },
                Commit(vec![(0, 137, 45, 0)]),
                Ask { type_url: 188, asked: vec![(52, 0), (17, 25)] },
            ],
        ),
        // V29: a wildcard that is new did not have what went before it.
        (
            37,
            vec![
                Commit(vec![(223, 6, 1, 1)]),
                Ask { type_url: 39, asked: vec![(2, 0)] },
                Commit(vec![(91, 0, 2, 0), (255, 1, 0, 0)]),
                Ask { type_url: 43, asked: vec![(0, 0)] },
                Commit(vec![(251, 6, 1, 13)]),
            ],
        ),
        // The same, from locator to name.
        (
            41,
            vec![
                Ask { type_url: 96, asked: vec![(0, 1)] },
                Commit(vec![(0, 0, 102, 5)]),
                Ask { type_url: 252, asked: vec![(0, 0)] },
                Commit(vec![(0, 0, 0, 0)]),
                Commit(vec![(0, 0, 11, 5)]),
            ],
        ),
        // D12: what was answered ahead of a commit and given up since is sent again.
        (
            184,
            vec![
                Commit(vec![]),
                Ask { type_url: 83, asked: vec![(0, 0)] },
                Commit(vec![(23, 0, 5, 0)]),
                Ask { type_url: 112, asked: vec![(0, 0)] },
                Ask { type_url: 71, asked: vec![(255, 0)] },
                Ask { type_url: 35, asked: vec![] },
                Ask { type_url: 231, asked: vec![(0, 0)] },
            ],
        ),
        // V29: a wildcard with other parameters did not have what went before it.
        (
            72,
            vec![
                Commit(vec![(255, 144, 149, 0)]),
                Ask { type_url: 255, asked: vec![(0, 13)] },
                Commit(vec![]),
                Commit(vec![(119, 59, 0, 0)]),
                Ask { type_url: 59, asked: vec![(0, 0)] },
                Commit(vec![(63, 134, 184, 0)]),
            ],
        ),
        // The same, to the parameters of the node.
        (
            7,
            vec![
                Ask { type_url: 255, asked: vec![(0, 1)] },
                Commit(vec![(63, 144, 215, 110)]),
                Commit(vec![(255, 79, 0, 0)]),
                Ask { type_url: 47, asked: vec![(0, 0)] },
                Commit(vec![(95, 144, 19, 106)]),
            ],
        ),
        // What came and went between two responses is not removed: what the client brought may
        // match it.
        (
            225,
            vec![
                Ask { type_url: 105, asked: vec![(0, 1)] },
                Commit(vec![(29, 6, 148, 123)]),
                Ask { type_url: 105, asked: vec![(0, 5), (2, 0)] },
                Reconnect,
                Commit(vec![(1, 76, 2, 0)]),
                Ask { type_url: 207, asked: vec![(0, 0)] },
                Commit(vec![(13, 1, 0, 0)]),
                Commit(vec![(5, 36, 92, 175)]),
            ],
        ),
        // D20: a response to a plain wildcard that arrives after a locator took its place. The client
        // must not bring what is in it to the next stream: the locator has its own form of it (V25).
        (
            179,
            vec![
                Commit(vec![(235, 0, 1, 0)]),
                Ask { type_url: 159, asked: vec![(0, 0)] },
                Ask { type_url: 98, asked: vec![] },
                Ask { type_url: 243, asked: vec![(255, 1)] },
                Ask { type_url: 149, asked: vec![(0, 0)] },
                Reconnect,
            ],
        ),
    ];
    found.into_iter().map(|(node, steps)| History { node, steps })
}
