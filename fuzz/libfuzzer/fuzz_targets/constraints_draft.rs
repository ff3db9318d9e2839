//! See `xds_fuzz::constraints_draft`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    xds_fuzz::constraints_draft(input);
});
