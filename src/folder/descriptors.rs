//! The descriptors of all Envoy types, which files are read with.

use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::{fmt, io};

use flate2::read::GzDecoder;
use prost_reflect::prost::Message;
use prost_reflect::prost_types::FileDescriptorSet;
use prost_reflect::{DescriptorPool, Kind, MessageDescriptor};
use xds_core::{FieldPath, TypeUrl};
use xds_file::Refused;

use super::FILE_LIMIT_BYTES;
use super::rules::MessageRules;

/// The types that files may use: all types of Envoy, and types that a user adds.
pub struct Descriptors {
    pool: DescriptorPool,
    type_urls: Mutex<BTreeSet<TypeUrl>>,
    /// The rules of the messages that were read, by their full names.
    rules: Mutex<HashMap<String, Arc<MessageRules>>>,
}

impl Descriptors {
    /// All types of Envoy. The first call in a process unpacks them, which takes about 30 ms.
    #[must_use]
    pub fn envoy() -> Self {
        Self { pool: envoy_pool().clone(), type_urls: Mutex::default(), rules: Mutex::default() }
    }

    /// Adds the configuration records of a durable store, `xds.store.v1.*`: no client of xDS gets them.
    #[must_use]
    pub fn with_store_types(mut self) -> Self {
        let set = FileDescriptorSet::decode(xds_proto::STORE_FILE_DESCRIPTOR_SET);
        let mut files = set.expect("the descriptors of the store are a set").file;
        files.retain(|file| self.pool.get_file_by_name(file.name()).is_none());
        self.pool.add_file_descriptor_protos(files).expect("the descriptors of the store are complete");
        self
    }

    /// Adds the types of a `google.protobuf.FileDescriptorSet`, as `protoc --include_imports
    /// --descriptor_set_out` writes it. Proto files that are known already are skipped, so the set
    /// may contain all its imports.
    ///
    /// # Errors
    /// The file cannot be read, or is not a usable set. The descriptors are unchanged.
    pub fn add_file(&mut self, path: &Path) -> Result<(), DescriptorsError> {
        let unreadable = |error: io::Error| match xds_file::refused(&error) {
            Some(refused) => DescriptorsError::Refused { path: path.into(), refused },
            None => DescriptorsError::Unreadable { path: path.into(), kind: error.kind() },
        };
        let bytes = xds_file::read_once(path, FILE_LIMIT_BYTES).map_err(unreadable)?;
        let invalid = |message: String| DescriptorsError::Invalid { path: path.into(), message };
        let set = FileDescriptorSet::decode(bytes.as_slice()).map_err(|error| invalid(error.to_string()))?;
        let mut unknown = set.file;
        unknown.retain(|file| self.pool.get_file_by_name(file.name()).is_none());
        self.pool.add_file_descriptor_protos(unknown).map_err(|error| invalid(error.to_string()))
    }

    /// The message that a type URL names, if it is known.
    pub(crate) fn message(&self, type_url: &str) -> Option<MessageDescriptor> {
        let (_, name) = type_url.rsplit_once('/')?;
        self.pool.get_message_by_name(name)
    }

    /// All messages, except the entries of maps.
    pub(super) fn messages(&self) -> impl Iterator<Item = MessageDescriptor> {
        self.pool.all_messages().filter(|message| !message.is_map_entry())
    }

    /// The way to a text field of a type: the names of fields from the top of the payload, joined by
    /// dots. It covers the items of lists, and the values of maps. `None` if the type is not known, has
    /// no such field, or if the field is in a `google.protobuf.Any`.
    #[must_use]
    pub fn field_path(&self, type_url: &str, field: &str) -> Option<FieldPath> {
        let (mut message, mut numbers) = (Some(self.message(type_url)?), Vec::new());
        for name in field.split('.') {
            let field = message.take()?.get_field_by_name(name)?;
            numbers.push(field.number());
            let mut kind = field.kind();
            if let (true, Kind::Message(entry)) = (field.is_map(), &kind) {
                let value = entry.map_entry_value_field();
                numbers.push(value.number());
                kind = value.kind();
            }
            match kind {
                Kind::Message(inner) if inner.full_name() != ANY && !field.is_group() => {
                    message = Some(inner);
                }
                Kind::String => {}
                _ => return None,
            }
        }
        message.is_none().then(|| FieldPath::new(numbers))
    }

    /// A message of Envoy or of protobuf itself.
    ///
    /// # Panics
    /// If the built-in descriptors do not have it.
    pub(crate) fn builtin(&self, name: &str) -> MessageDescriptor {
        self.pool.get_message_by_name(name).expect("the built-in descriptors have all types of Envoy")
    }

    /// The validation rules of a message.
    pub(super) fn rules(&self, message: &MessageDescriptor) -> Arc<MessageRules> {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = rules.get(message.full_name()) {
            return Arc::clone(known);
        }
        let read = Arc::new(MessageRules::of(message));
        rules.insert(message.full_name().to_owned(), Arc::clone(&read));
        read
    }

