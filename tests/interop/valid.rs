//! No false alarm: what Envoy accepts is no error of a folder. The configurations are the examples
//! in Envoy's own repository, as far as a real Envoy validates them, and ours.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::process::Command;

use crate::folder::Folder;
use crate::peers;

/// The files `*.yaml` below a folder, in order.
fn yaml_files(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    entries.sort_unstable();
    let mut files = Vec::new();
    for entry in entries {
        if entry.is_dir() {
            files.extend(yaml_files(&entry));
        } else if entry.extension().is_some_and(|extension| extension == "yaml") {
            files.push(entry);
        }
    }
    files
}

/// The listeners, clusters and secrets of a bootstrap, as resources of a folder; `None` if the file
/// is no bootstrap.
fn resources(file: &Path) -> Option<Vec<Value>> {
    let bootstrap: Value = serde_saphyr::from_str(&fs::read_to_string(file).ok()?).ok()?;
    let fixed = bootstrap.get("static_resources")?;
    let mut found = Vec::new();
    for (key, message) in TYPES {
        for (number, resource) in fixed.get(key).and_then(Value::as_array).into_iter().flatten().enumerate() {
            let mut resource = resource.clone();
            let fields = resource.as_object_mut()?;
            fields.insert("@type".into(), format!("type.googleapis.com/{message}").into());
            // Only a bootstrap may have listeners without a name.
            fields.entry("name").or_insert_with(|| json!(format!("{key}-{number}")));
            found.push(resource);
        }
    }
    Some(found)
}

/// Whether Envoy accepts this bootstrap.
async fn is_valid(envoy: &Path, file: &Path) -> bool {
    let mut validate = Command::new(envoy);
    validate.args(["--mode", "validate", "--log-level", "critical", "-c"]).arg(file);
    // Some files name others beside them.
    validate.current_dir(file.parent().expect("a file is in a folder"));
    validate.output().await.expect("Envoy runs").status.success()
}

/// What `xds check` says of a folder with these resources.
fn errors(resources: &[Value]) -> Vec<String> {
    let scratch = Folder::new();
    scratch.write("valid.json", resources);
    let contents = xds::folder::Folder::new(scratch.path()).contents(|_| {});
    contents.errors().iter().flat_map(|errors| errors.iter().map(ToString::to_string)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_configuration_that_envoy_accepts_is_an_error_of_a_folder() {
    let (Some(envoy), Some(repository)) = (peers::find(peers::ENVOY), peers::find(peers::ENVOY_REPOSITORY))
    else {
        return;
    };
    // A link may not lead to a working directory of another name.
    let envoy = envoy.canonicalize().expect("it was found");
    let files: Vec<_> = FOLDERS.iter().flat_map(|folder| yaml_files(&repository.join(folder))).collect();
    let (mut accepted, mut alarms) = (0, Vec::new());
    for file in files {
        let Some(resources) = resources(&file).filter(|resources| !resources.is_empty()) else { continue };
        if !is_valid(&envoy, &file).await {
            continue;
        }
        accepted += resources.len();
        alarms.extend(errors(&resources).into_iter().map(|error| format!("{}: {error}", file.display())));
    }
    for folder in fs::read_dir("examples").expect("a folder").map(|entry| entry.expect("an entry").path()) {
        // `tests/examples.rs` and the tests of the pages run these examples with a real Envoy.
        let contents = xds::folder::Folder::new(&folder).allow_empty().contents(|_| {});
        if !OURS.iter().any(|name| folder.ends_with(name)) {
            continue;
        }
        accepted += contents.resources();
        alarms.extend(contents.errors().iter().flatten().map(|error| format!("{folder:?}: {error}")));
    }
    assert!(alarms.is_empty(), "{}", alarms.join("\n"));
    assert!(accepted >= 200, "Envoy accepts only {accepted} resources");
}

/// The folders of Envoy's repository with example configurations.
const FOLDERS: [&str; 3] = ["configs", "docs", "test/config"];

/// Our examples that are folders of resources.
const OURS: [&str; 2] = ["quickstart", "variants"];

/// The keys of static resources, with their types.
const TYPES: [(&str, &str); 3] = [
    ("listeners", "envoy.config.listener.v3.Listener"),
    ("clusters", "envoy.config.cluster.v3.Cluster"),
    ("secrets", "envoy.extensions.transport_sockets.tls.v3.Secret"),
];
