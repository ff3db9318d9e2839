//! See `xds_fuzz::bootstrap_json`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    xds_fuzz::bootstrap_json(input);
});
