//! Experiments: what the papers that Tabane builds on have measured (docs/experiments.md), each a command that prints
//! JSON lines and draws a picture. This is what they share: engines, output, and what a picture says about where it is
//! from.

use crate::engine::{Engine, Setting};
use crate::engine_real::Real;
use crate::engine_simulated::Simulated;
use crate::options::{Bench, Options};
use crate::plot::Picture;
use crate::report::median;
use crate::{
    experiment_async, experiment_congestion, experiment_find, experiment_hpio, experiment_open_storm,
    experiment_placement, experiment_profile, experiment_rdbench, experiment_shares, experiment_stage,
    experiment_uring,
};
use reactor::workers::HeldSignals;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Runs an experiment and draws it, if asked to; the status to exit with.
pub fn lead(options: &Options, experiment: Bench) -> u8 {
    match try_lead(options, experiment) {
        Ok(()) => 0,
        Err(message) => {
            eprintln!("tabane-bench: {}: {message}", experiment.name());
            1
        }
    }
}

fn try_lead(options: &Options, experiment: Bench) -> Result<(), String> {
    for file in [&options.plot, &options.csv].into_iter().flatten() {
        // Not after minutes of measuring.
        std::fs::write(file, "").map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let signals = HeldSignals::hold().map_err(|error| format!("signals: {error}"))?;
    // Names decide where things are: a simulation that is to come out the same has the same ones.
    let directory = match options.simulate {
        true => "/tabane-bench".to_owned(),
        false => format!("/tabane-bench-{}", std::process::id()),
    };
    let runner = Runner { options, signals: Rc::new(signals), directory };
    let picture = match experiment {
        Bench::Placement => experiment_placement::run(&runner),
        Bench::Async => experiment_async::run(&runner),
        Bench::Congestion => experiment_congestion::run(&runner),
        Bench::Shares => experiment_shares::run(&runner),
        Bench::Hpio => experiment_hpio::run(&runner),
        Bench::OpenStorm => experiment_open_storm::run(&runner),
        Bench::Profile => experiment_profile::run(&runner),
        Bench::Uring => experiment_uring::run(&runner),
        Bench::Rdbench => experiment_rdbench::run(&runner),
        Bench::Stage => experiment_stage::run(&runner),
        _ => experiment_find::run(&runner),
    }?;
    match &options.plot {
        Some(file) => picture.draw(file),
        None => Ok(()),
    }
}

/// What an experiment runs with.
pub struct Runner<'a> {
    pub options: &'a Options,
    signals: Rc<HeldSignals>,
    /// On the cluster; nobody else uses it.
    pub directory: String,
}

impl Runner<'_> {
    /// A cluster with its processes.
    pub fn start(&self, setting: &Setting) -> Result<Box<dyn Engine>, String> {
        Ok(match self.options.simulate {
            true => Box::new(Simulated::start(&self.options.model, setting)?),
            false => Box::new(self.start_real(setting)?),
        })
    }

    /// Signals of children.
    pub fn signals(&self) -> &HeldSignals {
        &self.signals
    }

    /// The same, of real processes.
    pub fn start_real(&self, setting: &Setting) -> Result<Real, String> {
        Real::start(self.options, setting, &self.signals)
    }

    /// What lines and pictures call the place where it ran.
    pub fn engine_name(&self) -> &'static str {
        if self.options.simulate { "simulated" } else { "real" }
    }

    /// A line for programs.
    pub fn print(&self, line: &str) -> Result<(), String> {
        let mut output = std::io::stdout().lock();
        writeln!(output, "{line}").and_then(|()| output.flush()).map_err(|error| format!("standard output: {error}"))
    }

    /// The head of a picture: what it shows, and where it is from.
    pub fn picture(&self, title: &str) -> Picture {
        let about = match self.options.simulate {
            true => vec![
                "Simulated: the servers and clients as they are, each on a host of its own, in virtual time."
                    .to_owned(),
                self.options.model.about(),
            ],
            false => {
                let transport =
                    if self.options.transport == "auto" { "shared memory" } else { &self.options.transport };
                let runs = match self.options.repeat {
                    1 => "one run".to_owned(),
                    runs => format!("medians of {runs} runs"),
                };
                vec![
                    format!("Measured: real processes on 1 host, all sharing its {}.", machine()),
                    format!("Over {transport}, stores in memory; {runs}."),
                ]
            }
        };
        let kind = if self.options.simulate { "simulated" } else { "measured" };
        Picture { title: format!("{title} ({kind})"), about, panels: Vec::new() }
    }

    /// Runs of each setting: simulations come out the same each time.
    pub fn repeats(&self) -> u32 {
        if self.options.simulate { 1 } else { self.options.repeat }
    }
}

/// Cores and kernel of this machine.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel: String = kernel.trim().chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    format!("{cores} cores (Linux {kernel})")
}

/// A directory of the run in one of somebody else's; it goes with the run.
pub struct SiteDirectory(pub PathBuf);

impl SiteDirectory {
    pub fn make(site: &Path, name: &str) -> Result<SiteDirectory, String> {
        let path = site.join(format!("{name}-{}", std::process::id()));
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        std::fs::create_dir(&path).map_err(failed)?;
        path.canonicalize().map(SiteDirectory).map_err(failed)
    }
}

impl Drop for SiteDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Values by curve and category, several runs each.
#[derive(Default)]
pub struct Table(BTreeMap<(String, usize), Vec<f64>>);

impl Table {
    pub fn add(&mut self, curve: impl Into<String>, category: usize, value: f64) {
        self.0.entry((curve.into(), category)).or_default().push(value);
    }

    /// The medians of a curve.
    pub fn points(&self, curve: &str) -> Vec<(usize, f64)> {
        let own = self.0.iter().filter(|((name, _), _)| name == curve);
        own.filter_map(|((_, category), values)| Some((*category, median(values)?))).collect()
    }
}

/// A size as people write it.
pub fn size_name(size: u64) -> String {
    match size {
        _ if size >= 1 << 20 && size.is_multiple_of(1 << 20) => format!("{} MiB", size >> 20),
        _ if size >= 1 << 10 && size.is_multiple_of(1 << 10) => format!("{} KiB", size >> 10),
        _ => format!("{size} B"),
    }
}
