//! What can be said on the command line.

use crate::job::Mode;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// One server task receives packets of an offset and a payload, and writes each to a file or block device: how much of
/// what network and device can do alone is there when one loop does both? Prints JSON lines.
#[derive(Debug, Parser)]
#[command(name = "overlap", args_conflicts_with_subcommands = true)]
pub struct Options {
    #[command(subcommand)]
    pub role: Option<Role>,
    #[command(flatten)]
    pub comparison: Comparison,
}

#[derive(Debug, Args)]
pub struct Comparison {
    /// Schedulers, separated by commas, or all.
    #[arg(long, default_value = "loop,ours", value_delimiter = ',')]
    pub scheduler: Vec<String>,
    /// Tells the schedulers that were built, and ends.
    #[arg(long)]
    pub list: bool,
    /// The file or block device to write to. A file that is missing is made, filled and taken away again; the default
    /// is one in the directory for temporary files.
    #[arg(long)]
    pub path: Option<PathBuf>,
    /// Gives up the contents of a path that exists.
    #[arg(long)]
    pub overwrite: bool,
    /// Bytes of a file that is made, and of a device that are used at most.
    #[arg(long, default_value = "1GiB", value_parser = parse_size)]
    pub size: u64,
    /// Bytes of a payload, several separated by commas.
    #[arg(long, default_value = "4KiB,16KiB,64KiB,256KiB,1MiB", value_delimiter = ',', value_parser = parse_size)]
    pub packet_sizes: Vec<u64>,
    /// What of the work is done: several separated by commas.
    #[arg(long, default_value = "network,disk,both", value_delimiter = ',')]
    pub modes: Vec<Mode>,
    /// Writes under way at most.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub depth: u32,
    /// Time of a run.
    #[arg(long, default_value_t = 1.0, value_parser = parse_seconds)]
    pub seconds: f64,
    /// Runs of each setting, in turns.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeat: u32,
    /// Writes contents that differ from place to place, in runs of their own, and reads them back.
    #[arg(long)]
    pub verify: bool,
    /// Buffers at which `naive`, which has no bound, gives up.
    #[arg(long, default_value = "1GiB", value_parser = parse_size)]
    pub memory_max: u64,
    /// Draws a picture (SVG) too.
    #[arg(long)]
    pub plot: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Role {
    /// One server, which this program starts itself.
    #[command(hide = true)]
    Serve(Serve),
}

#[derive(Debug, Args)]
pub struct Serve {
    #[arg(long)]
    pub scheduler: String,
    #[arg(long)]
    pub mode: Mode,
    #[arg(long)]
    pub size: usize,
    #[arg(long)]
    pub depth: usize,
    #[arg(long)]
    pub path: PathBuf,
    #[arg(long)]
    pub extent: u64,
    #[arg(long)]
    pub seconds: f64,
    #[arg(long)]
    pub memory_max: u64,
}

fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        _ => return Err("not a size such as 64KiB".to_owned()),
    };
    let number: u64 = digits.parse().map_err(|_| "not a size such as 64KiB".to_owned())?;
    number.checked_mul(1 << shift).filter(|size| *size > 0).ok_or_else(|| "not a size of at least a byte".to_owned())
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if seconds > 0.0 { Ok(seconds) } else { Err("not a time".to_owned()) }
}
