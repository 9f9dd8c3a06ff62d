//! Other programs that want the cores while something is measured: processes that compute, or that wait as busily as
//! the barriers of some MPI libraries do.

use crate::options::{self, LoadKind};
use reactor::workers::HeldSignals;
use std::hint::{black_box, spin_loop};
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// Steps of arithmetic between two looks at whether to go on, which nobody ever ends.
const STEP_COUNT: u64 = 1 << 20;

/// Running processes of `--load`; they are killed when this is dropped, and by the kernel when this program dies.
pub struct Load {
    children: Vec<Child>,
}

impl Load {
    /// Starts them, and waits until each is at work.
    pub fn start(kinds: &[(LoadKind, u32)], signals: &HeldSignals) -> Result<Load, String> {
        let failed = |error: std::io::Error| format!("start of the processes of --load: {error}");
        let program = std::env::current_exe().map_err(failed)?;
        let mut load = Load { children: Vec::new() };
        for (kind, count) in kinds {
            for _ in 0..*count {
                let mut command = Command::new(&program);
                command.args(["load", "--worker=0", "--group-memory=none", "--directory=none"]);
                command.arg(format!("--load={}:1", kind.name())).stdin(Stdio::null()).stdout(Stdio::piped());
                for variable in options::variables() {
                    command.env_remove(variable);
                }
                signals.release_in_worker(&mut command);
                load.children.push(command.spawn().map_err(failed)?);
            }
        }
        for child in &mut load.children {
            let Some(output) = &mut child.stdout else { continue };
            output.read_exact(&mut [0]).map_err(failed)?;
        }
        Ok(load)
    }

    /// Ends them. An error if one had ended by itself, so that what was measured was beside fewer.
    pub fn end(mut self) -> Result<(), String> {
        for child in &mut self.children {
            if let Some(status) = child.try_wait().map_err(|error| format!("processes of --load: {error}"))? {
                return Err(format!("a process of --load ended by itself: {status}; measure again"));
            }
        }
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended meanwhile; then both calls have nothing to do.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The life of such a process: until it is killed.
pub fn work(kind: LoadKind) -> ! {
    let mut output = std::io::stdout().lock();
    // Whoever waits for this has gone if it fails, and this process goes with it.
    let _ = output.write_all(b".").and_then(|()| output.flush());
    let never = AtomicBool::new(false);
    let mut value = 1;
    loop {
        match kind {
            LoadKind::Compute => value = (0..STEP_COUNT).fold(black_box(value), |value, _| crate::target::mix(value)),
            LoadKind::Spin => {
                while !black_box(&never).load(Ordering::Acquire) {
                    spin_loop();
                }
            }
            LoadKind::Yield => {
                while !black_box(&never).load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
            }
        }
    }
}
