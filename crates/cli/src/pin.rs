//! Which core a server stays on: the value of --pin.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};
use std::fmt;

/// Highest number of a core that is understood.
const CORE_MAX: usize = reactor::process::CORE_COUNT_MAX - 1;

/// Where servers run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pin {
    /// Where the kernel puts them.
    Off,
    /// Each on one of the cores that it may use, in turn.
    Cores,
    /// Each on one of these, in turn.
    Listed(Vec<usize>),
}

impl Pin {
    /// What the command line asks for.
    pub fn wanted(arguments: &Arguments) -> Outcome<Pin> {
        let text = arguments.text_or_default("pin");
        Pin::parse(&text).map_err(|reason| Failure::usage(format!("--pin {text}: {reason}")))
    }

    /// Reads `off`, `cores`, or numbers and ranges of cores. The error says what is wanted.
    pub fn parse(text: &str) -> Result<Pin, String> {
        match text {
            "off" => return Ok(Pin::Off),
            "cores" => return Ok(Pin::Cores),
            _ => {}
        }
        let number = |text: &str| text.parse::<usize>().ok().filter(|core| *core <= CORE_MAX);
        let mut cores = Vec::new();
        for part in text.split(',') {
            let range = match part.split_once('-') {
                Some((first, last)) => number(first).zip(number(last)).filter(|(first, last)| first <= last),
                None => number(part).map(|core| (core, core)),
            };
            let (first, last) = range.ok_or_else(|| {
                format!("off, cores, or a list of cores such as 0,4-7 is wanted, with numbers up to {CORE_MAX}")
            })?;
            cores.extend(first..=last);
        }
        Ok(Pin::Listed(cores))
    }

    /// Has this thread, and those that it starts, run on the core of the server with this index. Errors: the core is not
    /// there, or not for us.
    pub fn apply(&self, index: u32) -> Outcome {
        let cores = match self {
            Pin::Off => return Ok(()),
            Pin::Cores => reactor::process::allowed_cores()
                .map_err(|error| Failure::failed(format!("--pin cores: which cores may be used: {error}")))?,
            Pin::Listed(cores) => cores.clone(),
        };
        let core = cores[index as usize % cores.len()];
        reactor::process::stay_on(core).map_err(|error| {
            let allowed = Pin::Listed(reactor::process::allowed_cores().unwrap_or_default());
            Failure::failed(format!("--pin: core {core} can't be used ({error}); these can: {allowed}"))
        })
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pin::Off => f.write_str("off"),
            Pin::Cores => f.write_str("cores"),
            Pin::Listed(cores) => {
                let ranges = cores.chunk_by(|one, next| one + 1 == *next).map(|range| match range {
                    [first, .., last] => format!("{first}-{last}"),
                    _ => range[0].to_string(),
                });
                f.write_str(&ranges.collect::<Vec<_>>().join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: all documented forms are read and written back, others refused.
    #[test]
    fn forms() {
        for text in ["off", "cores", "0", "0,4-7", "3,2,1", "5-6,1"] {
            assert_eq!(Pin::parse(text).map(|pin| pin.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(Pin::parse("1-1,2,3"), Ok(Pin::Listed(vec![1, 2, 3])));
        for text in ["", "all", "1,", "4-2", "-1", "0-", "100000", "1-99999999999999999999"] {
            assert!(Pin::parse(text).is_err(), "{text}");
        }
    }
}
