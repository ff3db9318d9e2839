//! A formula to search a set with. Its normal form is made only if a check needs it.

use std::cell::OnceCell;
use std::sync::Arc;

use super::index::{Index, Probe};
use super::normal::{Normal, TooComplex};
use crate::constraint::Formula;
use crate::parameters::Parameters;

/// Most formulas require one value for each of some keys. A search then needs only these values,
/// the `sample`; all other formulas have their normal form from the start.
pub(super) struct Query<'f> {
    formula: &'f Formula,
    sample: OnceCell<Parameters>,
    normal: OnceCell<Normal>,
}

impl<'f> Query<'f> {
    pub(super) fn of(formula: &'f Formula) -> Result<Self, TooComplex> {
        match point(formula) {
            Some(point) => Ok(Self { formula, sample: point.into(), normal: OnceCell::new() }),
            None => Ok(Self::normalised(formula, Normal::of(formula)?)),
        }
    }

    /// A query of a formula whose normal form is known.
    pub(super) fn normalised(formula: &'f Formula, normal: Normal) -> Self {
        Self { formula, sample: OnceCell::new(), normal: normal.into() }
    }

    pub(super) fn normal(&self) -> &Normal {
        self.normal.get_or_init(|| Normal::of(self.formula).expect("single values need no budget"))
    }

    pub(super) fn is_tangled(&self) -> bool {
        self.normal.get().is_some_and(|normal| normal.tangled().is_some())
    }

    /// The probes that find, in an index, all variants that may share parameters with the formula.
    pub(super) fn probes(&self, index: &Index) -> impl Iterator<Item = Probe> {
        let (point, cubes) = match self.normal.get() {
            Some(normal) => (None, normal.cubes()),
            None => (self.sample.get(), &[][..]),
        };
        let point = point.into_iter().map(|point| Probe::at(point, index));
        point.chain(cubes.iter().map(|cube| Probe::new(cube, index)))
    }

    /// Parameters that match this formula and the other one. They have only keys that one of the
    /// two names (T13).
    pub(super) fn meet(
        &self,
        other: &Formula,
        normal: impl Fn() -> Normal,
    ) -> Result<Option<Parameters>, TooComplex> {
        let sample = self.sample.get_or_init(|| self.normal().sample().expect("it has a cube"));
        // Mostly both formulas require the same values; a sample of one then matches the other.
        if other.matches(sample) { Ok(Some(sample.clone())) } else { self.normal().meet(&normal()) }
    }
}

/// The parameters that a formula requires, if it is a list of `key=value`, all of which must hold.
fn point(formula: &Formula) -> Option<Parameters> {
    let Formula::All(parts) = formula else { return None };
    let pairs = parts.iter().map(|part| match part {
        Formula::Equals { key, value } => Some((Arc::clone(key), Arc::clone(value))),
        _ => None,
    });
    let point: Parameters = pairs.collect::<Option<_>>()?;
    // A key that occurs twice may have two different values, and then nothing matches.
    (point.len() == parts.len()).then_some(point)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constraint::Constraints;

    #[test]
    fn t13_what_one_value_per_key_meets_is_what_its_normal_form_meets() {
        let formulas = [
            "env=prod",
            "env=prod,zone=a",
            "zone=a,env=prod",
            "zone=b",
            "env=prod,env=prod",
            "env=prod,zone!=a",
            "env!=prod||zone=a",
        ];
        let formulas = formulas.map(|text| text.parse::<Constraints>().unwrap().formula().clone());
        for formula in &formulas {
            for other in &formulas {
                let query = Query::of(formula).unwrap();
                let normals = [formula, other].map(|formula| Normal::of(formula).unwrap());
                let witness = query.meet(other, || normals[1].clone()).unwrap();
                assert_eq!(witness.is_some(), normals[0].meet(&normals[1]).unwrap().is_some());
                assert!(witness.is_none_or(|witness| formula.matches(&witness) && other.matches(&witness)));
            }
        }
    }

    #[test]
    fn two_values_of_one_key_are_no_point() {
        let is = |value: &str| Formula::Equals { key: "env".into(), value: value.into() };
        assert_eq!(point(&Formula::All(vec![is("a"), is("b")])), None);
        assert_eq!(point(&Formula::All(vec![is("a")])), Some(Parameters::from_iter([("env", "a")])));
    }
}
