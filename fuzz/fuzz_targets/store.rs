//! Whatever lies in a journal or checkpoint, the store's decoder of entries refuses it or accepts it, and nothing else.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    server::store::count_sound_entries(bytes);
});
