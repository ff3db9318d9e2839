//! Plans: what is migrated to what.

use bytes::Bytes;
use xds_proto::xds::store::v1 as proto;

use super::Form;
use super::converter::{ConvertError, Converter, key_of, key_up};
use super::names::{NameSet, NameTemplate};
use super::variant::{self, SchemaVariant};
use crate::content;
use crate::key::{RecordKey, is_configuration};
use crate::schema::SchemaVersion;

/// What a program says about a plan (SV9).
#[derive(Debug, Clone)]
pub struct PlanSpec {
    /// From 1 to the number of plans.
    pub number: u32,
    /// For people.
    pub name: String,
    /// The type of the old form.
    pub from_type: String,
    /// Names of the old form, or beginnings with `*` behind them. Empty: all names.
    pub from_names: Vec<String>,
    /// The type of the new form.
    pub to_type: String,
    /// The name of the new form, with `{name}` in place of the old name. With the same type and name, the
    /// key of the new form has the constraint `xds.schema=MAJOR` besides (SV31).
    pub to_name: String,
    /// The version of the new form: a later major than that of the old form.
    pub to_version: SchemaVersion,
    /// From the old form to the new one.
    pub up: Converter,
    /// From the new form to the old one. If it is missing, the plan goes forward at a startup only (SV32).
    pub down: Converter,
    /// SV24: passes do not copy records. Each is converted by its next put or touch, so the plan is for
    /// records that their writers renew all the time. F4 hides those that nobody renewed before.
    pub heartbeat: bool,
    /// SV30: in F4 a job puts the new names into the fields of other records that have the old ones. Only a
    /// plan that keeps the type and changes the name can have it.
    pub rewrite_references: bool,
}

/// A migration of records from an old form to a new one.
#[derive(Debug, Clone)]
pub struct Plan {
    spec: PlanSpec,
    names: Vec<NameSet>,
    template: NameTemplate,
}

/// Why plans are wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Plans are numbered from 1, without a hole.
    #[error("plan {name}: its number is {found}, and not {expected}")]
    Number {
        /// The plan.
        name: String,
        /// Its number.
        found: u32,
        /// The number of its place.
        expected: u32,
    },
    /// A field has a text that cannot be right.
    #[error("plan {name}: {field} is wrong: {text:?}")]
    Field {
        /// The plan.
        name: String,
        /// The field of [`PlanSpec`].
        field: &'static str,
        /// Its text.
        text: String,
    },
    /// The new version is no later major.
    #[error(
        "plan {name}: the version {to} of the new form is no later major than {from}, that of the old one"
    )]
    Version {
        /// The plan.
        name: String,
        /// The version of the old form.
        from: SchemaVersion,
        /// The version of the new form.
        to: SchemaVersion,
    },
    /// A record could belong to two forms.
    #[error("plan {name}: a name may belong to two forms, of this plan or of plan {other}")]
    Overlap {
        /// The plan.
        name: String,
        /// The other plan.
        other: String,
    },
}

