//! What a loop runs next: pure decisions, without a clock and without I/O (docs/scheduling.md).
//!
//! A turn of the loop is made of *slices*: some steps of one class, a step being one poll of a task. The class whose
//! time is least goes next; its time is what its slices took, by its share. Times are taken only while several classes
//! have something to do, for else there is nothing to share out: a loop that serves one class reads no clock for this.
//!
//! Invariants
//! 1. A class that has something to do gets a slice in each turn, or the next turns until it has got one: its time
//!    stands still, and that of the others grows.
//! 2. Who had nothing to do has saved up nothing but one slice (`LAG_MAX`), so nobody is held up longer than that for
//!    what was not used before.
//! 3. A turn ends after `TURN_STEPS_MAX` steps, or as many fewer as these weigh more, and then events are looked at.

use crate::Nanos;
use crate::executor::Class;
use crate::task::CLASS_COUNT;

/// Bytes that one step of a connection moves at most, each way: while few tasks are ready beside it, and while more
/// are. Whoever has more to move goes to the end of the queue of his class, so connections share a class by bytes,
/// however large their messages are; short steps share them out more evenly, and wake peers more often.
const STEP_BYTES_MAX: usize = 256 << 10;
const STEP_BYTES_SHARED: usize = 64 << 10;
const FEW_TASKS: usize = 3;
/// So many more are moved at the end of a step if they are the rest of a message, which is not parted for their sake.
const STEP_BYTES_MORE: usize = 32 << 10;
/// Messages that one step of a connection takes in at most: those of 4 KiB come to as many bytes.
pub const STEP_MESSAGES_MAX: usize = 64;
/// A connection that moves so many bytes in a step, on average, is one that moves bytes, until it moves fewer than
/// this.
const DATA_BYTES_MIN: usize = 32 << 10;
const DATA_BYTES_LEFT: usize = 8 << 10;
/// The weight of the steps before in that average, of the last one's.
const STEPS_BEFORE: usize = 3;

/// The shares of the classes of a loop that has something to do for all of them, of their sum.
const SHARES: [u64; CLASS_COUNT] = [9, 9, 2];
/// Steps of one slice while others wait. A step of `Metadata` is a message or some, one of `Data` some bytes
/// (`step_bytes`), 10 to 150 us.
const SLICE_STEPS: [usize; CLASS_COUNT] = [32, 4, 1];
/// What a step counts of a turn, and how much a turn has room for.
const STEP_WEIGHTS: [usize; CLASS_COUNT] = [1, 32, 32];
const TURN_STEPS_MAX: usize = 128;
/// A turn that has done something else does no work that steps back, so that events are looked at first, but for each
/// of so many.
const PUT_OFF_MAX: u32 = 8;
/// By how much time a class may be behind when it has something to do again, nanoseconds of its share.
const LAG_MAX: u64 = 200_000 / SHARES[0];
/// What a step counts at least, where the clock stands still.
const STEP_NS_MIN: u64 = 100;

/// Some steps of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    pub class: Class,
    pub steps: usize,
    /// Whether the schedule is to be told how long it took.
    pub is_timed: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Schedule {
    /// What the slices of each class took, by its share.
    times: [u64; CLASS_COUNT],
    /// Which classes had something to do when a slice was last chosen, and the least time of those, which never falls.
    was_ready: [bool; CLASS_COUNT],
    floor: u64,
    /// What this turn has room for still.
    room: usize,
    /// Turns since work that steps back had its last step.
    put_off: u32,
}

impl Schedule {
    pub fn begin_turn(&mut self) {
        self.room = TURN_STEPS_MAX;
    }

    /// The next slice of this turn, with the numbers of tasks that are ready; nothing when events are to be looked at.
    pub fn next(&mut self, ready: [usize; CLASS_COUNT]) -> Option<Slice> {
        if self.room == 0 {
            return None;
        }
        let is_ready = ready.map(|count| count > 0);
        self.catch_up(is_ready);
        let waits = |class: &Class| is_ready[*class as usize];
        let class = Class::ALL.into_iter().filter(waits).min_by_key(|class| self.times[*class as usize])?;
        let index = class as usize;
        if class == Class::Background {
            let is_alone = !is_ready[Class::Metadata as usize] && !is_ready[Class::Data as usize];
            if is_alone && self.room < TURN_STEPS_MAX && self.put_off < PUT_OFF_MAX {
                self.put_off += 1;
                return None;
            }
            self.put_off = 0;
        }
        let is_timed = is_ready.iter().filter(|is_ready| **is_ready).count() > 1;
        // Work that steps back looks at events after each step.
        let steps_max = if is_timed || class == Class::Background { SLICE_STEPS[index] } else { usize::MAX };
        let room = self.room.div_ceil(STEP_WEIGHTS[index]);
        let steps = ready[index].min(steps_max).min(room);
        self.room = match class {
            Class::Background if !is_timed => 0,
            _ => self.room.saturating_sub(steps * STEP_WEIGHTS[index]),
        };
        Some(Slice { class, steps, is_timed })
    }

