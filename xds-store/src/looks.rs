//! Counts how often a commit looks at the index and at the engine, for tests of its cost.

#[cfg(test)]
thread_local! {
    static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// A record, a referrer or a stored value is looked at.
pub(crate) fn look() {
    #[cfg(test)]
    LOOKS.with(|looks| looks.set(looks.get() + 1));
}

/// The number of looks of this thread since the last call.
#[cfg(test)]
pub(crate) fn take() -> u64 {
    LOOKS.with(std::cell::Cell::take)
}
