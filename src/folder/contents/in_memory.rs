//! Resources that are in no file, checked as those of a folder.

use std::collections::BTreeSet;
use std::sync::Arc;

use prost_reflect::DynamicMessage;
use xds_core::matching::coverage::Domains;
use xds_core::{CommitError, Resource};

use super::super::descriptors::Descriptors;
use super::super::document::{ParsedResource, message_name, subject};
use super::super::domains::DomainsFile;
use super::super::error::{FolderError, Problem};
use super::super::index::{Changes, FileContent};
use super::super::scan::Stamp;
use super::super::violations;
use super::Contents;

impl Contents {
    /// These resources, to be checked before a program commits them: [`errors`](Self::errors) finds
    /// payloads that are not of their type, broken validation rules, what Envoy is known to reject and
    /// what a cache would refuse; [`warnings`](Self::warnings) likely mistakes, for which all resources
    /// have to be there that they refer to.
    ///
    /// The place of a resource has no file; its line is the number of the resource, from 1. A payload
    /// of a type that the descriptors do not have is not checked.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use xds::Resource;
    /// use xds::folder::{Contents, Descriptors};
    ///
    /// // Field 4, the timeout for connections, is a duration of -1 seconds.
    /// let payload = b"\x0a\x03web\x22\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01".as_slice();
    /// let cluster = Resource::new(xds::type_url::CLUSTER, "web", payload)?;
    /// let contents = Contents::of_resources([cluster], Arc::new(Descriptors::envoy()));
    /// let errors = contents.errors().expect("a timeout is positive");
    /// assert!(errors.to_string().contains("connect_timeout: must be greater than 0s"), "{errors}");
    /// # Ok::<(), xds::ResourceError>(())
    /// ```
    #[must_use]
    pub fn of_resources(
        resources: impl IntoIterator<Item = Resource>,
        descriptors: Arc<Descriptors>,
    ) -> Self {
        let (mut parsed, mut errors, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (line, resource) in (1..).zip(resources) {
            errors.extend(errors_of(&resource, &descriptors));
            if !seen.insert(resource.id().clone()) {
                let error = Box::new(CommitError::Contradiction { id: resource.id().clone() });
                errors.push(FolderError::new("", Problem::Commit { error, other: None }));
            }
            parsed.push(ParsedResource { resource, line });
        }
        let files: Changes = vec![("".into(), FileContent::Resources(Stamp::default(), parsed))];
        Self::new(files, DomainsFile::default(), errors, descriptors, 0)
    }

    /// Says which values clients have, as `domains.yaml` does, for fewer false warnings.
    #[must_use]
    pub fn with_domains(mut self, domains: Domains) -> Self {
        self.domains = DomainsFile { domains, ..DomainsFile::default() };
        self
    }
}

/// The errors of the payload of one resource.
fn errors_of(resource: &Resource, descriptors: &Descriptors) -> Vec<FolderError> {
    let type_url = resource.payload_type();
    let Some(message) = descriptors.message(type_url) else { return Vec::new() };
    let subject = subject(message_name(type_url), Some(resource.name().as_str()));
    let error = |(field, problem): (String, Problem)| {
        let (resource, field) = (Some(subject.clone()), field.into());
        FolderError { resource, field, ..FolderError::new("", problem) }
    };
    match DynamicMessage::decode(message, resource.payload().clone()) {
        Ok(message) => violations::of(&message, descriptors).into_iter().map(error).collect(),
        Err(malformed) => vec![error((String::new(), Problem::Syntax { message: malformed.to_string() }))],
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::cluster::v3::Cluster;
    use envoy_types::pb::envoy::config::core::v3::Address;
    use envoy_types::pb::envoy::config::listener::v3::Listener;
    use envoy_types::pb::envoy::config::route::v3::{RouteConfiguration, VirtualHost};
    use prost::Message;
    use xds_core::matching::value_set::ValueSet;
    use xds_proto::type_url::CLUSTER;

    use super::*;

    fn contents(resources: impl IntoIterator<Item = Resource>) -> Contents {
        Contents::of_resources(resources, Arc::new(Descriptors::envoy()))
    }

    fn errors(resources: impl IntoIterator<Item = Resource>) -> Vec<String> {
        let errors = contents(resources).errors();
        errors.iter().flatten().map(ToString::to_string).collect()
    }

    fn cluster(name: &str) -> Resource {
        Resource::of(&Cluster { name: name.into(), ..Cluster::default() }).unwrap()
    }

    fn variant(when: &str) -> Resource {
        cluster("a").with_constraints(when.parse().unwrap())
    }

    #[test]
    fn valid_resources_have_neither_errors_nor_warnings() {
        let contents = contents([cluster("a"), cluster("b")]);
        assert_eq!((contents.errors(), contents.warnings(), contents.resources()), (None, Vec::new(), 2));
    }

    #[test]
    fn bytes_of_another_type_are_an_error() {
        let address = Some(Address::default());
        let listener = Listener { name: "a".into(), address, ..Listener::default() }.encode_to_vec();
        let found = errors([Resource::new(CLUSTER, "a", listener).unwrap()]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("envoy.config.cluster.v3.Cluster \"a\": "), "{found:?}");
    }

    #[test]
    fn a_broken_rule_is_an_error_with_its_field() {
        let virtual_hosts = vec![VirtualHost { name: "h".into(), ..VirtualHost::default() }];
        let routes = RouteConfiguration { name: "r".into(), virtual_hosts, ..RouteConfiguration::default() };
        let found = errors([Resource::of(&routes).unwrap()]);
        let begin = "envoy.config.route.v3.RouteConfiguration \"r\": virtual_hosts[0].domains: ";
        assert!(found.len() == 1 && found[0].starts_with(begin), "{found:?}");
    }

    #[test]
    fn t15_what_a_cache_refuses_is_an_error() {
        let found = errors([cluster("a"), cluster("a")]);
        assert_eq!(found, ["envoy.config.cluster.v3.Cluster \"a\" is changed twice in one transaction"]);
        let found = errors([variant("env=prod"), variant("env in (prod,test)")]);
        assert_eq!(
            found,
            [
                "envoy.config.cluster.v3.Cluster \"a\": [env=prod] and [env in (prod,test)] both match env=\"prod\"; \
              the first is resource 1"
            ]
        );
    }

    #[test]
    fn t18_a_gap_is_a_warning_unless_no_client_is_in_it() {
        let contents = contents([cluster("b"), variant("env=prod"), variant("env=test")]);
        let warnings = contents.warnings();
        assert_eq!(warnings.iter().map(|warning| warning.kind()).collect::<Vec<_>>(), ["gap"]);
        assert_eq!(warnings[0].locations[0].to_string(), "resource 2");
        assert_eq!(warnings[0].locations[0].position(), None);
        let values = ["prod", "test"].map(Arc::from).to_vec();
        let domains = Domains::from([("env".into(), ValueSet::of(values, false, false))]);
        assert_eq!(contents.with_domains(domains).warnings(), []);
    }
}