    /// A slice that is timed has taken so long.
    pub fn note(&mut self, slice: Slice, took: Nanos) {
        let index = slice.class as usize;
        self.times[index] += took.max(slice.steps as u64 * STEP_NS_MIN) / SHARES[index];
    }

    /// Who has something to do again has as much time behind him as had who was served least, but for some.
    fn catch_up(&mut self, is_ready: [bool; CLASS_COUNT]) {
        for index in (0..CLASS_COUNT).filter(|index| is_ready[*index] && !self.was_ready[*index]) {
            self.times[index] = self.times[index].max(self.floor.saturating_sub(LAG_MAX));
        }
        let least = (0..CLASS_COUNT).filter(|index| is_ready[*index]).map(|index| self.times[index]).min();
        self.floor = self.floor.max(least.unwrap_or(0));
        self.was_ready = is_ready;
    }
}

/// Bytes that a step of a connection may move while so many other tasks are ready.
pub fn step_bytes(waiting: usize) -> usize {
    if waiting <= FEW_TASKS { STEP_BYTES_MAX } else { STEP_BYTES_SHARED }
}

/// Bytes of the rest of a message that are moved in a step that may move so many.
pub fn bytes_of_rest(rest: usize, budget: usize) -> usize {
    if rest <= budget.saturating_add(STEP_BYTES_MORE) { rest } else { budget }
}

/// Of which class a connection is, by what it does.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionClass {
    class: Class,
    /// Bytes that a step moves, on average.
    average: usize,
}

impl Default for ConnectionClass {
    fn default() -> ConnectionClass {
        ConnectionClass { class: Class::Metadata, average: 0 }
    }
}

