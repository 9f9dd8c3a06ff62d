//! fio beside us (<https://github.com/axboe/fio>, package `fio`): the same job, with its own defaults.

use crate::device_load::{DeviceLoad, DeviceResult, INTERFACES, Interface, PATTERNS, word_of};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// The job file of a point.
pub fn job(load: &DeviceLoad, path: &Path, size: u64, is_direct: bool, seconds: f64) -> String {
    let engine = match load.interface {
        Interface::Sync => "psync",
        Interface::IoUring => "io_uring",
        Interface::Aio => "libaio",
    };
    let registered = if load.interface == Interface::IoUring { "fixedbufs=1\nregisterfiles=1\n" } else { "" };
    format!(
        "[{name}]\nfilename={path}\nsize={size}\nrw={pattern}\nbs={block}\niodepth={depth}\nioengine={engine}\n\
         {registered}direct={direct}\nnorandommap=1\nrandrepeat=0\ntime_based=1\nruntime={milliseconds}ms\nthread=1\n\
         allow_file_create=0\n",
        name = word_of(&INTERFACES, load.interface),
        path = path.display(),
        pattern = word_of(&PATTERNS, load.pattern),
        block = load.size,
        depth = load.depth,
        direct = u8::from(is_direct),
        milliseconds = (seconds * 1e3).ceil() as u64,
    )
}

/// Runs a job. Errors: words.
pub fn run(job: &str, is_write: bool) -> Result<DeviceResult, String> {
    let mut command = Command::new("fio");
    command.args(["--output-format=json", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut fio = command.spawn().map_err(|error| format!("fio: {error}; install the package fio"))?;
    if let Some(mut input) = fio.stdin.take() {
        input.write_all(job.as_bytes()).map_err(|error| format!("fio: {error}"))?;
    }
    let output = fio.wait_with_output().map_err(|error| format!("fio: {error}"))?;
    if !output.status.success() {
        return Err(format!("fio: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    read(&String::from_utf8_lossy(&output.stdout), is_write).ok_or_else(|| "fio: says nothing of its job".to_owned())
}

/// What its output says.
fn read(text: &str, is_write: bool) -> Option<DeviceResult> {
    // Warnings may stand before it.
    let output: Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    let job = &output["jobs"][0];
    let side = &job[if is_write { "write" } else { "read" }];
    let seconds = side["runtime"].as_f64()? / 1e3;
    let share = (job["usr_cpu"].as_f64()? + job["sys_cpu"].as_f64()?) / 100.0;
    Some(DeviceResult {
        bytes: side["io_bytes"].as_u64()?,
        seconds,
        cpu_ns: (share * seconds * 1e9) as u64,
        times: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a job says what we do, and its output is understood.
    #[test]
    fn jobs_and_output() {
        let load = DeviceLoad { interface: Interface::IoUring, pattern: PATTERNS[2].0, size: 4096, depth: 32 };
        let job = job(&load, Path::new("/x"), 1 << 30, true, 0.5);
        for line in ["rw=randread", "bs=4096", "iodepth=32", "fixedbufs=1", "direct=1", "runtime=500ms"] {
            assert!(job.lines().any(|other| other == line), "{line} in {job}");
        }
        let text = "fio: a warning
            {\"jobs\":[{\"usr_cpu\":10.0,\"sys_cpu\":15.0,\"read\":{\"io_bytes\":8000,\"runtime\":2000},\
            \"write\":{\"io_bytes\":0,\"runtime\":0}}]}";
        let measured = read(text, false).unwrap();
        assert_eq!((measured.bytes, measured.seconds, measured.cpu_ns), (8000, 2.0, 500_000_000));
        assert!(read("nothing", false).is_none());
    }
}