impl Plan {
    /// A plan.
    ///
    /// # Errors
    /// See [`PlanError`].
    pub fn new(spec: PlanSpec) -> Result<Self, PlanError> {
        let wrong =
            |field, text: &str| PlanError::Field { name: spec.name.clone(), field, text: text.into() };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if spec.name.is_empty() || spec.name.len() > NAME_LIMIT_BYTES || !spec.name.bytes().all(is_name) {
            return Err(wrong("name", &spec.name));
        }
        for (field, text) in [("from_type", &spec.from_type), ("to_type", &spec.to_type)] {
            // A key with this type and a name that is always right.
            let key = proto::Key { type_url: text.clone(), name: "name".to_owned(), when: String::new() };
            if is_configuration(text) || RecordKey::parse(&key).is_err() {
                return Err(wrong(field, text));
            }
        }
        let patterns: &[String] = &spec.from_names;
        let mut names = Vec::with_capacity(patterns.len());
        for pattern in patterns {
            names.push(NameSet::parse(pattern).ok_or_else(|| wrong("from_names", pattern))?);
        }
        if names.is_empty() {
            names.push(NameSet::Between(String::new(), String::new()));
        }
        let template = NameTemplate::parse(&spec.to_name).ok_or_else(|| wrong("to_name", &spec.to_name))?;
        if matches!(spec.up, Converter::Missing) {
            return Err(wrong("up", ""));
        }
        if spec.rewrite_references && (spec.from_type != spec.to_type || template.is_identity()) {
            return Err(wrong("rewrite_references", "true"));
        }
        let plan = Self { names, template, spec };
        if !plan.keeps_name() && plan.overlaps(Form::Old, &plan, Form::New) {
            let name = plan.spec.name;
            return Err(PlanError::Overlap { other: name.clone(), name });
        }
        Ok(plan)
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.spec.number
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Differs between plans that name other records: with two of them, the servers of one store would
    /// write two new forms. A later minor version of the new form is no other plan.
    pub(crate) fn digest(&self) -> Bytes {
        let spec = &self.spec;
        let mut hasher = blake3::Hasher::new();
        let texts = [&spec.name, &spec.from_type, &spec.to_type, &spec.to_name];
        for text in texts.into_iter().chain(&spec.from_names) {
            hasher.update(text.as_bytes()).update(&[0]);
        }
        hasher.update(&spec.to_version.major().to_be_bytes());
        Bytes::copy_from_slice(hasher.finalize().as_bytes())
    }

    pub(crate) fn type_url(&self, form: Form) -> &str {
        match form {
            Form::Old => &self.spec.from_type,
            Form::New => &self.spec.to_type,
        }
    }

    /// The type and the names of a form, for people.
    #[must_use]
    pub fn shown(&self, form: Form) -> String {
        let spec = &self.spec;
        match form {
            Form::Old if spec.from_names.is_empty() => spec.from_type.clone(),
            Form::Old => format!("{} {}", spec.from_type, spec.from_names.join(", ")),
            Form::New => format!("{} {} {}", spec.to_type, spec.to_name, spec.to_version),
        }
    }

    /// Whether only writers convert its records (SV24).
    #[must_use]
    pub fn is_heartbeat(&self) -> bool {
        self.spec.heartbeat
    }

    /// Whether passes in F4 put new names into other records (SV30).
    #[must_use]
    pub fn rewrites_references(&self) -> bool {
        self.spec.rewrite_references
    }

    /// SV32: nobody can read the old form of what has the new one only.
    pub(crate) fn is_one_way(&self) -> bool {
        matches!(self.spec.down, Converter::Missing)
    }

    /// Whether a pass prepares the step from F2 to F1 after F4 (SV27).
    pub(crate) fn has_way_back(&self) -> bool {
        !self.is_heartbeat() || self.rewrites_references()
    }

    /// What a server has to know of the new form (SG38).
    #[must_use]
    pub fn needs(&self) -> proto::Knows {
        let type_url = self.type_url(Form::New).to_owned();
        proto::Knows { type_url, version: self.new_version().to_string() }
    }

    pub(crate) fn new_version(&self) -> SchemaVersion {
        self.spec.to_version
    }

    /// SV31: the forms are variants of the same name.
    pub(crate) fn keeps_name(&self) -> bool {
        self.spec.from_type == self.spec.to_type && self.template.is_identity()
    }

    /// SV31: the key under which clients get the old form beside the new one.
    pub(crate) fn key_beside(&self, old: &RecordKey) -> Option<RecordKey> {
        match self.keeps_name() {
            true => SchemaVariant::old_form(self.spec.to_version).add(old),
            false => Some(old.clone()),
        }
    }

    /// The old key that has this one beside the new form; `None` if there is none but itself.
    pub(crate) fn key_alone(&self, beside: &RecordKey) -> Option<RecordKey> {
        let old = SchemaVariant::old_form(self.spec.to_version).remove(beside);
        old.filter(|old| self.keeps_name() && self.form_of(old) == Some(Form::Old))
    }

    /// The form of the plan that a key belongs to.
    pub(crate) fn form_of(&self, key: &RecordKey) -> Option<Form> {
        let (type_url, name) = (key.type_url(), key.name());
        let has = |form| self.has_name(form, type_url.as_str(), name.as_str());
        if self.keeps_name() {
            let new_form = SchemaVariant::new_form(self.spec.to_version);
            let form = match variant::may_name_parameter(key) {
                // A key of its own may name the parameter.
                true if new_form.remove(key).is_some() => Some(Form::New),
                true => new_form.add(key).map(|_| Form::Old),
                false => Some(Form::Old),
            };
            return form.filter(|_| has(Form::Old));
        }
        [Form::New, Form::Old].into_iter().find(|form| has(*form))
    }

    /// SV26: whether whoever has a resource of this type and name asks for this form of the plan: by its name, or by
    /// a wildcard of a type that only this form has. By one wildcard of both forms a client gets the other one, too.
    /// Where both forms have one name (SV31), a client chooses by a parameter, so its name asks for neither.
    #[must_use]
    pub fn is_asked(&self, form: Form, (type_url, name): (&str, &str), by_name: bool) -> bool {
        let is_chosen = by_name || self.spec.from_type != self.spec.to_type;
        is_chosen && !self.keeps_name() && self.has_name(form, type_url, name)
    }

    pub(crate) fn has_name(&self, form: Form, type_url: &str, name: &str) -> bool {
        let is_old = |name: &str| self.names.iter().any(|names| names.contains(name));
        match form {
            Form::Old => type_url == self.spec.from_type && is_old(name),
            Form::New => type_url == self.spec.to_type && self.template.down(name).is_some_and(is_old),
        }
    }

    /// The key of the other form of a key of this form.
    ///
    /// # Errors
    /// [`ConvertError::Name`].
    pub(crate) fn other_key(&self, key: &RecordKey, form: Form) -> Result<RecordKey, ConvertError> {
        if self.keeps_name() {
            let variant = SchemaVariant::new_form(self.spec.to_version);
            let other = if form == Form::Old { variant.add(key) } else { variant.remove(key) };
            return other.ok_or_else(|| ConvertError::Constraints { key: key.clone() });
        }
        match form {
            Form::Old => key_up(key, &self.spec.to_type, &self.template),
            Form::New => {
                let name = key.name();
                let name = self.template.down(name.as_str()).unwrap_or_default().to_owned();
                key_of(key, &self.spec.from_type, name)
            }
        }
    }

    /// The content of this form, from that of the other one.
    ///
    /// # Errors
    /// See [`ConvertError`].
    pub(crate) fn convert(
        &self,
        content: &proto::Content,
        (key, form): (&RecordKey, Form),
        version: SchemaVersion,
    ) -> Result<proto::Content, ConvertError> {
        let converter = match form {
            Form::Old => &self.spec.down,
            Form::New => &self.spec.up,
        };
        let converted = converter.content(content, key, version)?;
        // D24: an alias belongs to one resource of its type.
        let is_renamed = self.spec.from_type == self.spec.to_type && !self.keeps_name();
        match content::resource(&key.id(), &converted) {
            Ok(resource) if is_renamed && !resource.aliases().is_empty() => {
                let reason = "it has aliases, which would belong to two resources of its type".to_owned();
                Err(ConvertError::Payload { key: key.clone(), reason })
            }
            Ok(_) => Ok(converted),
            Err(error) => Err(ConvertError::Payload { key: key.clone(), reason: error.to_string() }),
        }
    }

    /// Checks all plans of a program, in the order of their numbers.
    pub(crate) fn check_all(
        plans: &[Self],
        version: impl Fn(&str) -> SchemaVersion,
    ) -> Result<(), PlanError> {
        for (plan, expected) in plans.iter().zip(1..) {
            let Self { spec: PlanSpec { number, name, to_version: to, .. }, .. } = plan;
            if *number != expected {
                return Err(PlanError::Number { name: name.clone(), found: *number, expected });
            }
            let from = version(&plan.spec.from_type);
            if to.major() <= from.major() {
                return Err(PlanError::Version { name: name.clone(), from, to: *to });
            }
            for earlier in plans.iter().take_while(|earlier| earlier.number() < *number) {
                let pairs = [
                    (Form::Old, Form::Old),
                    (Form::New, Form::New),
                    (Form::New, Form::Old),
                    (Form::Old, Form::New),
                ];
                let is_same = pairs.iter().any(|(one, other)| plan.overlaps(*one, earlier, *other));
                if is_same || earlier.name() == name {
                    return Err(PlanError::Overlap { name: name.clone(), other: earlier.name().to_owned() });
                }
            }
        }
        Ok(())
    }

    fn overlaps(&self, form: Form, other: &Self, other_form: Form) -> bool {
        let others = other.all_names(other_form);
        self.type_url(form) == other.type_url(other_form)
            && self.all_names(form).iter().any(|one| others.iter().any(|other| one.may_overlap(other)))
    }

    fn all_names(&self, form: Form) -> Vec<NameSet> {
        match form {
            Form::Old => self.names.clone(),
            Form::New => self.names.iter().map(|names| self.template.up_all(names)).collect(),
        }
    }
}

/// The longest name of a plan.
const NAME_LIMIT_BYTES: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> PlanSpec {
        PlanSpec {
            number: 1,
            name: "route-v2".into(),
            from_type: "t/acme.v1.Route".into(),
            from_names: Vec::new(),
            to_type: "t/acme.v2.Route".into(),
            to_name: "{name}".into(),
            to_version: "2.0".parse().unwrap(),
            up: Converter::Identity,
            down: Converter::Identity,
            heartbeat: false,
            rewrite_references: false,
        }
    }

