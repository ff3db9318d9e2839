//! Constraints as a value of a document: text, or one of the two structured forms (W11).
//!
//! Text is the [`when:` syntax](xds_core::when). A map with `constraints` is the draft form of TP2
//! (W6); any other map is the proto3 JSON of
//! `envoy.service.discovery.v3.DynamicParameterConstraints`. That message has no field
//! `constraints`, and the draft form has none of its fields, so the forms cannot be confused. A
//! mixture has an unknown field, which is reported at its place.

use prost_reflect::prost::Message;
use xds_core::draft::{Draft, DraftCondition, DraftError, DraftList, DraftTest, MatchType};
use xds_core::when::WhenError;
use xds_core::{ConstraintError, Constraints};

use super::convert::{self, Fault};
use super::descriptors::Descriptors;
use super::error::Problem;
use super::tree::{Node, Tree};

/// Reads constraints from a value. The fields of the faults are paths below the value.
///
/// # Errors
/// All errors in the form. If the form is right, the first rule for constraints that is broken.
pub(super) fn constraints(node: &Node, descriptors: &Descriptors) -> Result<Constraints, Vec<Fault>> {
    match &node.tree {
        Tree::Text(text) => text.parse().map_err(|error: WhenError| vec![fault(node, "", error.into())]),
        Tree::Map(_) if node.get(LISTS).is_some() => draft_form(node),
        Tree::Map(_) => final_form(node, descriptors),
        Tree::Null | Tree::Bool(_) | Tree::Int(_) | Tree::Uint(_) | Tree::Float(_) | Tree::List(_) => {
            Err(vec![fault(node, "", wrong(node, "a string such as \"env=prod,!version\", or a map"))])
        }
    }
}

fn final_form(node: &Node, descriptors: &Descriptors) -> Result<Constraints, Vec<Fault>> {
    let message = convert::message(&descriptors.builtin(CONSTRAINTS), node, descriptors)?;
    Constraints::from_wire(&message.encode_to_vec()).map_err(|error| vec![invalid(node, error)])
}

fn draft_form(node: &Node) -> Result<Constraints, Vec<Fault>> {
    let mut reader = DraftReader { faults: Vec::new() };
    let draft = reader.draft(node);
    if !reader.faults.is_empty() {
        return Err(reader.faults);
    }
    Constraints::from_draft(&draft).map_err(|error| {
        vec![match error {
            DraftError::UnspecifiedMatchType { list, conditions } => {
                let at = node.get(LISTS).and_then(|lists| item(lists, list)).unwrap_or(node);
                let reason = "`match_type` has to say how they are joined".into();
                let problem = Problem::InvalidValue { found: format!("{conditions} conditions"), reason };
                fault(at, &format!("{LISTS}[{list}]"), problem)
            }
            DraftError::Invalid(error) => invalid(node, error),
            error => fault(node, "", Problem::Syntax { message: error.to_string() }),
        }]
    })
}

/// Reads a draft and collects all errors. After an error it goes on with any value, because the
/// result is used only without errors.
struct DraftReader {
    faults: Vec<Fault>,
}

impl DraftReader {
    fn draft(&mut self, node: &Node) -> Draft {
        let fields = self.fields(node, "", &[(LISTS, LISTS)]);
        let lists = fields.into_iter().flat_map(|(_, value)| self.items(value, LISTS, Self::list));
        Draft { lists: lists.collect() }
    }

    fn list(&mut self, node: &Node, path: &str) -> DraftList {
        let mut list = DraftList::default();
        for (name, value) in self.fields(node, path, &[(LISTS, LISTS), ("match_type", "matchType")]) {
            let path = format!("{path}.{name}");
            match name {
                LISTS => list.conditions = self.items(value, &path, Self::condition),
                _ => list.match_type = self.match_type(value, &path),
            }
        }
        list
    }

    fn match_type(&mut self, node: &Node, path: &str) -> MatchType {
        let Some(text) = node.text() else {
            self.faults.push(fault(node, path, wrong(node, "AND or OR")));
            return MatchType::Unspecified;
        };
        match text {
            "AND" => MatchType::And,
            "OR" => MatchType::Or,
            "UNSPECIFIED" | "MATCH_TYPE_UNSPECIFIED" => MatchType::Unspecified,
            _ => {
                let nearest = ["AND", "OR"].into_iter().find(|name| name.eq_ignore_ascii_case(text));
                let (value, nearest) = (text.to_owned(), nearest.map(String::from));
                let enumeration = "match_type of the draft form".into();
                self.faults.push(fault(
                    node,
                    path,
                    Problem::UnknownEnumValue { value, enumeration, nearest },
                ));
                MatchType::Unspecified
            }
        }
    }

