//! See `xds_fuzz::names_xdstp`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    xds_fuzz::names_xdstp(input);
});
