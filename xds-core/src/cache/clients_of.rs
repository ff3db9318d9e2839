//! How many clients select each variant of a name.

use std::collections::{BTreeMap, BTreeSet};

use super::snapshot::TypeSnapshot;
use super::{Cache, lock};
use crate::constraint::Constraints;
use crate::name::{ResourceName, TypeUrl};

impl Cache {
    /// How many clients select each variant of a name, by the constraints of the variant. Variants
    /// that no client selects are not listed. A client that was not sent its variant yet counts
    /// too. The streams of a named client count once.
    ///
    /// Costs O(streams that subscribe to the name). Meanwhile no stream can change its subscription.
    #[must_use]
    pub fn clients_by_variant(
        &self,
        type_url: &TypeUrl,
        name: &ResourceName,
    ) -> BTreeMap<Constraints, usize> {
        let (snapshot, nothing) = (self.snapshot(), TypeSnapshot::default());
        let resources = snapshot.of_type(type_url).unwrap_or(&nothing);
        let mut selected = Vec::new();
        if let Some(interest) = lock(&self.interest).types.get(type_url) {
            for class in interest.selecting(name, resources) {
                for variant in class.selection.chosen(name, resources) {
                    let members = lock(&class.members);
                    let streams = members.values().map(|member| member.ledger.stream().clone());
                    selected.extend(streams.map(|stream| (variant.constraints().clone(), stream)));
                }
            }
        }
        let mut clients = BTreeMap::<_, BTreeSet<_>>::new();
        for (constraints, stream) in selected {
            let client = stream.client();
            // G6: each stream without a node id is a client of its own.
            let alone = client.id.is_empty().then_some(stream.id);
            clients.entry(constraints).or_default().insert((client, alone));
        }
        clients.into_iter().map(|(constraints, clients)| (constraints, clients.len())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientName;
    use crate::server::fixture::{Sotw, commit, type_url};

    #[test]
    fn a_client_counts_once_for_the_variant_that_it_selects() {
        let cache = Cache::new();
        commit(&cache, "EDS a[env=p]=1 a[env=q]=2 b=1");
        let counts = |name: &str| -> Vec<_> {
            let counts = cache.clients_by_variant(&type_url("EDS"), &name.into());
            counts.into_iter().map(|(constraints, count)| (constraints.to_string(), count)).collect()
        };
        assert_eq!(counts("a"), []);
        let client = |id: &str, names: &str, parameters: &str| {
            let mut client = Sotw::new(&cache);
            client.watch.name_client(ClientName { id: id.into(), cluster: "c".into() });
            client.ask("EDS", names, parameters);
            client
        };
        let clients = [
            client("one", "a?env=p", ""),
            client("one", "a?env=p", ""),
            client("", "a?env=p b", ""),
            client("", "a?env=p", ""),
            client("two", "a?env=q", ""),
            client("three", "a?env=r", ""),
        ];
        assert_eq!(counts("a"), [("env=p".into(), 3), ("env=q".into(), 1)]);
        assert_eq!(counts("b").len(), 1);
        drop(clients);
        assert_eq!(counts("a"), []);
    }
}
