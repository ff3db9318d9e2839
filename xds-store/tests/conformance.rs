//! The conformance kit on the engines of one process.
#![cfg(feature = "conformance")]
#![forbid(unsafe_code)]

use xds_store::conformance::{Subject, check_engine, check_store};
use xds_store::engine::{Engine, MemoryEngine};

#[derive(Default)]
struct InMemory(MemoryEngine);

impl Subject for InMemory {
    fn empty(&mut self) -> Box<dyn Engine> {
        self.0 = MemoryEngine::default();
        Box::new(self.0.clone())
    }

    fn another(&mut self) -> Option<Box<dyn Engine>> {
        Some(Box::new(self.0.clone()))
    }
}

#[test]
fn the_engine_in_memory_conforms() {
    check_engine(&mut InMemory::default());
    check_store(&mut InMemory::default());
}

#[cfg(feature = "redb")]
mod on_a_file {
    use std::fs;
    use std::path::PathBuf;

    use xds_store::engine::RedbEngine;

    use super::*;

    struct OnFiles(PathBuf, u32);

    impl Subject for OnFiles {
        fn empty(&mut self) -> Box<dyn Engine> {
            self.1 += 1;
            Box::new(RedbEngine::open(&self.0.join(self.1.to_string())).expect("the folder is empty"))
        }

        fn another(&mut self) -> Option<Box<dyn Engine>> {
            None
        }
    }

    impl Drop for OnFiles {
        fn drop(&mut self) {
            _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_engine_on_a_file_conforms() {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("kit-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("it can be made");
        let mut subject = OnFiles(folder, 0);
        check_engine(&mut subject);
        check_store(&mut subject);
    }
}
