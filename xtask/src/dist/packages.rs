//! The packages in the binary, as cargo resolves them.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageId};

use super::DistError;
use crate::step::{output, workspace};

/// The metadata of the workspace, and which of its packages are in the binary.
#[derive(Debug)]
pub(super) struct Packages {
    metadata: Metadata,
    host: String,
    /// As `cargo tree` prints them: name and version.
    inside: BTreeSet<(String, String)>,
}

impl Packages {
    pub(super) fn read() -> Result<Self, DistError> {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let version = output(Command::new("rustc").arg("-vV"))?;
        let host = version.lines().find_map(|line| line.strip_prefix("host: "));
        let host = host.ok_or_else(|| DistError::Refused("rustc does not say its host".into()))?.to_owned();
        let options = ["--locked".to_owned(), "--filter-platform".to_owned(), host.clone()];
        let mut command = MetadataCommand::new();
        command.manifest_path(workspace().join("Cargo.toml")).other_options(options);
        // All features: some of them are not in the binary, `cargo tree` says which.
        let metadata = command.features(cargo_metadata::CargoOpt::AllFeatures).exec()?;

        let mut tree = Command::new(cargo);
        tree.args(["tree", "--locked", "--package", "xds", "--features", "dist", "--target", &host]);
        tree.args(["--edges", "normal,no-proc-macro", "--prefix", "none", "--no-dedupe", "--format", "{p}"]);
        let lines = output(tree.current_dir(workspace()))?;
        let inside = lines.lines().filter_map(|line| {
            let (name, rest) = line.split_once(" v")?;
            Some((name.to_owned(), rest.split(' ').next()?.to_owned()))
        });
        Ok(Self { inside: inside.collect(), metadata, host })
    }

    /// Those in the binary, `xds` itself and the other crates of this repository included, sorted.
    pub(super) fn all(&self) -> Vec<&Package> {
        let is_inside = |package: &&Package| {
            self.inside.contains(&(package.name.to_string(), package.version.to_string()))
        };
        let mut all: Vec<_> = self.metadata.packages.iter().filter(is_inside).collect();
        all.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        all
    }

    /// Those among them that `id` needs to run.
    pub(super) fn needed_by(&self, id: &PackageId) -> Vec<&Package> {
        let nodes = self.metadata.resolve.iter().flat_map(|resolve| &resolve.nodes);
        let needs = nodes.filter(|node| node.id == *id).flat_map(|node| &node.deps);
        let runs = needs.filter(|need| need.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal));
        let ids: BTreeSet<_> = runs.map(|need| &need.pkg).collect();
        self.all().into_iter().filter(|package| ids.contains(&package.id)).collect()
    }

    /// Whether it belongs to this repository.
    pub(super) fn is_ours(&self, package: &Package) -> bool {
        self.metadata.workspace_members.contains(&package.id)
    }

    /// The version of `xds`.
    pub(super) fn version(&self) -> String {
        self.metadata.root_package().map(|package| package.version.to_string()).unwrap_or_default()
    }

    /// The system, as `x86_64-unknown-linux-gnu`.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn target_folder(&self) -> PathBuf {
        Path::new(self.metadata.target_directory.as_str()).to_owned()
    }
}
