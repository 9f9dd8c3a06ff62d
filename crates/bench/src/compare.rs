//! The leader: brings up what is to be measured, runs the benches in turns on one or two targets, reports, cleans up.

use crate::call_times::CallTimes;
use crate::cluster::Cluster;
use crate::load::Load;
use crate::options::{Bench, Options, TargetName};
use crate::processes::{RunSite, Stop, run_group};
use crate::report::{Record, call_table, table};
use crate::target_posix::Posix;
use reactor::workers::HeldSignals;
use std::io::{ErrorKind, Write};

/// Measures what the options ask for; the status to exit with. Whatever happens, nothing is left running or behind.
pub fn lead(options: &Options) -> u8 {
    let signals = match HeldSignals::hold() {
        Ok(signals) => signals,
        Err(error) => return report_stop(&Stop::Failed(format!("signals: {error}"))),
    };
    let targets: Vec<TargetName> =
        [Some(&options.target), options.compare.as_ref()].into_iter().flatten().cloned().collect();
    for target in &targets {
        if let TargetName::Posix(root) = target
            && let Err(message) = Posix::open(root)
        {
            return report_stop(&Stop::Failed(message));
        }
    }
    // Cold runs have clusters of their own.
    let wanted = targets.contains(&TargetName::Tabane) && !options.cold;
    let cluster = match wanted.then(|| Cluster::find_or_start(options, &signals)) {
        Some(Ok(cluster)) => Some(cluster),
        Some(Err(message)) => return report_stop(&Stop::Failed(message)),
        None => None,
    };
    let leader = Leader { options, signals, cluster, directory: format!("/tabane-bench-{}", std::process::id()) };
    let measured = leader.measure(&targets);
    let cleaned = leader.clean(&targets);
    let stopped = leader.cluster.map_or(Ok(()), |cluster| cluster.stop(&leader.signals));
    let mut status = 0;
    if let Err(stop) = measured {
        status = report_stop(&stop);
    }
    for failure in [cleaned, stopped].into_iter().filter_map(Result::err) {
        status = status.max(report_stop(&Stop::Failed(failure)));
    }
    status
}

fn report_stop(stop: &Stop) -> u8 {
    match stop {
        Stop::Interrupted(signal) => {
            eprintln!("tabane-bench: stopped by signal {signal}");
            128u8.saturating_add(*signal as u8)
        }
        Stop::Failed(message) => {
            eprintln!("tabane-bench: {message}");
            1
        }
    }
}

struct Leader<'a> {
    options: &'a Options,
    signals: HeldSignals,
    /// Of all runs, unless these are cold.
    cluster: Option<Cluster>,
    /// On each target; nobody else uses it.
    directory: String,
}

