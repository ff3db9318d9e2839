//! Numbers that look random and are the same in every run.

/// The generator splitmix64.
#[derive(Debug, Clone)]
pub struct Dice(pub u64);

impl Dice {
    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    /// This number of different numbers below `end`, in random order.
    pub fn some_of(&mut self, count: usize, end: usize) -> Vec<usize> {
        let mut all: Vec<_> = (0..end).collect();
        for at in 0..count {
            let with = at + self.below(end - at);
            all.swap(at, with);
        }
        all.truncate(count);
        all
    }
}
