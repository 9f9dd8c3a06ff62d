//! Colours of what is printed: where they are wanted, and none elsewhere.

use crate::arguments::{Arguments, environment};

/// The colours that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    Red,
    Green,
    Yellow,
}

/// Whether the output gets colours: as --color says, else on terminals that know them, unless NO_COLOR
/// (https://no-color.org) is there.
pub fn colours_wanted(arguments: &Arguments, is_terminal: bool) -> bool {
    match arguments.text_or_default("color").as_str() {
        "always" => true,
        "never" => false,
        _ => is_terminal && environment("NO_COLOR").is_none() && environment("TERM").is_none_or(|term| term != "dumb"),
    }
}

/// A text in a colour.
pub fn painted(text: &str, colour: Colour, colours: bool) -> String {
    let code = match colour {
        Colour::Red => 31,
        Colour::Green => 32,
        Colour::Yellow => 33,
    };
    if colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}