impl Leader<'_> {
    /// All benches in turns: A B A B ..., so that both targets, and all benches, see the same neighbours and the same
    /// memory.
    fn measure(&self, targets: &[TargetName]) -> Result<(), Stop> {
        let mut records = Vec::new();
        for _ in 0..self.options.repeat {
            for bench in &self.options.benches {
                // Bare sockets are no target's; their figures stand in the first one's column.
                let targets = if bench.is_bare() { &targets[..1] } else { targets };
                for target in targets {
                    if let Some(signal) = self.signals.take_interruption() {
                        return Err(Stop::Interrupted(signal));
                    }
                    let run = self.run_in_turn(*bench, target)?;
                    print(&run)?;
                    keep(&mut records, run);
                }
            }
        }
        let names: Vec<String> = targets.iter().map(TargetName::to_string).collect();
        eprintln!("\n{}{}", self.heading(&records), table(&records, &names));
        let calls = call_table(&records, &names);
        if !calls.is_empty() {
            eprintln!("{calls}");
        }
        Ok(())
    }

    /// One run of a bench on a target, beside the load, and on a cluster of its own if it is cold.
    fn run_in_turn(&self, bench: Bench, target: &TargetName) -> Result<Vec<Record>, Stop> {
        if !self.options.cold || *target != TargetName::Tabane || bench.is_bare() {
            return self.run_beside_load(bench, target, self.cluster.as_ref());
        }
        let cluster = Cluster::find_or_start(self.options, &self.signals)?;
        let run = self.run_beside_load(bench, target, Some(&cluster));
        let stopped = cluster.stop(&self.signals);
        let run = run?;
        stopped?;
        Ok(run)
    }

    fn run_beside_load(
        &self,
        bench: Bench,
        target: &TargetName,
        cluster: Option<&Cluster>,
    ) -> Result<Vec<Record>, Stop> {
        let load = Load::start(&self.options.load, &self.signals)?;
        let run = self.run(self.options, bench, target, cluster)?;
        load.end()?;
        Ok(run)
    }

    fn heading(&self, records: &[Record]) -> String {
        let options = self.options;
        let cluster = match records.iter().find(|record| record.servers > 0) {
            Some(record) => format!(", {} servers over {}", record.servers, record.transport),
            None => String::new(),
        };
        let verified = if options.verify { ", contents verified" } else { "" };
        let cold = if options.cold { ", cold" } else { "" };
        let load: String =
            options.load.iter().map(|(kind, count)| format!(", beside {count} that {}", kind.name())).collect();
        let runs =
            if options.repeat == 1 { "one run".to_string() } else { format!("medians of {} runs", options.repeat) };
        format!("{} processes{cluster}, {runs}{cold}{load}{verified}\n", options.procs)
    }

    fn run(
        &self,
        options: &Options,
        bench: Bench,
        target: &TargetName,
        cluster: Option<&Cluster>,
    ) -> Result<Vec<Record>, Stop> {
        let cluster = cluster.filter(|_| *target == TargetName::Tabane);
        let place = RunSite { target, cluster: cluster.map(|c| c.path.as_path()), directory: &self.directory };
        let mut group = options.clone();
        if bench.is_bare() {
            group.set_procs(options.procs + options.servers);
        }
        let phases = run_group(&group, bench, &place, &self.signals)?;
        let record = |(phase, measured)| Record {
            bench,
            phase,
            target: target.to_string(),
            procs: options.procs,
            servers: cluster.map_or(0, |cluster| cluster.server_count),
            transport: cluster.map_or("none".to_string(), |cluster| cluster.transport.clone()),
            measured,
            // A ping has no contents to check. A search that met or found anything but what was made is an error in any
            // case.
            verified: bench == Bench::Find || (options.verify && bench != Bench::Ping && !bench.is_bare()),
        };
        Ok(bench.phases().iter().copied().zip(phases).map(record).collect())
    }

    /// Removes the directory of this run everywhere but on a cluster of our own, which goes as a whole.
    fn clean(&self, targets: &[TargetName]) -> Result<(), String> {
        if self.options.benches.contains(&Bench::Names) {
            eprintln!("the names are left in {}", self.directory);
            return Ok(());
        }
        let mut alone = self.options.clone();
        alone.set_procs(1);
        for target in targets {
            if *target == TargetName::Tabane && self.cluster.as_ref().is_none_or(Cluster::is_own) {
                continue;
            }
            match self.run(&alone, Bench::Clean, target, self.cluster.as_ref()) {
                Ok(_) => {}
                Err(Stop::Failed(message)) => {
                    return Err(format!("{} may be left on {target}: {message}", self.directory));
                }
                // The second Ctrl-C: the user does not want to wait.
                Err(Stop::Interrupted(_)) => return Err(format!("{} is left on {target}", self.directory)),
            }
        }
        Ok(())
    }
}

/// Keeps what the table needs. The times of calls are kept once for all runs of a phase, so that memory does not grow
/// with them.
fn keep(records: &mut Vec<Record>, run: Vec<Record>) {
    for mut record in run {
        let key = |record: &Record| (record.bench, record.phase, record.target.clone());
        let this = key(&record);
        if let Some(first) = records.iter_mut().find(|kept| key(kept) == this) {
            first.measured.calls.add(&record.measured.calls);
            record.measured.calls = CallTimes::none();
        }
        records.push(record);
    }
}

fn print(records: &[Record]) -> Result<(), Stop> {
    let mut output = std::io::stdout().lock();
    for record in records {
        match writeln!(output, "{}", record.json()).and_then(|()| output.flush()) {
            Ok(()) => {}
            // Whoever read the lines has gone; there is nobody to measure for.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Err(Stop::Interrupted(libc::SIGPIPE)),
            Err(error) => return Err(Stop::Failed(format!("standard output: {error}"))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::record;

    /// Goal: the times of the calls of all runs of a phase are kept together, and apart from those of others.
    #[test]
    fn call_times_are_kept_once() {
        let mut records = Vec::new();
        for (bench, target, time) in
            [(Bench::Find, "a", 1), (Bench::Find, "b", 2), (Bench::Ping, "a", 3), (Bench::Find, "a", 4)]
        {
            let mut run = record(bench, target, 10);
            run.measured.calls.record(time);
            keep(&mut records, vec![run]);
        }
        let calls: Vec<(u64, u64)> =
            records.iter().map(|record| (record.measured.calls.call_count(), record.measured.calls.most())).collect();
        assert_eq!(calls, [(2, 4), (1, 2), (1, 3), (0, 0)]);
    }
}
