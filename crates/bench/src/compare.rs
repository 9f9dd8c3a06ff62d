//! The leader: brings up what is to be measured, runs the benches in turns on one or two targets, reports, cleans up.

use crate::cluster::Cluster;
use crate::options::{Bench, Options, TargetName};
use crate::processes::{RunSite, Stop, run_group};
use crate::report::{Record, table};
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
    let cluster = match targets.contains(&TargetName::Tabane).then(|| Cluster::find_or_start(options, &signals)) {
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
                    let run = self.run(self.options, *bench, target)?;
                    print(&run)?;
                    records.extend(run);
                }
            }
        }
        let names: Vec<String> = targets.iter().map(TargetName::to_string).collect();
        eprintln!("\n{}{}", self.heading(), table(&records, &names));
        Ok(())
    }

    fn heading(&self) -> String {
        let options = self.options;
        let cluster = match &self.cluster {
            Some(cluster) => format!(", {} servers over {}", cluster.server_count, cluster.transport),
            None => String::new(),
        };
        let verified = if options.verify { ", contents verified" } else { "" };
        let runs =
            if options.repeat == 1 { "one run".to_string() } else { format!("medians of {} runs", options.repeat) };
        format!("{} processes{cluster}, {runs}{verified}\n", options.procs)
    }

    fn run(&self, options: &Options, bench: Bench, target: &TargetName) -> Result<Vec<Record>, Stop> {
        let cluster = self.cluster.as_ref().filter(|_| *target == TargetName::Tabane);
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
            if *target == TargetName::Tabane && self.cluster.as_ref().is_some_and(Cluster::is_own) {
                continue;
            }
            match self.run(&alone, Bench::Clean, target) {
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