impl ConnectionClass {
    /// After a step that has moved so many bytes. The class, if it is another one now. One that moved nothing says
    /// nothing.
    pub fn note_step(&mut self, moved: usize) -> Option<Class> {
        if moved == 0 {
            return None;
        }
        self.average = (STEPS_BEFORE * self.average + moved) / (STEPS_BEFORE + 1);
        let class = match self.average {
            DATA_BYTES_MIN.. => Class::Data,
            ..DATA_BYTES_LEFT => Class::Metadata,
            _ => self.class,
        };
        (std::mem::replace(&mut self.class, class) != class).then_some(class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop in which each class has so many tasks that are ready again at once, each step of which takes so long; the
    /// part of the time that each class gets, and the longest that one waited for a step, in nanoseconds.
    struct Loop {
        schedule: Schedule,
        now: Nanos,
        used: [Nanos; CLASS_COUNT],
        last: [Nanos; CLASS_COUNT],
        longest: [Nanos; CLASS_COUNT],
    }

    impl Loop {
        fn new() -> Loop {
            Loop { schedule: Schedule::default(), now: 0, used: [0; 3], last: [0; 3], longest: [0; 3] }
        }

        /// Runs for a time.
        fn run(&mut self, ready: [usize; CLASS_COUNT], step: [Nanos; CLASS_COUNT], duration: Nanos) -> [f64; 3] {
            let (end, used) = (self.now + duration, self.used);
            self.last = [self.now; 3];
            while self.now < end {
                self.schedule.begin_turn();
                while let Some(slice) = self.schedule.next(ready) {
                    let index = slice.class as usize;
                    assert!(slice.steps > 0 && slice.steps <= ready[index]);
                    self.longest[index] = self.longest[index].max(self.now - self.last[index]);
                    let took = slice.steps as u64 * step[index];
                    self.now += took;
                    self.used[index] += took;
                    self.last[index] = self.now;
                    if slice.is_timed {
                        self.schedule.note(slice, took);
                    }
                }
            }
            [0, 1, 2].map(|index| (self.used[index] - used[index]) as f64 / duration as f64)
        }
    }

    const SECOND: Nanos = 1_000_000_000;

    /// Goal: a flood of small requests and streams have nearly half of the loop each, whatever their steps take and
    /// however many there are; work that steps back has a tenth, and all of a loop that has nothing else.
    #[test]
    fn shares_of_a_busy_loop() {
        let close = |share: f64, wanted: f64| (share - wanted).abs() < 0.01;
        for (few, many) in [(1, 1), (1, 1000), (1000, 1)] {
            for (small, large) in [(1_000, 50_000), (30_000, 30_000), (100_000, 10_000)] {
                let shares = Loop::new().run([few, many, 0], [small, large, 0], SECOND);
                assert!(close(shares[0], 0.5) && close(shares[1], 0.5), "{few} {many} {small} {large}: {shares:?}");
                let mut all = Loop::new();
                let shares = all.run([few, many, 7], [small, large, 60_000], SECOND);
                let is_fair = close(shares[0], 0.45) && close(shares[1], 0.45) && close(shares[2], 0.1);
                assert!(is_fair, "{few} {many} {small} {large}: {shares:?}");
                // Nobody waits for longer than a slice of each of the others takes, by its share.
                let longest = all.longest[0].max(all.longest[1]);
                assert!(longest < 10_000_000, "{few} {many} {small} {large}: {:?}", all.longest);
            }
        }
        assert_eq!(Loop::new().run([0, 0, 5], [0, 0, 50_000], SECOND), [0.0, 0.0, 1.0]);
        assert_eq!(Loop::new().run([0, 5, 0], [0, 50_000, 0], SECOND), [0.0, 1.0, 0.0]);
    }

    /// Goal: who has had nothing to do for long, or was alone for long, is no more ahead or behind than a slice.
    #[test]
    fn nothing_is_saved_up() {
        let step = [2_000, 50_000, 60_000];
        let before = [[100, 0, 0], [0, 100, 0], [0, 0, 100], [0, 100, 100], [100, 100, 0], [100, 0, 100]];
        for (first, idles) in before.into_iter().flat_map(|first| [(first, true), (first, false)]) {
            let mut busy = Loop::new();
            busy.run(first, step, 10 * SECOND);
            // Nobody has anything to do for a moment, or somebody has.
            if idles {
                busy.schedule.begin_turn();
                assert_eq!(busy.schedule.next([0; 3]), None);
            }
            busy.longest = [0; 3];
            let shares = busy.run([100, 100, 100], step, SECOND / 100);
            assert!(shares[0] > 0.4 && shares[1] > 0.4, "{first:?}: {shares:?}");
            assert!(busy.longest.iter().all(|longest| *longest < 2_000_000), "{first:?}: {:?}", busy.longest);
        }
    }

    /// Goal: a turn ends, so that events are looked at, and sooner where steps are long; a step that steps back ends
    /// it.
    #[test]
    fn turns_end() {
        let steps = |ready: [usize; 3]| {
            let mut schedule = Schedule::default();
            schedule.begin_turn();
            let mut steps = [0; 3];
            while let Some(slice) = schedule.next(ready) {
                steps[slice.class as usize] += slice.steps;
                if slice.is_timed {
                    schedule.note(slice, slice.steps as u64 * 1_000);
                }
            }
            steps
        };
        assert_eq!(steps([1000, 0, 0]), [128, 0, 0]);
        assert_eq!(steps([0, 1000, 0]), [0, 4, 0]);
        assert_eq!(steps([0, 0, 1000]), [0, 0, 1]);
        assert_eq!(steps([0, 0, 0]), [0, 0, 0]);
        let [metadata, data, background] = steps([1000, 1000, 1000]);
        assert!(metadata > 0 && data > 0 && metadata + 32 * (data + background) <= TURN_STEPS_MAX + 32);
    }

    /// Goal: work that steps back does so for what events may have brought, and gets on where each turn has something
    /// else to do, but never at the same time.
    #[test]
    fn events_before_work_that_steps_back() {
        let (mut schedule, mut steps) = (Schedule::default(), [0; 3]);
        for turn in 0..900 {
            schedule.begin_turn();
            let mut ready = [1, 0, 1];
            while let Some(slice) = schedule.next(ready) {
                steps[slice.class as usize] += slice.steps;
                ready[slice.class as usize] = 0;
                if slice.is_timed {
                    schedule.note(slice, 1_000);
                }
            }
            assert_eq!(steps[0], turn + 1);
        }
        assert!((90..=200).contains(&steps[2]), "{steps:?}");
    }

    /// Goal: no time passes in a simulation; all classes run all the same.
    #[test]
    fn a_clock_that_stands_still() {
        let mut schedule = Schedule::default();
        let mut steps = [0; 3];
        for _ in 0..1000 {
            schedule.begin_turn();
            while let Some(slice) = schedule.next([3, 3, 3]) {
                steps[slice.class as usize] += slice.steps;
                schedule.note(slice, 0);
            }
        }
        assert!(steps.iter().all(|count| *count > 500), "{steps:?}");
    }

    /// Goal: a connection is of the class of what it does, and does not change it with each message.
    #[test]
    fn connections_have_classes() {
        let mut class = ConnectionClass::default();
        let mut changes =
            |steps: usize, moved: usize| -> Vec<Class> { (0..steps).filter_map(|_| class.note_step(moved)).collect() };
        // Messages of 100 bytes, and many at once.
        assert_eq!((changes(50, 200), changes(50, 64 * 300)), (vec![], vec![]));
        // Records, and what goes between them.
        assert_eq!((changes(1, 256 << 10), changes(2, 300), changes(1, 0)), (vec![Class::Data], vec![], vec![]));
        assert_eq!((changes(20, 47_008), changes(50, 300)), (vec![], vec![Class::Metadata]));
        assert_eq!(changes(20, 47_008), vec![Class::Data]);
    }
}
