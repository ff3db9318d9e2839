//! The rules of records and their time, of several servers, and of compaction, on the machine.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "rules/across.rs"]
mod across;
#[path = "rules/ambiguity.rs"]
mod ambiguity;
#[path = "rules/authorities.rs"]
mod authorities;
#[path = "rules/cascades.rs"]
mod cascades;
#[path = "rules/ceilings.rs"]
mod ceilings;
#[path = "rules/claims.rs"]
mod claims;
#[path = "rules/clock.rs"]
mod clock;
#[path = "rules/collecting.rs"]
mod collecting;
#[path = "rules/dangling.rs"]
mod dangling;
#[path = "rules/drains.rs"]
mod drains;
mod driven;
#[path = "rules/entries.rs"]
mod entries;
#[path = "rules/finishing.rs"]
mod finishing;
#[path = "rules/foreign_owners.rs"]
mod foreign_owners;
#[path = "rules/forgetting.rs"]
mod forgetting;
#[path = "rules/forgotten.rs"]
mod forgotten;
#[path = "rules/form.rs"]
mod form;
#[path = "rules/journal.rs"]
mod journal;
#[path = "rules/late_phases.rs"]
mod late_phases;
#[path = "rules/leases.rs"]
mod leases;
#[path = "rules/merging.rs"]
mod merging;
#[path = "rules/nodes.rs"]
mod nodes;
#[path = "rules/numbers.rs"]
mod numbers;
#[path = "rules/older_references.rs"]
mod older_references;
#[path = "rules/outages.rs"]
mod outages;
#[path = "rules/overlaps.rs"]
mod overlaps;
#[path = "rules/owners.rs"]
mod owners;
#[path = "rules/pass.rs"]
mod pass;
#[path = "rules/phases.rs"]
mod phases;
#[path = "rules/promoted.rs"]
mod promoted;
#[path = "rules/quarantine.rs"]
mod quarantine;
#[path = "rules/reference_rules.rs"]
mod reference_rules;
#[path = "rules/references.rs"]
mod references;
#[path = "rules/regions.rs"]
mod regions;
#[path = "rules/renamed.rs"]
mod renamed;
#[path = "rules/resource_owners.rs"]
mod resource_owners;
#[path = "rules/rights.rs"]
mod rights;
#[path = "rules/rollouts.rs"]
mod rollouts;
#[path = "rules/schema.rs"]
mod schema;
#[path = "rules/servers.rs"]
mod servers;
#[path = "rules/startup.rs"]
mod startup;
#[path = "rules/variants.rs"]
mod variants;
