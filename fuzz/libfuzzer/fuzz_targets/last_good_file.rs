//! See `xds_fuzz::last_good_file`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    xds_fuzz::last_good_file(input);
});