    fn condition(&mut self, node: &Node, path: &str) -> DraftCondition {
        let names = [("key", "key"), ("value", "value"), ("exists", "exists"), ("invert", "invert")];
        let fields = self.fields(node, path, &names);
        let is_clean = self.faults.is_empty();
        let mut condition = DraftCondition { key: "".into(), test: DraftTest::Exists, invert: false };
        for (name, value) in &fields {
            let expected = match (*name, &value.tree) {
                ("key", Tree::Text(text)) => {
                    condition.key = text.as_str().into();
                    continue;
                }
                ("value", Tree::Text(text)) => {
                    condition.test = DraftTest::Value(text.as_str().into());
                    continue;
                }
                ("invert", Tree::Bool(invert)) => {
                    condition.invert = *invert;
                    continue;
                }
                ("exists", Tree::Map(entries)) if entries.is_empty() => continue,
                ("exists", _) => "{}",
                ("invert", _) => "true or false",
                _ => "a string (quote it if it looks like a number)",
            };
            self.faults.push(fault(value, &format!("{path}.{name}"), wrong(value, expected)));
        }
        let mut tests = fields.iter().filter(|(name, _)| matches!(*name, "value" | "exists"));
        match (tests.next(), tests.next()) {
            (Some((first, _)), Some((second, value))) => {
                let problem =
                    Problem::OneofConflict { oneof: "constraint_type".into(), first: (*first).into() };
                self.faults.push(fault(value, &format!("{path}.{second}"), problem));
            }
            // A misspelt field name is one error, not two.
            (None, _) if is_clean => self.lacking(node, path, "neither `value` nor `exists`"),
            _ if is_clean && !fields.iter().any(|(name, _)| *name == "key") => {
                self.lacking(node, path, "no `key`");
            }
            _ => {}
        }
        condition
    }

    fn lacking(&mut self, node: &Node, path: &str, reason: &str) {
        let problem = Problem::InvalidValue { found: "a condition".into(), reason: reason.into() };
        self.faults.push(fault(node, path, problem));
    }

    /// The fields of a map by their `snake_case` names. As in proto3 JSON, a null field counts as
    /// not given.
    fn fields<'n>(
        &mut self,
        node: &'n Node,
        path: &str,
        known: &[(&'static str, &str)],
    ) -> Vec<(&'static str, &'n Node)> {
        let Some(entries) = node.entries() else {
            self.faults.push(fault(node, path, wrong(node, "a map")));
            return Vec::new();
        };
        let mut fields: Vec<(&'static str, &Node)> = Vec::new();
        for entry in entries {
            let path = if path.is_empty() { entry.key.clone() } else { format!("{path}.{}", entry.key) };
            let mut mistake =
                |problem| self.faults.push(Fault { at: entry.at, field: path.as_str().into(), problem });
            match known.iter().find(|(snake, camel)| [*snake, *camel].contains(&&*entry.key)) {
                None => {
                    let names: Vec<_> = known.iter().map(|(name, _)| format!("`{name}`")).collect();
                    let message =
                        format!("this part of the draft form of constraints, which has {}", names.join(", "));
                    mistake(Problem::UnknownField { field: entry.key.clone(), message, nearest: None });
                }
                Some((name, _)) if fields.iter().any(|(other, _)| other == name) => {
                    mistake(Problem::GivenTwice);
                }
                Some(_) if matches!(entry.value.tree, Tree::Null) => {}
                Some((name, _)) => fields.push((*name, &entry.value)),
            }
        }
        fields
    }

    fn items<T>(&mut self, node: &Node, path: &str, read: fn(&mut Self, &Node, &str) -> T) -> Vec<T> {
        let Tree::List(items) = &node.tree else {
            self.faults.push(fault(node, path, wrong(node, "a list")));
            return Vec::new();
        };
        let items = items.iter().enumerate();
        items.map(|(index, item)| read(self, item, &format!("{path}[{index}]"))).collect()
    }
}

fn fault(node: &Node, field: &str, problem: Problem) -> Fault {
    Fault { at: node.at, field: field.into(), problem }
}

fn wrong(node: &Node, expected: &'static str) -> Problem {
    Problem::WrongValue { expected, found: node.describe() }
}

/// Adds the place in the file to an error that names its place in the constraints.
fn invalid(node: &Node, error: ConstraintError) -> Fault {
    let path = error.path().to_string();
    let mut at = node;
    for step in path.split('.') {
        let Some(below) = below(at, step) else { break };
        at = below;
    }
    Fault { at: at.at, field: "".into(), problem: error.into() }
}

/// The value one step down a path of constraints, in either form.
fn below<'n>(node: &'n Node, step: &str) -> Option<&'n Node> {
    let named = |snake: &str, camel: &str| node.get(snake).or_else(|| node.get(camel));
    match step.split_once('[') {
        Some((operator, index)) => {
            let list = match operator {
                "and" => named("and_constraints", "andConstraints"),
                _ => named("or_constraints", "orConstraints"),
            };
            item(list.unwrap_or(node).get(LISTS)?, index.trim_end_matches(']').parse().ok()?)
        }
        // In the draft form, `invert` is not a level of its own.
        None if step == "not" => named("not_constraints", "notConstraints").or(Some(node)),
        None => node.get("constraint").unwrap_or(node).get(step),
    }
}

