//! F3.1: reaction diffusion on a grid of processes that write a snapshot into one shared file now and then (RDBench),
//! to the site's file system itself and to a cluster over it, by when the cluster flushes.
//!
//! How long the processes compute between two snapshots is a multiple of what the site takes for one, which is measured
//! first. So a flush has that time, or three times that, before the next snapshot comes.

use crate::engine::{Engine, Line, Setting};
use crate::engine_simulated::snapshot_contents;
use crate::experiment::{Runner, SiteDirectory, Table};
use crate::gray_scott::{Decomposition, Edges, GrayScott};
use crate::options::{Compute, RdBench, SiteUse, SnapshotTarget};
use crate::plot::{Look, Panel, Picture, Series};
use crate::reaction::{ReactionStep, SnapshotPlan, shared_word_count, snapshot_name, synchronise_file_system};
use crate::report::median;
use crate::step::Step;
use client::Contact;
use std::borrow::Cow;
use std::path::PathBuf;

/// Snapshots by which it is measured how long the site takes.
const PACE_SNAPSHOTS: u32 = 3;
/// Seconds that steps of the stencil are measured for.
const PACE_SECONDS: f64 = 0.2;
const PACE_STEPS_MAX: u64 = 1 << 20;
/// Bytes of each server's store in a simulation.
const SIMULATED_STORE_SIZE: u64 = 1 << 30;
const MIB: f64 = 1_048_576.0;

/// How long things take on which the length of the computing rests, in seconds.
struct Pace {
    snapshot: f64,
    /// 0 where nothing is computed.
    step: f64,
}

/// What is computed between two snapshots.
struct Interval {
    steps: u64,
    seconds: f64,
}

/// What one run came to.
struct Outcome {
    write_seconds: f64,
    total_seconds: f64,
    /// Bytes.
    flushed_in_compute: u64,
    flushed_after_seconds: f64,
    /// Where a snapshot differs first; nothing where all are equal.
    difference: Option<String>,
}

pub fn run(runner: &Runner<'_>) -> Result<Picture, String> {
    let (options, rd) = (runner.options, &runner.options.rdbench);
    let mut table = Table::default();
    let mut differences = Vec::new();
    for (category, servers) in options.server_counts.iter().enumerate() {
        // In a simulation every server has a client's host beside it.
        let procs = if options.simulate && !options.is_given("procs") { *servers } else { options.procs };
        let decomposition = rd.decomposition(procs, options.simulate)?;
        for layout in &rd.layouts {
            let plan = SnapshotPlan { decomposition, layout: *layout, synced: rd.synced };
            let bed = Bed { runner, rd, servers: *servers, plan };
            let pace = bed.measure_pace()?;
            for phase in rd.phases_to_run() {
                let interval = bed.interval(&pace, phase);
                let wanted = bed.snapshots(&interval);
                for _ in 0..runner.repeats() {
                    for target in &rd.targets {
                        let outcome = bed.run(*target, &interval, &wanted)?;
                        bed.print(*target, phase, &interval, &outcome)?;
                        bed.note(*target, phase, category, &outcome, &mut table);
                        differences.extend(outcome.difference);
                    }
                }
            }
        }
    }
    match differences.is_empty() {
        true => Ok(picture(runner, &table)),
        false => Err(format!("what is at the site is not what was written: {}", differences.join("; "))),
    }
}

impl RdBench {
    /// One phase where the steps are given and nothing else says how long they last.
    fn phases_to_run(&self) -> Vec<u32> {
        let steps_alone = self.interval.is_some() && self.compute == Compute::Stencil;
        if steps_alone { vec![0] } else { self.phases.clone() }
    }
}

/// What runs have in common.
struct Bed<'a> {
    runner: &'a Runner<'a>,
    rd: &'a RdBench,
    servers: u32,
    plan: SnapshotPlan,
}

