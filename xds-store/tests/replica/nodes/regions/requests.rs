//! What users of nodes of several regions commit.

use super::*;
use crate::nodes::disks;

impl Regions {
    /// The policies of all prefixes: each region owns one, and the others have copies, or some of them.
    pub(in crate::nodes) fn policies(&self, random: &mut Random) -> proto::CommitRequest {
        let all = &REGIONS[..self.regions];
        of(all.iter().map(|owner| policy(owner, owner, &self.others(owner, random))).collect::<Vec<_>>())
    }

    fn others(&self, owner: &str, random: &mut Random) -> Vec<&'static str> {
        let others = REGIONS[..self.regions].iter().filter(|region| **region != owner);
        others.filter(|_| random.chance(80)).copied().collect()
    }

    /// A random commit of a user at a node, most often of names that its region owns.
    pub(in crate::nodes) fn request(&self, random: &mut Random, node: usize) -> proto::CommitRequest {
        let has = &self.nodes[node];
        let prefixes = || self.prefixes();
        let is_own = |prefix: &&str| {
            let owner = has.policies.policy_of(&format!("{prefix}/"));
            owner.is_some_and(|policy| policy.owner() == has.region)
        };
        let own: Vec<_> = prefixes().filter(is_own).collect();
        let all: Vec<_> = prefixes().collect();
        let of_own = if own.is_empty() { &all } else { &own };
        let prefix = if random.chance(75) { *random.pick(of_own) } else { *random.pick(&all) };
        let cluster = format!("{prefix}/{}", random.pick(&CLUSTERS));
        let of_routes = format!("{prefix}/{}", random.pick(&ROUTES));
        let change = match random.below(20) {
            0..6 => eds_cluster(&cluster, ["e", "f"][random.below(2) as usize]),
            6..8 => delete_at(cluster_key(&cluster)),
            8..10 => drain_at(cluster_key(&cluster)),
            10..17 => {
                let count = random.below(3);
                let there = has.clusters();
                let any = |random: &mut Random| format!("{}/{}", random.pick(&all), random.pick(&CLUSTERS));
                let named: Vec<_> = (0..count)
                    .map(|_| match !there.is_empty() && random.chance(80) {
                        true => random.pick(&there).clone(),
                        false => any(random),
                    })
                    .collect();
                routes(&of_routes, &named.iter().map(String::as_str).collect::<Vec<_>>())
            }
            17 | 18 => delete_at(routes_key(&of_routes)),
            _ => self.policy_change(random, has, prefix),
        };
        of([change])
    }

    /// Regions get copies or lose them, or the names are handed over.
    fn policy_change(&self, random: &mut Random, has: &Has, prefix: &str) -> proto::Change {
        let Some(present) = has.policies.policy_of(&format!("{prefix}/")) else {
            return delete_at(routes_key(&format!("{prefix}/r")));
        };
        let owner = if random.chance(50) { present.owner() } else { *random.pick(&REGIONS[..self.regions]) };
        let mut copies: Vec<&str> = self.others(owner, random);
        // Without the former owner, the policy is refused.
        if owner != present.owner() && !copies.contains(&present.owner()) && random.chance(90) {
            copies.push(present.owner());
        }
        let is_its_own = present.prefix().len() == prefix.len() + 1;
        if is_its_own && disks::has("deleted") && random.chance(if prefix == NESTED { 30 } else { 5 }) {
            return delete_at(envoy::key_of(POLICY_TYPE, &format!("{prefix}/")));
        }
        let disabled = if random.chance(20) && disks::has("disabled") {
            vec![self.disabled(random)]
        } else {
            Vec::new()
        };
        policy_with(prefix, owner, &copies, disabled)
    }

    /// What a policy excludes (SG25).
    fn disabled(&self, random: &mut Random) -> proto::DisabledSync {
        let types = [cluster_key("x").type_url, routes_key("r").type_url, String::new()];
        let mut region = || {
            let region = *random.pick(&REGIONS[..self.regions]);
            if random.chance(50) { region.to_owned() } else { String::new() }
        };
        let (source_region, target_region) = (region(), region());
        proto::DisabledSync { type_url: random.pick(&types).clone(), source_region, target_region }
    }
}

fn policy(prefix: &str, owner: &str, copies: &[&str]) -> proto::Change {
    policy_with(prefix, owner, copies, Vec::new())
}

fn policy_with(
    prefix: &str,
    owner: &str,
    copies: &[&str],
    disabled: Vec<proto::DisabledSync>,
) -> proto::Change {
    let regions = copies.iter().map(ToString::to_string).collect();
    let policy = proto::RegionPolicy { owner_region: owner.into(), regions, disabled };
    put_at(envoy::key_of(POLICY_TYPE, &format!("{prefix}/")), policy.encode_to_vec())
}
