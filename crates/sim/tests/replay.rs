//! Whether a seed says it all.

use sim::profile::Overrides;
use sim::run::run_seed;

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