impl Bed<'_> {
    fn decomposition(&self) -> &Decomposition {
        &self.plan.decomposition
    }

    fn compute(&self) -> Compute {
        // Virtual time passes without anybody at work.
        if self.runner.options.simulate { Compute::Sleep } else { self.rd.compute }
    }

    /// A cluster over an empty directory, or the directory alone, with processes that have begun.
    fn start(&self, target: SnapshotTarget) -> Result<(Box<dyn Engine>, Option<SiteDirectory>), String> {
        let directory = match &self.runner.options.backing {
            None => None,
            Some(site) => Some(SiteDirectory::make(site, "tabane-rdbench")?),
        };
        let path = directory.as_ref().map_or_else(PathBuf::new, |directory| directory.0.clone());
        let setting = Setting {
            servers: self.servers,
            procs: self.decomposition().procs(),
            placement: self.runner.options.placement.clone(),
            chunk_size: self.runner.options.chunk_size,
            store_size: SIMULATED_STORE_SIZE,
            contact: Contact::default(),
            site: match target.flush() {
                None => SiteUse::Direct(path),
                Some(flush) => SiteUse::Behind { path, flush, warm: 0 },
            },
            words: shared_word_count(self.decomposition()),
        };
        let mut engine = self.runner.start(&setting)?;
        engine.all(&Step::Reaction(ReactionStep::Begin(self.plan)))?;
        Ok((engine, directory))
    }

    /// How long the site takes for a snapshot that is written to it directly, and the processes for a step.
    fn measure_pace(&self) -> Result<Pace, String> {
        let (mut engine, _directory) = self.start(SnapshotTarget::Direct)?;
        let mut times = Vec::new();
        for number in 0..PACE_SNAPSHOTS {
            times.push(engine.all(&Step::Reaction(ReactionStep::WriteSnapshot { number }))?.seconds);
        }
        let snapshot = median(&times).unwrap_or(0.0);
        let mut step = 0.0;
        if self.compute() == Compute::Stencil && self.rd.interval.is_none() {
            let mut steps = 1;
            loop {
                let seconds = engine.all(&Step::Reaction(ReactionStep::Compute { steps, time: 0 }))?.seconds;
                step = seconds / steps as f64;
                if seconds >= PACE_SECONDS || steps >= PACE_STEPS_MAX {
                    break;
                }
                steps *= 2;
            }
        }
        engine.end()?;
        Ok(Pace { snapshot, step })
    }

    fn interval(&self, pace: &Pace, phase: u32) -> Interval {
        let seconds = pace.snapshot * f64::from(phase);
        let steps = match (self.rd.interval, self.compute()) {
            (Some(steps), _) => steps,
            (None, Compute::Sleep) => 1,
            (None, Compute::Stencil) => ((seconds / pace.step).round() as u64).max(1),
        };
        Interval { steps, seconds }
    }

    /// What all snapshots have to hold, computed once more by one process for all cells; nothing in a simulation, where
    /// that is made when it is wanted.
    fn snapshots(&self, interval: &Interval) -> Vec<Vec<u8>> {
        let decomposition = self.decomposition();
        if self.runner.options.simulate {
            return Vec::new();
        }
        let mut field = GrayScott::new(&Decomposition { columns: 1, rows: 1, ..*decomposition }, 0);
        let mut snapshots = Vec::new();
        loop {
            snapshots.push(self.plan.arranged(&field.bytes()));
            if snapshots.len() == self.rd.snapshots as usize {
                return snapshots;
            }
            for _ in 0..interval.steps {
                let own = field.edges();
                field.step(&Edges::beyond(|_, _| &own));
            }
        }
    }

    fn run(&self, target: SnapshotTarget, interval: &Interval, wanted: &[Vec<u8>]) -> Result<Outcome, String> {
        if let Some(site) = &self.runner.options.backing {
            // What the run before has left to be written is none of this one's.
            synchronise_file_system(site)?;
        }
        let (mut engine, _directory) = self.start(target)?;
        let compute = self.compute().step(interval.steps, (interval.seconds * 1e9) as u64);
        let compute = Step::Reaction(compute);
        let (mut write_seconds, mut flushed_in_compute) = (0.0, 0);
        let begun = engine.now();
        for number in 0..self.rd.snapshots {
            write_seconds += engine.all(&Step::Reaction(ReactionStep::WriteSnapshot { number }))?.seconds;
            let before = engine.behind()?;
            engine.all(&compute)?;
            flushed_in_compute += engine.behind()?.saturating_sub(before);
        }
        let total_seconds = engine.now() - begun;
        let begun = engine.now();
        engine.act(&Step::Reaction(ReactionStep::Flush), 0..1)?;
        let flushed_after_seconds = engine.now() - begun;
        let mut difference = None;
        for number in 0..self.rd.snapshots {
            let name = snapshot_name(number);
            let found = engine.read_behind(&name)?;
            let wanted = match wanted.get(number as usize) {
                Some(wanted) => Cow::Borrowed(wanted),
                None => Cow::Owned(snapshot_contents(number, self.decomposition().snapshot_size())),
            };
            difference = difference.or_else(|| describe_difference(target, &name, &found, &wanted));
        }
        engine.end()?;
        Ok(Outcome { write_seconds, total_seconds, flushed_in_compute, flushed_after_seconds, difference })
    }

    fn bytes(&self) -> u64 {
        self.decomposition().snapshot_size() * u64::from(self.rd.snapshots)
    }

    fn print(&self, target: SnapshotTarget, phase: u32, interval: &Interval, outcome: &Outcome) -> Result<(), String> {
        let line = Line::new("rdbench").put("engine", self.runner.engine_name()).put("target", target.word());
        let line = line.put("layout", self.plan.layout.word()).put("compute", self.compute().word());
        let line = line.put("phase", phase).put("interval", interval.steps);
        let line = line.put("servers", self.servers).put("procs", self.decomposition().procs());
        let line = line.put("snapshots", self.rd.snapshots).put("bytes", self.bytes());
        let line = line.put_rounded("write_seconds", outcome.write_seconds, 6);
        let line = line.put_rounded("total_seconds", outcome.total_seconds, 6);
        let line = line.put("flushed_in_compute", outcome.flushed_in_compute);
        let line = line.put_rounded("flushed_after_seconds", outcome.flushed_after_seconds, 6);
        self.runner.print(&line.put("equal", outcome.difference.is_none()).end())
    }

    fn note(&self, target: SnapshotTarget, phase: u32, category: usize, outcome: &Outcome, table: &mut Table) {
        let bytes = self.bytes() as f64;
        let values = [
            ("write", bytes / MIB / outcome.write_seconds),
            ("total", outcome.total_seconds),
            ("share", 100.0 * outcome.flushed_in_compute as f64 / bytes),
        ];
        for (what, value) in values {
            table.add(curve(what, target, self.plan.layout.word(), phase), category, value);
        }
    }
}

