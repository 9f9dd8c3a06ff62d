#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    wire::fuzz::decode_everything(input);
});