fn item(node: &Node, index: usize) -> Option<&Node> {
    if let Tree::List(items) = &node.tree { items.get(index) } else { None }
}

const CONSTRAINTS: &str = "envoy.service.discovery.v3.DynamicParameterConstraints";

/// The field of a draft and of each of its lists. The final form has this field only below its
/// operators.
const LISTS: &str = "constraints";

#[cfg(test)]
mod tests {
    use super::super::error::Position;
    use super::super::tree;
    use super::*;

    /// Reads a value from YAML.
    fn read(text: &str) -> Result<Constraints, Vec<Fault>> {
        let mut documents = tree::yaml(text);
        constraints(&documents.remove(0).unwrap(), &Descriptors::envoy())
    }

    #[track_caller]
    fn reads(text: &str, expected: &str) {
        assert_eq!(read(text).unwrap(), expected.parse().unwrap(), "{text}");
    }

    fn faults(text: &str) -> Vec<String> {
        let shown = |fault: &Fault| {
            let Position { line, column } = fault.at;
            let field = if fault.field.is_empty() { String::new() } else { format!("{}: ", fault.field) };
            format!("{line}:{column}: {field}{}", fault.problem)
        };
        read(text).unwrap_err().iter().map(shown).collect()
    }

    #[test]
    fn text_is_the_when_syntax() {
        reads("'env in (prod,canary),!beta'", "env in (prod,canary),!beta");
        assert_eq!(
            faults("env=prod,"),
            ["1:1: column 10: expected a condition such as `key=value`, found the end"]
        );
    }

    #[test]
    fn v1_a_draft_is_mapped_without_loss() {
        let text = "
constraints:
- match_type: AND
  constraints:
  - {key: env, value: prod}
  - {key: version, exists: {}, invert: true}
";
        let constraints = read(text).unwrap();
        let draft = Draft::of_shape(constraints.formula()).unwrap();
        assert_eq!((draft.lists.len(), draft.lists[0].match_type), (1, MatchType::And));
        assert_eq!(constraints, "env=prod,!version".parse().unwrap());
        assert_eq!(constraints.formula().to_string(), "env=prod,!version");
    }

