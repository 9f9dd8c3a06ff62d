//! One run's server, a process of its own.

use crate::call_times::CallTimes;
use crate::job::{Job, Tally};
use crate::options::Serve;
use crate::schedulers;
use serde_json::{Map, Value, json};

/// Serves one client, and prints what came of it as one line.
pub fn run(serve: &Serve) -> Result<(), String> {
    let scheduler = schedulers::find(&serve.scheduler)?;
    let job = Job {
        mode: serve.mode,
        size: serve.size,
        depth: serve.depth,
        path: serve.path.clone(),
        extent: serve.extent,
        seconds: serve.seconds,
        memory_max: serve.memory_max,
    };
    let mut tally = Tally::new();
    let is_full = (scheduler.run)(&job, &mut tally)?;
    println!("{}", line(&job, &tally, is_full));
    Ok(())
}

fn line(job: &Job, tally: &Tally, is_full: bool) -> Value {
    const MIB: f64 = 1_048_576.0;
    let cpu = (reactor::process::cpu_time() - tally.cpu_before).max(1) as f64 / 1e9;
    let (packets, seconds) = (tally.packets as f64, tally.seconds());
    let resident = peak_resident();
    let mut line = json!({
        "mib_per_s": rounded(packets * job.size as f64 / MIB / seconds, 1),
        "packets_per_s": rounded(packets / seconds, 0),
        "packets_per_cpu_s": rounded(packets / cpu, 0),
        "cpu_share": rounded(cpu / seconds, 3),
        "packets": tally.packets,
        "held_most": tally.held_most,
        "buffers_mib": rounded(tally.buffers as f64 / MIB, 1),
        "rest_mib": rounded(resident.saturating_sub(tally.buffers) as f64 / MIB, 1),
        "memory_full": is_full,
    });
    if let Value::Object(line) = &mut line {
        put_times(line, "", &tally.times);
        put_times(line, "handover_", &tally.handover);
        put_times(line, "resumption_", &tally.resumption);
    }
    line
}

fn put_times(line: &mut Map<String, Value>, prefix: &str, times: &CallTimes) {
    let Some(quantiles) = times.quantiles() else { return };
    for (name, time) in [("p50", quantiles.p50), ("p99", quantiles.p99), ("p999", quantiles.p999)] {
        line.insert(format!("{prefix}{name}_us"), rounded(time as f64 / 1e3, 2));
    }
}

pub fn rounded(value: f64, digits: i32) -> Value {
    let scale = 10f64.powi(digits);
    json!((value * scale).round() / scale)
}

/// The most memory that this process had at a time, in bytes.
fn peak_resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()).unwrap_or(0) << 10
}
