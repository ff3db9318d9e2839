//! See `xds_fuzz::stream_delta`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    xds_fuzz::stream_delta(input);
});
