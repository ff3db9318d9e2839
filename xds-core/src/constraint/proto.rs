//! Converts the decoded message to a formula, and back.

use std::sync::Arc;

use xds_proto::envoy::service::discovery::v3::DynamicParameterConstraints;
use xds_proto::envoy::service::discovery::v3::dynamic_parameter_constraints::single_constraint::{
    ConstraintType, Exists,
};
use xds_proto::envoy::service::discovery::v3::dynamic_parameter_constraints::{
    ConstraintList, SingleConstraint, Type,
};

use super::Formula;
use super::error::{ConstraintError, PathStep, Trail};
use super::limits::{self, Limits};

/// The formula of a message. The top message must have a type, like every other (T8).
pub(super) fn formula(message: &DynamicParameterConstraints) -> Result<Formula, ConstraintError> {
    read(message, &Trail::TOP, &mut Limits::default())
}

fn read(
    message: &DynamicParameterConstraints,
    trail: &Trail<'_>,
    limits: &mut Limits,
) -> Result<Formula, ConstraintError> {
    match &message.r#type {
        Some(Type::Constraint(single)) => condition(single, trail, limits),
        Some(Type::AndConstraints(list)) => operands(list, PathStep::And, trail, limits).map(Formula::All),
        Some(Type::OrConstraints(list)) => operands(list, PathStep::Or, trail, limits).map(Formula::Any),
        Some(Type::NotConstraints(negated)) => {
            limits::operator(trail)?;
            let part = read(negated, &trail.down(PathStep::Not), limits)?;
            Ok(Formula::Not(Box::new(part)))
        }
        None => Err(ConstraintError::Untyped { path: trail.path() }),
    }
}

fn condition(
    single: &SingleConstraint,
    trail: &Trail<'_>,
    limits: &mut Limits,
) -> Result<Formula, ConstraintError> {
    let key: Arc<str> = single.key.as_str().into();
    limits.condition(&key, trail)?;
    match &single.constraint_type {
        Some(ConstraintType::Value(value)) => Ok(Formula::Equals { key, value: value.as_str().into() }),
        Some(ConstraintType::Exists(Exists {})) => Ok(Formula::Exists { key }),
        None => Err(ConstraintError::Untested { path: trail.path(), key }),
    }
}

fn operands(
    list: &ConstraintList,
    step: fn(usize) -> PathStep,
    trail: &Trail<'_>,
    limits: &mut Limits,
) -> Result<Vec<Formula>, ConstraintError> {
    limits.list(list.constraints.len(), trail)?;
    let messages = list.constraints.iter().enumerate();
    messages.map(|(index, message)| read(message, &trail.down(step(index)), limits)).collect()
}

/// The same tree as a message. Nothing is folded or reordered.
impl From<&Formula> for DynamicParameterConstraints {
    fn from(formula: &Formula) -> Self {
        let r#type = match formula {
            Formula::Equals { key, value } => single(key, ConstraintType::Value(value.to_string())),
            Formula::Exists { key } => single(key, ConstraintType::Exists(Exists {})),
            Formula::All(parts) => Type::AndConstraints(list(parts)),
            Formula::Any(parts) => Type::OrConstraints(list(parts)),
            Formula::Not(part) => Type::NotConstraints(Box::new(Self::from(&**part))),
        };
        Self { r#type: Some(r#type) }
    }
}

fn single(key: &Arc<str>, constraint_type: ConstraintType) -> Type {
    Type::Constraint(SingleConstraint { key: key.to_string(), constraint_type: Some(constraint_type) })
}

fn list(parts: &[Formula]) -> ConstraintList {
    ConstraintList { constraints: parts.iter().map(Into::into).collect() }
}