impl SnapshotTarget {
    /// What `tabane up` is told of when to flush; nothing without a cluster.
    fn flush(self) -> Option<&'static str> {
        match self {
            SnapshotTarget::Direct => None,
            // Not before the end, when it is told to: what has come to the site by then is compared.
            SnapshotTarget::Never => Some("manual"),
            SnapshotTarget::Idle => Some("idle"),
            SnapshotTarget::Immediate => Some("immediate"),
        }
    }
}

/// Where what is found differs from what is wanted, in words.
fn describe_difference(target: SnapshotTarget, name: &str, found: &[u8], wanted: &[u8]) -> Option<String> {
    let target = target.word();
    if found.len() != wanted.len() {
        return Some(format!("{target}, {name}: {} instead of {} bytes", found.len(), wanted.len()));
    }
    let at = found.iter().zip(wanted).position(|(found, wanted)| found != wanted)?;
    Some(format!("{target}, {name}: byte {at} is {} instead of {}", found[at], wanted[at]))
}

/// An empty directory at the site, for this run alone.
fn curve(what: &str, target: SnapshotTarget, layout: &str, phase: u32) -> String {
    format!("{what} {} {layout} {phase}", target.word())
}

fn picture(runner: &Runner<'_>, table: &Table) -> Picture {
    let (options, rd) = (runner.options, &runner.options.rdbench);
    let mut picture = runner.picture("Reaction diffusion that writes snapshots");
    picture.about.push(match options.simulate {
        true => options.model.about_site(),
        false => format!("{} snapshots of {} x {} cells.", rd.snapshots, rd.length, rd.length),
    });
    let panels = [
        ("write", "writing snapshots", "MiB per second (log)", Look::LogLines),
        ("total", "time of the job", "seconds", Look::Lines),
        ("share", "flushed while the processes compute", "per cent of the bytes", Look::Lines),
    ];
    for phase in rd.phases_to_run() {
        for (what, title, y_label, look) in &panels {
            let mut series = Vec::new();
            for (layout, target) in
                rd.layouts.iter().flat_map(|layout| rd.targets.iter().map(move |target| (layout, target)))
            {
                let name = match rd.layouts.len() {
                    1 => target.word().to_owned(),
                    _ => format!("{}, {}", target.word(), layout.word()),
                };
                let points = table.points(&curve(what, *target, layout.word(), phase));
                series.push(Series { name, points, is_reference: *target == SnapshotTarget::Direct });
            }
            picture.panels.push(Panel {
                title: match phase {
                    0 => (*title).to_owned(),
                    1 => format!("{title}; computing as long as DIR takes for one"),
                    times => format!("{title}; computing {times} times as long"),
                },
                x_label: "servers".to_owned(),
                y_label: (*y_label).to_owned(),
                categories: options.server_counts.iter().map(u32::to_string).collect(),
                series,
                look: *look,
            });
        }
    }
    picture
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: one byte, a short file and a long one are differences, with words that name target, file and place.
    #[test]
    fn differences_are_found() {
        let describe = |found: &[u8]| describe_difference(SnapshotTarget::Never, "000001.bin", found, &[1, 2, 3]);
        assert_eq!(describe(&[1, 2, 3]), None);
        assert_eq!(describe(&[1, 0, 3]).unwrap(), "never, 000001.bin: byte 1 is 0 instead of 2");
        assert_eq!(describe(&[1, 2]).unwrap(), "never, 000001.bin: 2 instead of 3 bytes");
        assert_eq!(describe(&[1, 2, 3, 0]).unwrap(), "never, 000001.bin: 4 instead of 3 bytes");
    }
}
