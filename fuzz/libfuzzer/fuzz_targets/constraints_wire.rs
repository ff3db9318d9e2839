//! See `xds_fuzz::constraints_wire`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    xds_fuzz::constraints_wire(input);
});
