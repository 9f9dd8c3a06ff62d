//! Runs over a backing tree: rules about it that are broken on purpose are noticed, and nothing is said where none is.

use server::BackingFault;
use sim::profile::{Faults, Flavour, Overrides, Profile, Sabotage};
use sim::run::run_profile;

fn problems_of(seed: u64, fault: Option<BackingFault>, flavour: Flavour) -> Vec<String> {
    let overrides = Overrides { no_faults: fault.is_some(), backing: true, ..Overrides::default() };
    let mut profile = Profile::new(seed, &overrides);
    profile.flavour = flavour;
    if let Some(fault) = fault {
        profile.sabotage = Sabotage::Backing(fault);
        profile.faults = Faults::default();
    }
    run_profile(&profile, false).problems
}

/// How many of some seeds say one of these words when a rule is broken.
fn noticed(fault: BackingFault, flavour: Flavour, words: &[&str]) -> usize {
    noticed_of(8, fault, flavour, words)
}

fn noticed_of(seeds: u64, fault: BackingFault, flavour: Flavour, words: &[&str]) -> usize {
    let says = |problem: &String| words.iter().any(|words| problem.contains(words));
    (0..seeds).filter(|seed| problems_of(*seed, Some(fault), flavour).iter().any(says)).count()
}

/// Goal: with all faults there are, and no rule broken, all is well.
#[test]
fn without_sabotage_all_is_well() {
    for seed in 1000u64..1012 {
        let flavour = if seed.is_multiple_of(2) { Flavour::Names } else { Flavour::Mixed };
        assert_eq!(problems_of(seed, None, flavour), Vec::<String>::new(), "seed {seed}");
    }
}

/// Goal: zeros in place of what is behind are noticed.
#[test]
fn absent_as_zeros() {
    let words = ["no order of the writes explains", "torn or mixed"];
    let count = noticed(BackingFault::AbsentAsZeros, Flavour::Contents, &words);
    assert!(count >= 4, "noticed in {count} of 8 runs");
}

/// Goal: names that are behind and count as missing, because nobody has looked, are noticed.
#[test]
fn unlisted_as_empty() {
    let count = noticed(BackingFault::UnlistedAsListed, Flavour::Names, &["no order explains", "the listing misses"]);
    assert!(count >= 4, "noticed in {count} of 8 runs");
}

/// Goal: names that were removed or moved, and come back from behind, are noticed.
#[test]
fn forgotten_whiteouts() {
    let words = ["no order explains", "there is still", "several times", "does not end", "nobody made"];
    let count = noticed(BackingFault::ForgetsDifferences, Flavour::Names, &words);
    assert!(count >= 4, "noticed in {count} of 8 runs");
}

/// Goal: what is written while a flush is under way, and counts as carried, is noticed.
#[test]
fn writes_lost_in_a_flush() {
    let words = ["has other bytes there", "has another size there"];
    let count = noticed(BackingFault::LosesWritesInFlush, Flavour::Contents, &words);
    assert!(count >= 2, "noticed in {count} of 8 runs");
}

/// Goal: what counts as carried before it is synced is noticed, when the site loses its power.
#[test]
fn carried_before_it_is_synced() {
    let words = ["has other bytes there", "has another size there", "is not there", "is still there"];
    let count = noticed(BackingFault::SyncsNothing, Flavour::Contents, &words);
    assert!(count >= 2, "noticed in {count} of 8 runs");
}

/// Goal: what is dirty and goes as if it were clean is noticed.
#[test]
fn dirty_chunks_that_go() {
    let words = ["no order of the writes explains", "torn or mixed", "has other bytes there"];
    let count = noticed(BackingFault::EvictsDirty, Flavour::Contents, &words);
    assert!(count >= 4, "noticed in {count} of 8 runs");
}

/// Goal: chunks that were carried and evicted, and count as holes after the next flush, are noticed.
#[test]
fn evicted_chunks_forgotten() {
    let words = ["no order of the writes explains", "torn or mixed", "has other bytes there"];
    let count = noticed_of(24, BackingFault::ForgetsEvicted, Flavour::Contents, &words);
    assert!(count >= 4, "noticed in {count} of 24 runs");
}

/// Goal: what somebody else has put at a name, and ours replaces, is noticed.
#[test]
fn what_others_have_put_there_is_replaced() {
    let count = noticed(BackingFault::ReplacesOthers, Flavour::Mixed, &["theirs is not there any more"]);
    assert!(count >= 4, "noticed in {count} of 8 runs");
}

/// Goal: what is written to a chunk while a flush goes on in spite of that, and counts as carried, is noticed.
#[test]
fn chunks_lost_in_a_flush() {
    let words = ["has other bytes there", "has another size there", "no order of the writes explains", "torn or mixed"];
    let count = noticed_of(32, BackingFault::LosesChunkChanges, Flavour::Contents, &words);
    assert!(count >= 2, "noticed in {count} of 32 runs");
}

/// Goal: what was changed here and by somebody else as well, and is given up here, is noticed.
#[test]
fn changes_forgotten_for_others() {
    let words = ["theirs is not there any more", "quarrel about"];
    let count = noticed_of(24, BackingFault::ForgetsChanges, Flavour::Mixed, &words);
    assert!(count >= 4, "noticed in {count} of 24 runs");
}

/// Goal: names of a file that stay those of its version of before behind are noticed.
#[test]
fn other_names_forgotten() {
    let words = ["are one file here, and not there", "has other bytes there", "has another size there"];
    let count = noticed_of(48, BackingFault::ForgetsLinks, Flavour::Mixed, &words);
    assert!(count >= 2, "noticed in {count} of 48 runs");
}

/// Goal: a sync that has ended before its file is behind is noticed.
#[test]
fn syncs_that_end_too_soon() {
    let words = ["no order of the writes explains", "torn or mixed"];
    let count = noticed(BackingFault::FsyncsTooSoon, Flavour::Contents, &words);
    assert!(count >= 2, "noticed in {count} of 8 runs");
}
