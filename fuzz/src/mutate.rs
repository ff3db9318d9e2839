//! Makes new inputs from inputs and a seed.

/// Makes inputs from given ones; the same seed and inputs make the same sequence.
#[derive(Debug)]
pub struct Mutator {
    state: u64,
    words: &'static [&'static [u8]],
    pool: Vec<Vec<u8>>,
}

impl Mutator {
    /// A mutator that starts with these inputs, or with the empty input if there are none.
    #[must_use]
    pub fn new(seed: u64, words: &'static [&'static [u8]], mut pool: Vec<Vec<u8>>) -> Self {
        if pool.is_empty() {
            pool.push(Vec::new());
        }
        Self { state: seed, words, pool }
    }

    /// The next input.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.any_of_pool();
        for _ in 0..=self.below(4) {
            self.mutate(&mut input);
        }
        input.truncate(SIZE_LIMIT);
        input
    }

    /// Adds this input to the pool.
    pub fn keep(&mut self, input: Vec<u8>) {
        if self.pool.len() < POOL_LIMIT {
            self.pool.push(input);
        } else {
            let at = self.below(self.pool.len());
            self.pool[at] = input;
        }
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        let end = (at + self.below(16)).min(input.len());
        match self.below(10) {
            0 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << self.below(8);
                }
            }
            1 => input.insert(at, self.next() as u8),
            2 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = self.next() as u8;
                }
            }
            3 => drop(input.drain(at..end)),
            4 => {
                let repeated = input[at..end].repeat(1 + self.below(3));
                drop(input.splice(at..at, repeated));
            }
            5 | 6 => {
                let word = self.words[self.below(self.words.len())];
                let replaced = if self.below(2) == 0 { at } else { (at + word.len()).min(input.len()) };
                drop(input.splice(at..replaced, word.iter().copied()));
            }
            7 => {
                let other = self.any_of_pool();
                let from = self.below(other.len() + 1);
                drop(input.splice(at..end, other[from..].iter().copied()));
            }
            8 => self.enclose(input),
            _ => input.extend(self.any_of_pool()),
        }
    }

    /// Makes a protobuf field of the whole input, with its length in front; a sequence of small
    /// changes would never do so.
    fn enclose(&mut self, input: &mut Vec<u8>) {
        let mut length = input.len();
        let mut header = vec![(1 + self.below(9) as u8) << 3 | 2];
        while length >= 0x80 {
            header.push(length as u8 | 0x80);
            length >>= 7;
        }
        header.push(length as u8);
        drop(input.splice(0..0, header));
    }

    /// Most often returns the shorter of two: accepted inputs grow, and short inputs find the same
    /// errors sooner.
    fn any_of_pool(&mut self) -> Vec<u8> {
        let (one, other) = (self.below(self.pool.len()), self.below(self.pool.len()));
        let is_shorter = self.pool[one].len() < self.pool[other].len();
        let taken = if is_shorter || self.below(4) == 0 { one } else { other };
        self.pool[taken].clone()
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// Enough to exceed every limit of constraints.
const SIZE_LIMIT: usize = 4096;

/// The largest number of inputs in the pool.
const POOL_LIMIT: usize = 1024;
