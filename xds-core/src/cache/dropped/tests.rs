use xds_proto::type_url;

use super::*;
use crate::cache::TypeSnapshot;
use crate::cache::transaction::{Change, VariantChange};
use crate::constraint::Constraints;
use crate::matching::KeySetRule;
use crate::references::tests::{field, path};
use crate::resource::Resource;

#[test]
fn s33_what_was_dropped_is_known_by_when_it_was() {
    let routes = |clusters: &[String], revision| {
        let payload: Vec<_> = clusters.iter().flat_map(|name| path(&[2, 3, 2, 1], name)).collect();
        let resource = Resource::new(type_url::ROUTE_CONFIGURATION, "r", [field(1, "r"), payload].concat());
        vec![Arc::new(Variant::new(resource.unwrap(), Revision(revision), Revision(1)))]
    };
    let names = |numbers: std::ops::Range<u32>| numbers.map(|at| format!("c{at:02}")).collect::<Vec<_>>();
    let first = routes(&names(0..4), 1);
    let second = routes(&names(2..4), 2);
    let third = routes(&names(4..74), 3);
    let fourth = routes(&[], 4);
    let since = |dropped: &Dropped, revision| {
        let shown = |naming: Reference<'_>| match naming {
            Reference::Any => "*".to_owned(),
            Reference::Name(name) => name.as_str().to_owned(),
        };
        dropped.since(Revision(revision), Target::Cluster).map(shown).collect::<Vec<_>>()
    };
    let dropped = Dropped::after(None, &first, &second, Revision(2)).unwrap();
    let dropped = Dropped::after(Some(&dropped), &second, &third, Revision(3)).unwrap();
    assert_eq!(since(&dropped, 1), ["c03", "c02", "c01", "c00"]);
    assert_eq!(since(&dropped, 2), ["c03", "c02"]);
    assert_eq!(since(&dropped, 3), [""; 0]);
    assert_eq!(dropped.since(Revision(1), Target::Secret).count(), 0);
    assert!(Dropped::after(Some(&dropped), &third, &third, Revision(4)).is_none());
    // More references than are remembered: any older one may have been dropped.
    let dropped = Dropped::after(Some(&dropped), &third, &fourth, Revision(4)).unwrap();
    assert_eq!(since(&dropped, 3).len(), 65);
    assert_eq!(since(&dropped, 3)[0], "*");
    assert_eq!(since(&dropped, 4), [""; 0]);
}

#[test]
fn s33_what_was_dropped_by_what_is_forgotten_may_be_anything() {
    let mut resources = TypeSnapshot::default();
    let edit = |resources: &mut TypeSnapshot, cluster: Option<&str>, revision| {
        let change = match cluster {
            Some(cluster) => {
                let payload = [field(1, "r"), path(&[2, 3, 2, 1], cluster)].concat();
                let resource = Resource::new(type_url::ROUTE_CONFIGURATION, "r", payload);
                Change::Put(resource.unwrap())
            }
            None => Change::Remove,
        };
        let change = VariantChange { name: "r".into(), constraints: Constraints::NONE, change };
        let changes = std::iter::once(change);
        resources.edit(&"r".into(), changes, Revision(revision), KeySetRule::default()).unwrap();
    };
    let dropped = |resources: &TypeSnapshot, revision| {
        let dropped = resources.dropped().after(&"r".into(), Revision(revision), Target::Cluster);
        dropped.map(|naming| if naming == Reference::Any { "any" } else { "name" }).collect::<Vec<_>>()
    };
    edit(&mut resources, Some("c"), 1);
    edit(&mut resources, None, 2);
    assert_eq!(dropped(&resources, 1), ["name"]);
    resources.forget_removals(Revision(2), Revision(3));
    assert_eq!(dropped(&resources, 1), ["any"]);
    assert_eq!(dropped(&resources, 2), [""; 0]);
    assert_eq!(resources.dropped().names().count(), 0);
    // The resource is back, but a client that missed this may still use what the old one named.
    edit(&mut resources, Some("d"), 4);
    assert_eq!(dropped(&resources, 1), ["any"]);
}