    fn field(spec: PlanSpec) -> &'static str {
        match Plan::new(spec) {
            Err(PlanError::Field { field, .. }) => field,
            Err(PlanError::Overlap { .. }) => "overlap",
            other => panic!("{other:?}"),
        }
    }

    fn all(plans: &[PlanSpec]) -> Result<(), PlanError> {
        let plans: Vec<_> = plans.iter().map(|spec| Plan::new(spec.clone()).unwrap()).collect();
        Plan::check_all(&plans, |_| SchemaVersion::FIRST)
    }

    #[test]
    fn sv9_a_plan_that_cannot_be_right_is_refused_with_its_field() {
        assert_eq!(field(PlanSpec { name: "a b".into(), ..spec() }), "name");
        assert_eq!(field(PlanSpec { from_type: String::new(), ..spec() }), "from_type");
        assert_eq!(field(PlanSpec { to_type: "t/xds.store.v1.Authority".into(), ..spec() }), "to_type");
        assert_eq!(field(PlanSpec { from_names: vec!["a*b".into()], ..spec() }), "from_names");
        assert_eq!(field(PlanSpec { to_name: "new".into(), ..spec() }), "to_name");
        assert_eq!(field(PlanSpec { up: Converter::Missing, ..spec() }), "up");
        // The same type, and names that are in both forms.
        let renamed = |names: &[&str]| PlanSpec {
            from_names: names.iter().map(|name| (*name).to_owned()).collect(),
            to_type: spec().from_type,
            to_name: "new-{name}".into(),
            ..spec()
        };
        assert_eq!(field(renamed(&[])), "overlap");
        assert_eq!(field(renamed(&["new-*"])), "overlap");
        Plan::new(renamed(&["shop-*"])).unwrap();
        assert_eq!(field(PlanSpec { rewrite_references: true, ..spec() }), "rewrite_references");
    }

    #[test]
    fn sv9_plans_have_numbers_without_a_hole_and_forms_of_their_own() {
        let second = PlanSpec {
            number: 2,
            name: "other".into(),
            from_type: "t/acme.v1.Other".into(),
            to_type: "t/acme.v2.Other".into(),
            ..spec()
        };
        assert_eq!(all(&[spec(), second.clone()]), Ok(()));
        assert!(matches!(all(std::slice::from_ref(&second)), Err(PlanError::Number { expected: 1, .. })));
        let chained = PlanSpec { from_type: spec().to_type, ..second.clone() };
        assert!(matches!(all(&[spec(), chained]), Err(PlanError::Overlap { .. })));
        let joined = PlanSpec { to_type: spec().to_type, ..second };
        assert!(matches!(all(&[spec(), joined]), Err(PlanError::Overlap { .. })));
        let low = PlanSpec { to_version: "1.5".parse().unwrap(), ..spec() };
        assert!(matches!(all(&[low]), Err(PlanError::Version { .. })));
    }

    #[test]
    fn sv26_a_wildcard_asks_for_the_old_form_if_the_plan_changes_the_type() {
        let asks = |plan: &Plan, type_url, name, by_name| plan.is_asked(Form::Old, (type_url, name), by_name);
        let retyped = Plan::new(spec()).unwrap();
        assert!([true, false].map(|by_name| asks(&retyped, "t/acme.v1.Route", "a", by_name)) == [true; 2]);
        assert!(!asks(&retyped, "t/acme.v2.Route", "a", true));
        let renamed = PlanSpec {
            from_names: vec!["shop-*".into()],
            to_type: spec().from_type,
            to_name: "new-{name}".into(),
            ..spec()
        };
        let renamed = Plan::new(renamed).unwrap();
        let asked = [true, false].map(|by_name| asks(&renamed, "t/acme.v1.Route", "shop-a", by_name));
        assert_eq!(asked, [true, false], "by the wildcard it gets the new one, too");
    }

    #[test]
    fn sv9_a_key_of_one_form_has_a_key_of_the_other() {
        let plan = Plan::new(PlanSpec { to_name: "v2/{name}".into(), ..spec() }).unwrap();
        let key = |type_url: &str, name: &str| {
            let key = proto::Key { type_url: type_url.into(), name: name.into(), when: "env=prod".into() };
            RecordKey::parse(&key).unwrap()
        };
        let (old, new) = (key("t/acme.v1.Route", "a"), key("t/acme.v2.Route", "v2/a"));
        assert_eq!((plan.form_of(&old), plan.form_of(&new)), (Some(Form::Old), Some(Form::New)));
        assert_eq!(plan.other_key(&old, Form::Old), Ok(new.clone()));
        assert_eq!(plan.other_key(&new, Form::New), Ok(old));
        assert_eq!(plan.form_of(&key("t/acme.v2.Route", "a")), None, "a record of its own");
        let long = key("t/acme.v1.Route", &"a".repeat(4 << 10));
        assert!(matches!(plan.other_key(&long, Form::Old), Err(ConvertError::Name { .. })));
    }
}
