//! Whatever lies in a journal, a checkpoint or a head of a store, it is refused or taken, and nothing else happens.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    server::store::fuzz::decode_everything(bytes);
});
