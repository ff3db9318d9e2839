//! See `xds_fuzz::stream_sotw`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    xds_fuzz::stream_sotw(input);
});
