//! Whether a seed says it all.

use sim::profile::Overrides;
use sim::run::run_seed;
use std::process::Command;

/// Goal: a seed replays exactly, faults and all.
/// Method: run some seeds twice in one process and compare the hashes of everything that happened, and the reports.
#[test]
fn same_seed_same_run() {
    for seed in [3, 11, 12, 29, 41] {
        let first = run_seed(seed, &Overrides::default(), false);
        let second = run_seed(seed, &Overrides::default(), false);
        assert_eq!(first, second, "seed {seed}");
    }
}

/// Goal: different seeds are different runs.
#[test]
fn other_seed_other_run() {
    let overrides = Overrides { steps: Some(20), ..Overrides::default() };
    assert_ne!(run_seed(1, &overrides, false).trace_hash, run_seed(2, &overrides, false).trace_hash);
}

/// Goal: a soak ends at the first run that fails, with exit status 1, and says how to see that one again; the command
/// that it says fails in the same way.
#[test]
fn a_soak_ends_at_the_first_failure() {
    let run = |arguments: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_sim")).args(arguments.split(' ')).output().expect("it runs");
        let complaint = String::from_utf8(output.stderr).expect("words");
        assert_eq!(output.status.code(), Some(1), "{arguments}: {complaint}");
        (String::from_utf8(output.stdout).expect("words"), complaint)
    };
    for jobs in [1, 2] {
        let soak = format!("--forever --seeds 70..71 --steps 10 --no-faults --sabotage --jobs {jobs}");
        let (told, complaint) = run(&soak);
        assert!(told.contains("0 passed, ") || jobs > 1, "{told}");
        let replay = complaint.lines().find_map(|line| line.trim().strip_prefix("replay: sim ")).expect("told");
        let (_, again) = run(replay.trim_end_matches(" --trace"));
        let failure = |text: &str| text.lines().skip_while(|line| !line.contains(" FAILED ")).nth(1).map(str::to_owned);
        assert!(failure(&complaint).is_some_and(|words| words.contains("leaked")), "{complaint}");
        assert_eq!(failure(&complaint), failure(&again), "{replay}");
    }
}
