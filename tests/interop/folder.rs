//! The folder of resources that a test serves and edits.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use serde_json::json;

/// A temporary directory; it is removed when dropped.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    generation: u64,
}

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("interop-{}-{number}", process::id()));
        fs::create_dir_all(&path).expect("the temporary directory is writable");
        Self { path, generation: 0 }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts `resources` in place of the file `name` by one rename.
    pub(crate) fn write(&self, name: &str, resources: &[Value]) {
        let aside = self.path.join(format!(".{name}.new"));
        write_resources(&aside, resources);
        fs::rename(aside, self.path.join(name)).expect("renames within a directory");
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.path.join(name)).expect("the file is there");
    }

    /// Replaces all files by one rename, as Kubernetes does with a mounted ConfigMap: the files are
    /// links into `..data`, which is a link to the directory of the newest generation.
    pub(crate) fn swap(&mut self, files: &[(&str, Vec<Value>)]) {
        let old = self.generation_name();
        self.generation += 1;
        let new = self.generation_name();
        fs::create_dir(self.path.join(&new)).expect("a new generation");
        for (name, resources) in files {
            write_resources(&self.path.join(&new).join(name), resources);
        }
        let aside = self.path.join("..data_tmp");
        symlink(&new, &aside).expect("a link");
        fs::rename(aside, self.path.join("..data")).expect("renames within a directory");
        for (name, _) in files {
            let link = self.path.join(name);
            if link.symlink_metadata().is_err() {
                symlink(Path::new("..data").join(name), link).expect("a link");
            }
        }
        let old = self.path.join(old);
        if old.exists() {
            fs::remove_dir_all(old).expect("the old generation is ours");
        }
    }

    fn generation_name(&self) -> String {
        format!("..generation_{}", self.generation)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A leftover in the target directory harms nobody, and a panic here would hide the test's
        // own.
        fs::remove_dir_all(&self.path).ok();
    }
}

fn write_resources(path: &Path, resources: &[Value]) {
    let text = serde_json::to_vec_pretty(&json!({"resources": resources})).expect("JSON values");
    fs::write(path, text).expect("the temporary directory is writable");
}
