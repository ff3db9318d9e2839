//! See `xds_fuzz::requests_delta`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    xds_fuzz::requests_delta(input);
});
