//! What processes of one machine share in memory, apart from the loop that uses it: structs of atomics with their cache
//! lines, and the protocols on them.
//!
//! | module | who writes | who else is there | what it is |
//! |---|---|---|---|
//! | [`cells`] | a server | clients read | sequence-lock cells |
//! | [`stamps`] | a server | clients read | version stamps of 64 KiB of a large memory |
//! | [`hazard_pointers`] | a client | its server looks | what a client has open |
//! | [`client_counters`] | a client | its server looks | what a client does by itself |
//! | [`submission`] | clients | their server takes it up | submission queues, intent locks, words of written files |
//! | [`segment`] | both | | two rings of bytes, and sleep and wake-up |
//! | [`mapping_lock`] | a lender | borrowers | locks on open files that tell who has pages mapped |
//!
//! Nothing here knows of regions, sockets or tasks; `reactor` does, and uses this. Memory lies as the structs say, for
//! which assertions stand beside them.
//!
//! # Fences
//!
//! Every fence and every ordering that is not relaxed has a name ([`sync::Barrier`]) and stands in this table: what one
//! party does before it / and after it, and which barriers of the other party it meets. `tests/loom_models` has a model
//! for each pair of parties, which passes, and fails with any of its barriers left out.
//!
//! Loom tries the orders and the values of loads that the memory model of C11 allows, whatever the processor that it
//! runs on; so it tries the weaker orderings of aarch64 as well. It does not let a load see what is stored later in the
//! order that it tries; where that matters, models watch words that one side has for itself ([`sync::Watch`]). It takes
//! SeqCst accesses for AcqRel ones: there are none here, but full fences.
//!
//! The one ordering that is not here is that of the version of submissions, which no two processes look at at a time.
//!
//! | barrier | kind | one party: first / then | the other one's | a model |
//! |---|---|---|---|---|
//! | `CellOdd` | release fence | server: odd version / words, and what they led to | CellLastLook | `words_of_a_cell` |
//! | `CellEven` | release store | server: words / even version | CellFirstLook | `words_of_a_cell` |
//! | `CellFirstLook` | acquire load | client: version / words | CellEven | `words_of_a_cell` |
//! | `CellLastLook` | acquire fence | client: words / version again | CellOdd | `bytes_of_a_cell` |
//! | `StampFirst` | release fence | server: stamps / bytes | StampLastLook | `stamped_bytes` |
//! | `StampLastLook` | acquire fence | client: bytes / stamps | StampFirst | `stamped_bytes` |
//! | `HazardHold` | full fence | client: id / cell, server | HazardLook, HazardEnd | `hold_or_take_away` |
//! | `HazardLook` | full fence | server: cell / look at ids | HazardHold, HazardRelease | `hold_or_take_away` |
//! | `HazardRelease` | full fence | client: no id / cell, server | HazardLook, HazardEnd | `release_or_end` |
//! | `HazardEnd` | full fence | server: no life / take over ids | HazardHold, HazardRelease | `hold_or_end` |
//! | `HazardBegin` | release store | server: cells / life | HazardStands | `begin_or_hold` |
//! | `HazardStands` | acquire load | client: life / cells | HazardBegin | `begin_or_hold` |
//! | `HazardIdLeave` | release store | client: reads / no id | HazardIdLook | `reads_under_one_of_two` |
//! | `HazardIdReuse` | release store | client: reads / another id | HazardIdLook | `reads_before_another` |
//! | `HazardIdLook` | acquire load | server: ids / its end | HazardIdLeave, HazardIdReuse | `reads_under_one_of_two` |
//! | `HazardCountLeave` | release store | client: reads / count | HazardCountLook | `reads_under_the_last` |
//! | `HazardCountLook` | acquire load | server: count / giving up | HazardCountLeave | `reads_under_the_last` |
//! | `SubmissionBegin` | full fence | client: bit, locks / all else | StepForbid, WriteNumber | `commit_or_step` |
//! | `StepForbid` | full fence | server: permission / look at bits | SubmissionBegin | `commit_or_step` |
//! | `WriteNumber` | full fence | client: written word / look at lock | SubmissionBegin | `write_or_removal` |
//! | `SubmissionCommit` | release exchange | client: slot, looks / state | StateLook | `commit_or_look` |
//! | `SubmissionNote` | release store | client: what it committed / next bit | StateLook | `look_while_about_to` |
//! | `StateLook` | acquire load | server: state / slots | SubmissionCommit, SubmissionNote | `commit_or_look` |
//! | `PermissionLeave` | release store | server: the step / permission | PermissionLook | `commit_or_step` |
//! | `PermissionLook` | acquire load | client: permission / looks | PermissionLeave | `commit_or_step` |
//! | `TakenLeave` | release store | server: slot read, changes / taken | TakenLook | `slots_again` |
//! | `TakenLook` | acquire load | client: taken / slot written, looks | TakenLeave | `taken_is_seen` |
//! | `OwnerLeave` | release store | server: fresh queue / owner | OwnerLook | `queues_of_others` |
//! | `OwnerLook` | acquire load | client: owner / queue | OwnerLeave | `queues_of_others` |
//! | `LockFree` | release exchange | server: changes / free lock | LockLook, SubmissionBegin | `unlocked_is_seen` |
//! | `LockLook` | acquire load | client: free lock / looks | LockFree | `unlocked_is_seen` |
//! | `NumberLook` | acquire load | server: next number / states | SubmissionBegin | `order_of_writes` |
//! | `OpenLeave` | release store | server: changes / open number | OpenLook | `written_is_seen` |
//! | `OpenLook` | acquire load | client: open number / looks | OpenLeave | `written_is_seen` |
//! | `NumbersLeave` | release store | server: start / end | NumbersLook | `numbers` |
//! | `NumbersLook` | acquire load | client: end / start | NumbersLeave | `numbers` |
//! | `RingPut` | release store | sender: bytes, origin / put | RingPutLook | `bytes` |
//! | `RingPutLook` | acquire load | receiver: put / bytes, origin | RingPut | `bytes` |
//! | `RingTaken` | release store | receiver: bytes read / taken | RingTakenLook | `room` |
//! | `RingTakenLook` | acquire load | sender: taken / bytes written | RingTaken | `room` |
//! | `SleepLook` | full fence | sleeper: wishes / last look | WakeLook | `sleep_for_bytes` |
//! | `WakeLook` | full fence | peer: bytes or room / wishes | SleepLook | `sleep_for_bytes` |

pub mod cells;
pub mod client_counters;
pub mod copying;
pub mod hazard_pointers;
pub mod mapping;
pub mod mapping_lock;
pub mod segment;
pub mod stamps;
pub mod submission;
pub mod sync;

/// Turns the -1 of a system call into its error.
fn check(result: libc::c_int) -> std::io::Result<libc::c_int> {
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(result) }
}
