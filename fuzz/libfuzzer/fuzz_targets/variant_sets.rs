//! See `xds_fuzz::variant_sets`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    xds_fuzz::variant_sets(input);
});
