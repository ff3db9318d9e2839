//! Reads `.pb` files: each is a binary `DiscoveryResponse`.

use prost_reflect::DynamicMessage;
use prost_reflect::prost::bytes::Bytes;
use xds_core::Constraints;

use super::super::error::{FolderError, Problem};
use super::super::violations;
use super::super::wrapper::{Flaw, WrapperExtras};
use super::{CONSTRAINTS, FileReader, RESPONSE, WRAPPER, constraints_of, message_name, subject};

impl FileReader<'_> {
    /// Reads the resources of a response. Their payloads stay as they are in the file.
    pub(super) fn protobuf(&mut self, content: &[u8]) {
        if content.is_empty() {
            return self.error(None, None, Problem::Blank);
        }
        let response = match DynamicMessage::decode(self.descriptors.builtin(RESPONSE), content) {
            Ok(response) => response,
            Err(error) => return self.error(None, None, Problem::Syntax { message: error.to_string() }),
        };
        let resources = response.get_field_by_name("resources");
        let items = resources.as_deref().and_then(|value| value.as_list()).unwrap_or_default();
        for (number, item) in (1..).zip(items.iter().filter_map(|item| item.as_message())) {
            let (mut type_url, mut payload) = unpack(item);
            let mut name = None;
            let mut constraints = Ok(Constraints::NONE);
            let mut extras = Ok(WrapperExtras::default());
            if message_name(&type_url) == WRAPPER {
                match DynamicMessage::decode(self.descriptors.builtin(WRAPPER), payload) {
                    Ok(wrapper) => {
                        name = text_field(&wrapper, "name");
                        extras = WrapperExtras::of(&wrapper);
                        let naming = wrapper.get_field_by_name("resource_name");
                        if let Some(naming) = naming.as_deref().and_then(|naming| naming.as_message()) {
                            name = name.or_else(|| text_field(naming, "name"));
                            constraints = constraints_of(naming);
                        }
                        let inner = wrapper.get_field_by_name("resource");
                        (type_url, payload) =
                            inner.as_deref().and_then(|any| any.as_message()).map(unpack).unwrap_or_default();
                    }
                    Err(error) => {
                        self.error(
                            None,
                            Some(subject(WRAPPER, None)),
                            Problem::Syntax { message: error.to_string() },
                        );
                        continue;
                    }
                }
            }
            let name = name.as_deref();
            let constraints = constraints.unwrap_or_else(|error| {
                let subject = subject(message_name(&type_url), name);
                self.errors.push(FolderError {
                    resource: Some(subject),
                    field: format!("resource_name.{CONSTRAINTS}").into(),
                    ..FolderError::new(self.file, error.into())
                });
                Constraints::NONE
            });
            let extras = extras.unwrap_or_else(|flaws| {
                for (field, problem) in flaws.into_iter().map(Flaw::into_problem) {
                    let resource = Some(subject(WRAPPER, name));
                    let field = field.into();
                    self.errors.push(FolderError { resource, field, ..FolderError::new(self.file, problem) });
                }
                WrapperExtras::default()
            });
            // The bytes are served unchanged, so check that a client can decode them.
            if let Some(message) = self.descriptors.message(&type_url) {
                let subject = subject(message_name(&type_url), name);
                match DynamicMessage::decode(message, payload.clone()) {
                    Ok(message) => {
                        for (field, problem) in violations::of(&message, self.descriptors) {
                            let (resource, field) = (Some(subject.clone()), field.into());
                            let error = FolderError::new(self.file, problem);
                            self.errors.push(FolderError { resource, field, ..error });
                        }
                    }
                    Err(error) => {
                        self.error(None, Some(subject), Problem::Syntax { message: error.to_string() });
                        continue;
                    }
                }
            }
            let made = self.make(&type_url, name, payload);
            self.place(made.map(|made| extras.with(made.with_constraints(constraints))), None, number);
        }
    }
}

/// The text of a field, unless it is empty.
fn text_field(message: &DynamicMessage, name: &str) -> Option<String> {
    let value = message.get_field_by_name(name)?;
    value.as_str().filter(|text| !text.is_empty()).map(String::from)
}

/// The type URL and the value of an `Any`.
fn unpack(any: &DynamicMessage) -> (String, Bytes) {
    let type_url = any.get_field_by_number(1).and_then(|value| value.as_str().map(String::from));
    let value = any.get_field_by_number(2).and_then(|value| value.as_bytes().cloned());
    (type_url.unwrap_or_default(), value.unwrap_or_default())
}
