//! The phases of IOR and mdtest as steps, for experiments that look at each: what leads to it, what is measured, what
//! follows.

use crate::engine::Engine;
use crate::step::Step;
use crate::workload_mdtest::HARD_FILE_SIZE;

pub const EASY_SIZE: u64 = 1 << 20;
/// The odd size that IO500 chose for its hard case.
pub const HARD_SIZE: u64 = 47_008;

/// How much each process does.
pub struct Volumes {
    /// Directory in which all of it is.
    pub base: String,
    /// Bytes that each process writes in IOR's phases.
    pub bytes: u64,
    /// Files of each process in mdtest's.
    pub files: u64,
    pub chunk_size: u32,
    /// Write and remove the same volume before it is measured: memory that a machine has not touched before is many
    /// times slower.
    pub warm: bool,
}

/// What is measured.
pub struct Phase {
    pub bench: &'static str,
    pub phase: &'static str,
    pub step: Step,
}

impl Phase {
    /// Whether its work is bytes and not operations.
    pub fn is_data(&self) -> bool {
        self.bench.starts_with("ior")
    }

    /// Bytes of files that so much work moves.
    pub fn bytes(&self, work: u64) -> u64 {
        match (self.is_data(), self.bench, self.phase) {
            (true, ..) => work,
            (false, "mdtest-hard", "create" | "read") => work * HARD_FILE_SIZE as u64,
            _ => 0,
        }
    }

    /// MiB or operations.
    pub fn work(&self, work: u64) -> f64 {
        if self.is_data() { work as f64 / f64::from(1 << 20) } else { work as f64 }
    }
}

type Measure<'a> = dyn FnMut(&mut dyn Engine, &Phase) -> Result<(), String> + 'a;

/// Goes through all phases; `measure` does the step of each.
pub fn go_through(engine: &mut dyn Engine, volumes: &Volumes, measure: &mut Measure<'_>) -> Result<(), String> {
    engine.alone(&Step::MakeDirectory { path: volumes.base.clone() })?;
    for (bench, shared, size) in [("ior-easy", false, EASY_SIZE), ("ior-hard", true, HARD_SIZE)] {
        let path = format!("{}/{bench}", volumes.base);
        let count = (volumes.bytes / size).max(1);
        if volumes.warm {
            let path = format!("{path}.warm");
            engine.all(&Step::OpenFile { path: path.clone(), shared, chunk_size: volumes.chunk_size, write: true })?;
            engine.all(&Step::MovePieces { shared, size, count, write: true })?;
            engine.all(&Step::CloseFile)?;
            engine.all(&Step::RemoveFile { path, shared })?;
        }
        for (phase, write) in [("write", true), ("read", false)] {
            let chunk_size = volumes.chunk_size;
            engine.all(&Step::OpenFile { path: path.clone(), shared, chunk_size, write })?;
            measure(engine, &Phase { bench, phase, step: Step::MovePieces { shared, size, count, write } })?;
            engine.all(&Step::CloseFile)?;
        }
        engine.all(&Step::RemoveFile { path, shared })?;
    }
    for (bench, hard) in [("mdtest-easy", false), ("mdtest-hard", true)] {
        let path = format!("{}/{bench}", volumes.base);
        for rank in 0..if hard { 1 } else { engine.procs() } {
            let path = if hard { path.clone() } else { format!("{path}/{rank}") };
            engine.alone(&Step::MakeDirectory { path })?;
        }
        let count = volumes.files;
        let steps = [
            ("create", Step::MakeFiles { path: path.clone(), hard, count, at_once: false }),
            ("stat", Step::StatFiles { path: path.clone(), hard, count }),
            ("read", Step::ReadFiles { path: path.clone(), hard, count }),
            ("remove", Step::RemoveFiles { path: path.clone(), hard, count }),
        ];
        if volumes.warm {
            engine.all(&steps[0].1)?;
            engine.all(&steps[3].1)?;
        }
        for (phase, step) in steps {
            measure(engine, &Phase { bench, phase, step })?;
        }
    }
    Ok(())
}
