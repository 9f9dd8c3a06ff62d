//! Models of every pair of parties: loom tries all orders in which they can meet and all values that loads may see, as
//! far as the memory model of C11 allows. Each model passes, and fails with any of its barriers left out. The table of
//! barriers is in the crate's head.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p shm --profile checked --test loom_models` runs them.

#![cfg(loom)]

mod cells;
mod hazards;
mod segments;
mod submissions;

use loom::thread;
use shm::sync::{BARRIERS, Barrier, Fault, set_fault};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Switches away from a thread that could go on. Faults of two parties show with two; three leave room.
const PREEMPTION_COUNT_MAX: usize = 4;
/// Operations of one run.
const BRANCH_COUNT_MAX: usize = 5_000;

thread_local! {
    /// Whether the second party begins. Loom takes the order in which threads were made for a first try, and derives
    /// from it which others are worth trying; it finds more from both than from one.
    static IS_SWAPPED: Cell<bool> = const { Cell::new(false) };
}

/// Has two parties meet, and tells how each of them fares.
fn race<A: 'static, B: 'static>(one: impl FnOnce() -> A + 'static, other: impl FnOnce() -> B + 'static) -> (A, B) {
    let join = "a party ends";
    if IS_SWAPPED.get() {
        let other = thread::spawn(other);
        let one = thread::spawn(one);
        return (one.join().expect(join), other.join().expect(join));
    }
    let one = thread::spawn(one);
    let other = thread::spawn(other);
    (one.join().expect(join), other.join().expect(join))
}

/// Runs a model in all orders. Errors: what it has found.
fn explore(fault: Fault, model: fn()) -> Result<(), String> {
    let mut builder = loom::model::Builder::new();
    (builder.preemption_bound, builder.max_branches) = (Some(PREEMPTION_COUNT_MAX), BRANCH_COUNT_MAX);
    set_fault(fault);
    let result = [false, true].into_iter().try_for_each(|is_swapped| {
        IS_SWAPPED.set(is_swapped);
        catch_unwind(AssertUnwindSafe(|| builder.check(model)))
    });
    set_fault(Fault::None);
    result.map_err(|panic| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => other.downcast::<&str>().map_or_else(|_| "a panic without text".into(), |text| text.to_string()),
    })
}

/// What an assertion of a model says when it fails, so that other panics are not taken for it.
macro_rules! found {
    ($condition:expr, $($text:tt)*) => { assert!($condition, "found: {}", format_args!($($text)*)) };
}
use found;

fn holds(model: fn()) {
    assert_eq!(explore(Fault::None, model), Ok(()));
}

fn is_found(fault: Fault, model: fn()) {
    let text = explore(fault, model).expect_err("a model notices what is left out");
    let is_race = text.contains("Causality violation");
    assert!(text.starts_with("found: ") || is_race, "{fault:?}: the model fails otherwise: {text}");
}

/// Tests for models: that each passes, and that it fails with each of its barriers left out, or weakened.
macro_rules! models {
    ($($module:ident::$model:ident: [$($barrier:ident)*] [$($full:ident)*];)*) => {
        mod models {
            $(
                #[allow(non_snake_case)]
                mod $model {
                    #[allow(unused_imports)]
                    use crate::{$module::$model as model, Barrier, Fault, holds, is_found};

                    #[test]
                    fn holds_as_it_is() {
                        holds(model);
                    }

                    $(
                        #[test]
                        fn $barrier() {
                            is_found(Fault::LeftOut(Barrier::$barrier), model);
                        }
                    )*

                    mod weakened {
                        $(
                            #[test]
                            fn $full() {
                                super::is_found(super::Fault::Weakened(super::Barrier::$full), super::model);
                            }
                        )*
                    }
                }
            )*
        }

        const COVERED: &[(&str, &[Barrier])] = &[$((stringify!($model), &[$(Barrier::$barrier),*])),*];
    };
}

models! {
    cells::words_of_a_cell: [CellOdd CellEven CellFirstLook CellLastLook] [];
    cells::bytes_of_a_cell: [CellOdd CellLastLook] [];
    cells::stamped_bytes: [StampFirst StampLastLook] [];
    hazards::hold_or_take_away: [HazardHold HazardLook] [HazardHold HazardLook];
    hazards::release_or_take_away: [HazardRelease HazardLook] [HazardRelease HazardLook];
    hazards::hold_or_end: [HazardHold HazardEnd] [HazardHold HazardEnd];
    hazards::release_or_end: [HazardRelease HazardEnd] [HazardRelease HazardEnd];
    hazards::begin_or_hold: [HazardBegin HazardStands] [];
    hazards::reads_under_one_of_two: [HazardIdLeave HazardIdLook] [];
    hazards::reads_under_the_last: [HazardCountLeave HazardCountLook] [];
    hazards::reads_before_another: [HazardIdReuse HazardIdLook] [];
    submissions::commit_or_step: [SubmissionBegin StepForbid SubmissionCommit StateLook PermissionLeave PermissionLook]
        [SubmissionBegin StepForbid];
    submissions::commit_or_look: [SubmissionCommit StateLook] [];
    submissions::look_while_about_to: [SubmissionNote SubmissionCommit StateLook] [];
    submissions::slots_again: [TakenLeave TakenLook] [];
    submissions::taken_is_seen: [TakenLeave TakenLook] [];
    submissions::queues_of_others: [OwnerLeave OwnerLook] [];
    submissions::unlocked_is_seen: [LockFree LockLook] [];
    submissions::unlocked_is_seen_by_the_next: [LockFree SubmissionBegin] [];
    submissions::unlocked_is_seen_by_writes: [LockFree LockLook] [];
    submissions::write_or_removal: [WriteNumber SubmissionBegin] [WriteNumber SubmissionBegin];
    submissions::order_of_writes: [SubmissionBegin NumberLook] [];
    submissions::written_is_seen: [OpenLeave OpenLook] [];
    submissions::numbers: [NumbersLeave NumbersLook] [];
    segments::bytes: [RingPut RingPutLook] [];
    segments::room: [RingTaken RingTakenLook] [];
    segments::origin: [RingPut RingPutLook] [];
    segments::sleep_for_bytes: [SleepLook WakeLook] [SleepLook WakeLook];
    segments::sleep_for_room: [SleepLook WakeLook] [SleepLook WakeLook];
    segments::one_wakes: [] [];
}

/// Goal: every barrier is left out in some model, and the table in the crate's head names it with one of its models.
#[test]
fn every_barrier_has_a_model() {
    let head = include_str!("../../src/lib.rs");
    for barrier in BARRIERS {
        let name = format!("//! | `{barrier:?}` |");
        let Some(row) = head.lines().find(|line| line.starts_with(&name)) else { panic!("no row for {barrier:?}") };
        let names_model = |(model, barriers): &(&str, &[Barrier])| {
            barriers.contains(barrier) && row.ends_with(&format!("| `{model}` |"))
        };
        assert!(COVERED.iter().any(names_model), "no model of {barrier:?}'s is in its row");
    }
    assert_eq!(head.matches("//! | `").count(), BARRIERS.len(), "rows without a barrier");
}
