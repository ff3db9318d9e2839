//! Resources of messages that know their type.

use prost::{Message, Name};

use super::{Resource, ResourceError};
use crate::name::{ResourceName, TypeUrl};

impl Resource {
    /// An unconstrained resource of a message that has its name in field 1, as those of Envoy do.
    ///
    /// The type is that of the message. [`new`](Self::new) takes any bytes for any type: neither it
    /// nor a commit decodes them, so a listener can get to clients as a cluster.
    ///
    /// # Errors
    /// See [`ResourceError`]. [`ResourceError::MissingName`] for a type of your own: give its
    /// resources a name by [`of_named`](Self::of_named).
    pub fn of<M: Message + Name>(message: &M) -> Result<Self, ResourceError> {
        Self::from_payload(TypeUrl::of::<M>(), message.encode_to_vec())
    }

    /// As [`of`](Self::of), with a name that the message need not have.
    ///
    /// # Errors
    /// See [`ResourceError`].
    pub fn of_named<M: Message + Name>(
        name: impl Into<ResourceName>,
        message: &M,
    ) -> Result<Self, ResourceError> {
        Self::new(TypeUrl::of::<M>(), name, message.encode_to_vec())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use xds_proto::type_url::{CLUSTER, LISTENER};

    use super::*;
    use crate::{Cache, Parameters, Transaction};

    /// The first field of a cluster and of a listener.
    macro_rules! named {
        ($message:ident, $package:literal) => {
            #[derive(Clone, PartialEq, Message)]
            struct $message {
                #[prost(string, tag = "1")]
                name: String,
                #[prost(string, tag = "28")]
                alt_stat_name: String,
            }

            impl Name for $message {
                const NAME: &'static str = stringify!($message);
                const PACKAGE: &'static str = $package;
            }
        };
    }
    named!(Cluster, "envoy.config.cluster.v3");
    named!(Listener, "envoy.config.listener.v3");
    named!(Thing, "acme");

    fn cluster(alt_stat_name: &str) -> Cluster {
        Cluster { name: "web".into(), alt_stat_name: alt_stat_name.into() }
    }

    fn committed(resources: impl IntoIterator<Item = Resource>) -> Arc<Cache> {
        let (cache, mut transaction) = (Cache::new(), Transaction::new());
        resources.into_iter().for_each(|resource| transaction.put(resource));
        cache.commit(transaction).unwrap();
        cache
    }

    #[test]
    fn a_message_has_its_own_type_and_name() {
        let resource = Resource::of(&cluster("")).unwrap();
        assert_eq!((resource.type_url().as_str(), resource.name().as_str()), (CLUSTER, "web"));
        let listener = Resource::of(&Listener { name: "web".into(), ..Listener::default() }).unwrap();
        assert_eq!(listener.type_url().as_str(), LISTENER);
        let nameless = Resource::of(&Cluster::default()).unwrap_err();
        assert_eq!(nameless, ResourceError::MissingName { type_url: CLUSTER.into() });
    }

    #[test]
    fn a_message_of_your_own_type_is_given_its_name() {
        let thing = Thing::default();
        assert!(matches!(Resource::of(&thing), Err(ResourceError::MissingName { .. })));
        let resource = Resource::of_named("a", &thing).unwrap();
        assert_eq!(
            (resource.type_url().as_str(), resource.name().as_str()),
            ("type.googleapis.com/acme.Thing", "a")
        );
        // D23: Envoy uses the name in the payload.
        let mismatch = Resource::of_named("other", &cluster(""));
        assert!(matches!(mismatch, Err(ResourceError::NameMismatch { .. })));
    }

    /// Neither a resource nor a commit knows the fields of a type, so this is not refused. `of` cannot
    /// make such a resource, and `xds check` reads all fields.
    #[test]
    fn bytes_of_another_type_are_not_refused_by_new() {
        let listener = Listener { name: "web".into(), ..Listener::default() }.encode_to_vec();
        let resource = Resource::new(CLUSTER, "web", listener).unwrap();
        assert!(committed([resource]).snapshot().get(&CLUSTER.into(), &"web".into()).is_some());
    }

    #[test]
    fn a_snapshot_has_the_message_for_the_parameters_of_a_client() {
        let variant = |when: &str, text: &str| {
            Resource::of(&cluster(text)).unwrap().with_constraints(when.parse().unwrap())
        };
        let snapshot = committed([variant("env=prod", "p"), variant("env=test", "t")]).snapshot();
        let of = |env: &str| {
            let parameters: Parameters = [("env", env)].into_iter().collect();
            snapshot.get_message::<Cluster>("web", &parameters).unwrap()
        };
        assert_eq!((of("prod"), of("test"), of("canary")), (Some(cluster("p")), Some(cluster("t")), None));
        let nothing = Parameters::new();
        assert_eq!(snapshot.get_message::<Cluster>("web", &nothing), Ok(None));
        assert_eq!(snapshot.get_message::<Cluster>("other", &nothing), Ok(None));
        assert_eq!(snapshot.get_message::<Listener>("web", &nothing), Ok(None));
    }

    #[test]
    fn a_payload_that_is_not_of_the_type_is_an_error_of_the_reader() {
        let payload = b"\x0a\x03web\xe2\x01\x01\xff".as_slice();
        let snapshot = committed([Resource::new(CLUSTER, "web", payload).unwrap()]).snapshot();
        assert!(snapshot.get_message::<Cluster>("web", &Parameters::new()).is_err());
    }

    #[test]
    fn x14_a_redirect_has_no_message_of_its_type() {
        let name = "xdstp://a/envoy.config.cluster.v3.Cluster/web";
        let redirect = Resource::redirect(CLUSTER.into(), name.into(), Vec::new().into()).unwrap();
        let snapshot = committed([redirect]).snapshot();
        assert_eq!(snapshot.get_message::<Cluster>(name, &Parameters::new()), Ok(None));
    }
}