    #[test]
    fn v2_a_draft_of_an_or_and_an_and() {
        let draft = r#"{"constraints": [
            {"constraints": [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}], "matchType": "OR"},
            {"constraints": [{"key": "c", "exists": {}}], "match_type": "MATCH_TYPE_UNSPECIFIED"}]}"#;
        reads(draft, "(a=1||b=2),c");
        reads("constraints: []", "true");
        reads("constraints: [{match_type: OR}]", "false");
    }

    #[test]
    fn v3_the_final_form_is_read_as_it_is_nested() {
        let text = "
or_constraints:
  constraints:
  - and_constraints: {constraints: [{constraint: {key: a, value: '1'}}, {constraint: {key: b, value: '1'}}]}
  - and_constraints: {constraints: [{constraint: {key: a, value: '2'}}, {constraint: {key: b, value: '2'}}]}
";
        assert_eq!(read(text).unwrap().formula().to_string(), "a=1,b=1 || a=2,b=2");
    }

    #[test]
    fn w7_an_unspecified_match_type_needs_one_condition() {
        let text = "
constraints:
- constraints: [{key: a, exists: {}}]
- constraints:
  - {key: a, exists: {}}
  - {key: b, exists: {}}
";
        assert_eq!(
            faults(text),
            ["4:3: constraints[1]: 2 conditions: `match_type` has to say how they are joined"]
        );
        assert_eq!(
            faults("constraints: [{match_type: UNSPECIFIED}]"),
            ["1:15: constraints[0]: 0 conditions: `match_type` has to say how they are joined"]
        );
    }

    #[test]
    fn w11_both_ways_to_write_field_names_are_accepted() {
        let camel = r#"{"andConstraints": {"constraints": [{"constraint": {"key": "env", "value": ""}},
            {"notConstraints": {"constraint": {"key": "version", "exists": {}}}}, {"orConstraints": {}}]}}"#;
        let snake = camel.replace("C", "_c");
        assert!(snake.contains("not_constraints"));
        for text in [camel, &snake] {
            reads(text, r#"env="",!version,false"#);
        }
        reads("constraint: {key: k, exists: {}}", "k");
        reads("{}", "true");
    }

    #[test]
    fn mixtures_of_the_forms_are_refused_where_they_begin() {
        let draft_has = |field: &str, fields: &str| {
            format!("no field `{field}` in this part of the draft form of constraints, which has {fields}")
        };
        assert_eq!(
            faults("constraints: []\nandConstraints: {constraints: []}"),
            [format!("2:1: andConstraints: {}", draft_has("andConstraints", "`constraints`"))]
        );
        assert_eq!(
            faults("constraints: [{constraints: [{constraint: {key: a, exists: {}}}]}]"),
            [format!(
                "1:31: constraints[0].constraints[0].constraint: {}",
                draft_has("constraint", "`key`, `value`, `exists`, `invert`")
            )]
        );
        let found = faults("and_constraints: {constraints: [{constraints: [], match_type: AND}]}");
        let missing = "in envoy.service.discovery.v3.DynamicParameterConstraints";
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("1:34: and_constraints.constraints[0]"), "{found:?}");
        assert!(found.iter().all(|fault| fault.contains(missing)), "{found:?}");
    }

    #[test]
    fn all_mistakes_of_a_draft_are_found() {
        let text = "
constraints:
- match_type: and
  constraints:
  - {key: 5, value: x}
  - {key: a, value: x, exists: {}}
  - {key: a, exists: true}
  - {key: a, value: x, invert: 'yes'}
- constraints: {}
- 5
";
        assert_eq!(
            faults(text),
            [
                "3:15: constraints[0].match_type: no value \"and\" in match_type of the draft form, perhaps `AND`",
                "5:11: constraints[0].constraints[0].key: expected a string (quote it if it looks like a number), \
                 found the number 5",
                "6:32: constraints[0].constraints[1].exists: `value` is given already; `constraint_type` allows only \
                 one of its fields",
                "7:22: constraints[0].constraints[2].exists: expected {}, found the boolean true",
                "8:32: constraints[0].constraints[3].invert: expected true or false, found the string \"yes\"",
                "9:16: constraints[1].constraints: expected a list, found a map",
                "10:3: constraints[2]: expected a map, found the number 5",
            ]
        );
    }

    #[test]
    fn a_condition_of_a_draft_has_a_key_and_a_test() {
        let condition = |text: &str| faults(&format!("constraints: [{{constraints: [{text}]}}]"));
        let at = "1:30: constraints[0].constraints[0]: a condition: ";
        assert_eq!(condition("{key: a}"), [format!("{at}neither `value` nor `exists`")]);
        assert_eq!(condition("{value: a}"), [format!("{at}no `key`")]);
        reads("constraints: [{constraints: [{key: a, value: null, exists: {}, invert: null}]}]", "a");
        let twice = faults("constraints: [{constraints: [], match_type: OR, matchType: OR}]");
        assert_eq!(twice, ["1:49: constraints[0].matchType: given twice"]);
    }

    #[test]
    fn t8_rules_of_all_constraints_are_checked_with_their_place() {
        let nested = "
not_constraints:
  or_constraints:
    constraints:
    - constraint: {key: a, exists: {}}
    - constraint: {key: b}
";
        assert_eq!(faults(nested), ["6:7: not.or[1]: key `b` has neither `value` nor `exists`"]);
        let control = "
constraints:
- constraints:
  - {key: \"a\\n\", exists: {}, invert: true}
";
        assert_eq!(
            faults(control),
            ["4:11: and[0].and[0].not.key: key `a\\n` has a control character at byte 1"]
        );
    }

    #[test]
    fn other_values_are_no_constraints() {
        let expected = "1:1: expected a string such as \"env=prod,!version\", or a map, found ";
        for (text, found) in [("5", "the number 5"), ("[]", "a list"), ("true", "the boolean true")] {
            assert_eq!(faults(text), [format!("{expected}{found}")]);
        }
    }
}
