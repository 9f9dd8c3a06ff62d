//! The end of a program that does not disconnect first. Used by libtabane and, by path, by libchfs.

use crate::PROCESS;
use std::sync::Once;

/// Has what is open told to the servers when the program ends by exit(3) or by returning from main.
pub fn end_with_process() {
    extern "C" fn end() {
        // Nobody is there any more to be told of a panic.
        let _ = std::panic::catch_unwind(|| PROCESS.end());
    }
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the handler is a function of this library, which runs it before it goes. Where there is no room for
        // one, the servers find out when the session's grace time is over.
        unsafe { libc::atexit(end) };
    });
}
