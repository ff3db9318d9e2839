//! See `xds_fuzz::client_sotw`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    xds_fuzz::client_sotw(input);
});
