//! Numbers for the parameters of downstream subscriptions. A stream subscribes to many names with
//! the same parameters, so each name keeps the number, and the parameters exist once.

use std::collections::BTreeMap;

use crate::parameters::Parameters;

/// Identifies the parameters of a downstream subscription, bound ([`Parameters::bound`]). A lower
/// number is older.
pub(super) type Number = u64;

/// The numbers of parameters that names use.
#[derive(Debug, Default)]
pub(super) struct ParameterTable {
    /// The newest number; numbers also order subscriptions by age.
    last_number: Number,
    numbers: BTreeMap<Parameters, Number>,
    entries: BTreeMap<Number, Entry>,
}

#[derive(Debug)]
struct Entry {
    parameters: Parameters,
    names: usize,
}

impl ParameterTable {
    /// A number that is larger than all before.
    pub(super) fn next_number(&mut self) -> Number {
        self.last_number += 1;
        self.last_number
    }

    /// The number of these parameters, for one more name.
    pub(super) fn hold(&mut self, parameters: &Parameters) -> Number {
        if let Some(number) = self.numbers.get(parameters) {
            self.entries.get_mut(number).expect("the number is of an entry").names += 1;
            return *number;
        }
        let number = self.next_number();
        self.numbers.insert(parameters.clone(), number);
        self.entries.insert(number, Entry { parameters: parameters.clone(), names: 1 });
        number
    }

    /// The number of these parameters, if a name uses it.
    pub(super) fn number(&self, parameters: &Parameters) -> Option<Number> {
        self.numbers.get(parameters).copied()
    }

    /// The parameters of a number that a name uses.
    pub(super) fn get(&self, number: Number) -> &Parameters {
        &self.entries[&number].parameters
    }

    /// One name uses the number no more.
    pub(super) fn release(&mut self, number: Number) {
        let entry = self.entries.get_mut(&number).expect("the number is of an entry");
        entry.names -= 1;
        if entry.names == 0 {
            let Entry { parameters, .. } = self.entries.remove(&number).expect("it was read above");
            self.numbers.remove(&parameters);
        }
    }
}