    /// The shared copy of a type URL.
    pub(super) fn type_url(&self, text: &str) -> TypeUrl {
        let mut known = self.type_urls.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(text).cloned().unwrap_or_else(|| {
            let type_url = TypeUrl::from(text);
            known.insert(type_url.clone());
            type_url
        })
    }
}

impl Default for Descriptors {
    fn default() -> Self {
        Self::envoy()
    }
}

impl fmt::Debug for Descriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Descriptors").field("files", &self.pool.files().len()).finish_non_exhaustive()
    }
}

/// Why a descriptor set was not added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptorsError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {kind}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        kind: io::ErrorKind,
    },
    /// The file is too large, or not a regular file.
    #[error("{}: {refused}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The reason.
        refused: Refused,
    },
    /// The file is not a descriptor set, or conflicts with the known types.
    #[error("{}: not a usable FileDescriptorSet (see protoc --include_imports --descriptor_set_out): {message}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
}

/// The pool of the built-in set, unpacked once.
fn envoy_pool() -> &'static DescriptorPool {
    static POOL: OnceLock<DescriptorPool> = OnceLock::new();
    POOL.get_or_init(|| {
        let mut bytes = Vec::new();
        GzDecoder::new(ENVOY).read_to_end(&mut bytes).expect("the built-in descriptors are gzip");
        DescriptorPool::decode(bytes.as_slice()).expect("the built-in descriptors are a complete set")
    })
}

const ANY: &str = "google.protobuf.Any";

/// Made by `cargo xtask descriptors`.
static ENVOY: &[u8] = include_bytes!("../../descriptors/envoy.binpb.gz");

#[cfg(test)]
mod tests {
    use prost_reflect::prost_types::{DescriptorProto, FileDescriptorProto};

    use super::*;

    #[test]
    fn sg11_the_path_of_a_text_field_covers_lists_and_maps_and_ends_at_what_is_packed() {
        let descriptors = Descriptors::envoy();
        let path = |message: &str, field: &str| {
            descriptors.field_path(&format!("type.googleapis.com/{message}"), field)
        };
        let routes = "envoy.config.route.v3.RouteConfiguration";
        assert_eq!(path(routes, "virtual_hosts.domains"), Some(FieldPath::new([2, 2])));
        assert_eq!(path(routes, "virtual_hosts.routes.route.cluster"), Some(FieldPath::new([2, 3, 2, 1])));
        assert_eq!(
            path("envoy.config.core.v3.Node", "dynamic_parameters.params"),
            Some(FieldPath::new([12, 2, 1, 2]))
        );
        for field in
            ["virtual_hosts", "name.x", "x", "", "validate_clusters", "typed_per_filter_config.type_url"]
        {
            assert_eq!(path(routes, field), None, "{field}");
        }
        assert_eq!(path("acme.Thing", "name"), None);
    }

    /// Writes a descriptor set with one file and adds it.
    fn add(test: &str, file: FileDescriptorProto) -> Result<Descriptors, DescriptorsError> {
        let path = std::env::temp_dir().join(format!("xds-{}-{test}.binpb", std::process::id()));
        std::fs::write(&path, FileDescriptorSet { file: vec![file] }.encode_to_vec()).unwrap();
        let mut descriptors = Descriptors::envoy();
        let added = descriptors.add_file(&path);
        std::fs::remove_file(&path).unwrap();
        added.map(|()| descriptors)
    }

    fn acme(imports: &str) -> FileDescriptorProto {
        FileDescriptorProto {
            name: Some("acme.proto".into()),
            package: Some("acme".into()),
            dependency: vec![imports.into()],
            message_type: vec![DescriptorProto { name: Some("Thing".into()), ..DescriptorProto::default() }],
            ..FileDescriptorProto::default()
        }
    }

    #[test]
    fn a_user_adds_types_beside_those_of_envoy() {
        let descriptors = add("adds", acme("envoy/config/cluster/v3/cluster.proto")).unwrap();
        assert!(descriptors.message("example.com/acme.Thing").is_some());
        assert!(descriptors.message("type.googleapis.com/envoy.config.cluster.v3.Cluster").is_some());
    }

    #[test]
    fn a_set_without_its_imports_is_refused_with_its_file() {
        let error = add("imports", acme("acme/base.proto")).unwrap_err();
        assert!(matches!(error, DescriptorsError::Invalid { .. }), "{error}");
        assert!(error.to_string().contains("acme/base.proto"), "{error}");
    }

    #[test]
    fn a_set_may_hold_files_that_are_known_already() {
        let known = envoy_pool().get_file_by_name("envoy/config/cluster/v3/cluster.proto").unwrap();
        assert!(add("known", known.file_descriptor_proto().clone()).is_ok());
    }
}
