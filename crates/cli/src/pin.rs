//! Which cores a server stays on: the value of --pin.
//!
//! What waits gives its core away, and the kernel is content when as many processes take turns on each core. So two
//! servers may come to share one core and their two clients the other, where neither pair has anything to do at the
//! same time as the other. Servers of one machine therefore keep to shares of its cores, within which the kernel may
//! move them, unless programs that compute want them too.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};
use reactor::Reactor;
use std::fmt;
use wire::{Cluster, ServerAddress};

/// Highest number of a core that is understood.
const CORE_MAX: usize = reactor::process::CORE_COUNT_MAX - 1;

/// Where servers run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pin {
    /// Each within its share of the cores that it may use, as long as nobody computes there.
    Auto,
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

    /// Reads `auto`, `off`, `cores`, or numbers and ranges of cores. The error says what is wanted.
    pub fn parse(text: &str) -> Result<Pin, String> {
        match text {
            "auto" => return Ok(Pin::Auto),
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
                format!("auto, off, cores, or a list of cores such as 0,4-7 is wanted, with numbers up to {CORE_MAX}")
            })?;
            cores.extend(first..=last);
        }
        Ok(Pin::Listed(cores))
    }

    /// Has a server's loop run on its cores. Errors: they are not there, or not for us.
    pub fn apply(&self, reactor: &Reactor, cluster: &Cluster, index: u32) -> Outcome {
        let allowed = || {
            reactor::process::allowed_cores()
                .map_err(|error| Failure::failed(format!("--pin {self}: which cores may be used: {error}")))
        };
        let in_turn = |cores: &[usize]| vec![cores[index as usize % cores.len()]];
        let cores = match self {
            Pin::Off => return Ok(()),
            Pin::Auto => {
                // Whoever starts the server says so if there is none with this index.
                let Some(own) = cluster.servers.get(index as usize) else { return Ok(()) };
                let is_here = |server: &&ServerAddress| server.address.ip() == own.address.ip();
                let before = cluster.servers.iter().take(index as usize).filter(is_here).count();
                let share = share(&allowed()?, before, cluster.servers.iter().filter(is_here).count());
                return reactor
                    .prefer_cores(share)
                    .map_err(|error| Failure::failed(format!("--pin auto: the cores can't be shared out: {error}")));
            }
            Pin::Cores => in_turn(&allowed()?),
            Pin::Listed(cores) => in_turn(cores),
        };
        reactor::process::stay_on(&cores).map_err(|error| {
            let allowed = Pin::Listed(reactor::process::allowed_cores().unwrap_or_default());
            let cores = Pin::Listed(cores);
            Failure::failed(format!("--pin: core {cores} can't be used ({error}); these can: {allowed}"))
        })
    }
}

/// The share of the `number`th of `count` servers: neighbouring cores, as many for each as there are, at least one.
fn share(cores: &[usize], number: usize, count: usize) -> Vec<usize> {
    if count > cores.len() {
        return vec![cores[number % cores.len()]];
    }
    cores[number * cores.len() / count..(number + 1) * cores.len() / count].to_vec()
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pin::Auto => f.write_str("auto"),
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
        for text in ["auto", "off", "cores", "0", "0,4-7", "3,2,1", "5-6,1"] {
            assert_eq!(Pin::parse(text).map(|pin| pin.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(Pin::parse("1-1,2,3"), Ok(Pin::Listed(vec![1, 2, 3])));
        for text in ["", "all", "1,", "4-2", "-1", "0-", "100000", "1-99999999999999999999"] {
            assert!(Pin::parse(text).is_err(), "{text}");
        }
    }

    /// Goal: all cores are shared out, each to one server as long as there are enough of them.
    #[test]
    fn shares() {
        let cores = [0, 1, 4, 5, 6];
        assert_eq!(share(&cores, 0, 1), cores);
        assert_eq!((0..2).map(|number| share(&cores, number, 2)).collect::<Vec<_>>(), [vec![0, 1], vec![4, 5, 6]]);
        assert_eq!((0..5).flat_map(|number| share(&cores, number, 5)).collect::<Vec<_>>(), cores);
        assert_eq!((0..7).flat_map(|number| share(&cores, number, 7)).collect::<Vec<_>>(), [0, 1, 4, 5, 6, 0, 1]);
    }
}
