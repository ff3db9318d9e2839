//! Natural numbers of any size: 32 keys with 18 outcomes each have more combinations than 128 bits
//! can count.
//!
//! Counting needs three operations on numbers of a few limbs; a crate for that would be larger than
//! this file.

/// A natural number, least significant limb first, without zeros at the end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Count(Vec<u64>);

impl Count {
    pub(super) fn one() -> Self {
        Self(vec![1])
    }

    pub(super) fn add(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        let mut carry = false;
        for (at, limb) in self.0.iter_mut().enumerate() {
            let (sum, over) = limb.overflowing_add(other.0.get(at).copied().unwrap_or(0));
            let (sum, over_again) = sum.overflowing_add(u64::from(carry));
            (*limb, carry) = (sum, over || over_again);
        }
        if carry {
            self.0.push(1);
        }
    }

    pub(super) fn times(mut self, factor: u64) -> Self {
        if factor == 0 {
            return Self::default();
        }
        let mut carry = 0;
        for limb in &mut self.0 {
            let product = u128::from(*limb) * u128::from(factor) + carry;
            *limb = product as u64;
            carry = product >> 64;
        }
        if carry > 0 {
            self.0.push(carry as u64);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use quickcheck::QuickCheck;

    use super::*;

    fn count(number: u128) -> Count {
        Count::one().times((number >> 64) as u64).times(1 << 32).times(1 << 32).plus(number as u64)
    }

    impl Count {
        fn plus(mut self, number: u64) -> Self {
            self.add(&Self::one().times(number));
            self
        }
    }

    #[test]
    fn counts_as_128_bits_do() {
        fn prop(left: u64, right: u64, factor: u64) -> bool {
            let (left, right) = (u128::from(left) << 40 | u128::from(right), u128::from(right) << 33);
            let mut sum = count(left);
            sum.add(&count(right));
            let product = u128::from(factor) * (right >> 33);
            sum == count(left + right) && count(right >> 33).times(factor) == count(product)
        }
        QuickCheck::new().tests(10_000).quickcheck(prop as fn(u64, u64, u64) -> bool);
    }

    #[test]
    fn carries_into_a_new_limb() {
        let mut sum = count(u128::MAX);
        sum.add(&Count::one());
        assert_eq!(sum, Count(vec![0, 0, 1]));
    }
}
