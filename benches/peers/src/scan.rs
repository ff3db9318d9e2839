//! Reading every variant until one matches.

use std::sync::Arc;

use xds_core::{Formula, Parameters};

use crate::workload::{Term, Workload};

/// The formulas as text.
#[derive(Debug)]
pub struct TextScan(Vec<Arc<Formula>>);

/// The alternatives, with numbers for strings.
#[derive(Debug)]
pub struct NumberScan<'a>(&'a [Vec<Term>]);

impl TextScan {
    /// The formulas of the variants.
    #[must_use]
    pub fn of(workload: &Workload) -> Self {
        Self((0..workload.variants.len()).map(|variant| workload.formula(variant)).collect())
    }

    /// The variant that matches.
    #[must_use]
    pub fn find(&self, parameters: &Parameters) -> Option<u32> {
        self.0.iter().position(|formula| formula.matches(parameters)).map(|at| at as u32)
    }
}

impl<'a> NumberScan<'a> {
    /// The terms of the variants.
    #[must_use]
    pub fn of(workload: &'a Workload) -> Self {
        Self(&workload.variants)
    }

    /// The variant that matches.
    #[must_use]
    pub fn find(&self, point: &[u32]) -> Option<u32> {
        let holds = |term: &Term| term.iter().all(|test| test.holds(point));
        self.0.iter().position(|terms| terms.iter().any(holds)).map(|at| at as u32)
    }
}
