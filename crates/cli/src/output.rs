//! What commands say. The macros of the standard library panic when whoever reads has gone, as in `tabane up | head
//! -1`; these stand in their place in this program, and leave unsaid what nobody reads: what was asked for is done all
//! the same.
//!
//! Commands whose whole purpose is what they print write by themselves, and end when nobody reads it any more
//! (`Failure::of_output`).

use std::fmt::Arguments;
use std::io::{self, Write};

/// Writes to standard output.
pub fn say(text: Arguments<'_>) {
    let mut output = io::stdout().lock();
    // Nobody reads it, or there is no room where it goes: a log, at worst.
    let _: io::Result<()> = output.write_fmt(text).and_then(|()| output.flush());
}

/// Writes to standard error.
pub fn complain(text: Arguments<'_>) {
    let _: io::Result<()> = io::stderr().lock().write_fmt(text);
}

macro_rules! print {
    ($($text:tt)*) => { $crate::output::say(format_args!($($text)*)) };
}

macro_rules! println {
    ($($text:tt)*) => { $crate::output::say(format_args!("{}\n", format_args!($($text)*))) };
}

macro_rules! eprintln {
    ($($text:tt)*) => { $crate::output::complain(format_args!("{}\n", format_args!($($text)*))) };
}
