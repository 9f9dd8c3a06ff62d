//! One process keeps a device busy: so many operations of one size under way at a time, at places one after the other
//! or at random, through the reactor's seam or by calls that wait.

use crate::call_times::Quantiles;
use crate::meter::Meter;
use crate::target::{fill_pattern, find_difference, mix};
use reactor::call_clock::CallClock;
use reactor::device::{Buffer, BufferPool, Device, DeviceError, DeviceOptions};
use reactor::{Class, DriverKind, Reactor};
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;

/// How operations reach the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interface {
    /// pread(2) and pwrite(2).
    Sync,
    IoUring,
    Aio,
}

pub const INTERFACES: [(Interface, &str); 3] =
    [(Interface::Sync, "sync"), (Interface::IoUring, "io_uring"), (Interface::Aio, "aio")];

/// What is done where, in fio's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern {
    pub is_random: bool,
    pub is_write: bool,
}

pub const PATTERNS: [(Pattern, &str); 4] = [
    (Pattern { is_random: false, is_write: false }, "read"),
    (Pattern { is_random: false, is_write: true }, "write"),
    (Pattern { is_random: true, is_write: false }, "randread"),
    (Pattern { is_random: true, is_write: true }, "randwrite"),
];

/// The word for something.
pub fn word_of<T: PartialEq + Copy>(table: &[(T, &'static str)], value: T) -> &'static str {
    table.iter().find(|(known, _)| *known == value).map_or("", |(_, word)| word)
}

/// What is measured at one point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceLoad {
    pub interface: Interface,
    pub pattern: Pattern,
    pub size: usize,
    pub depth: u32,
}

/// What came of it.
#[derive(Debug, Clone, Copy)]
pub struct DeviceResult {
    pub bytes: u64,
    pub seconds: f64,
    /// Time on cores, in the program and in the kernel for it.
    pub cpu_ns: u64,
    pub times: Option<Quantiles>,
}

/// What the tasks of a run share.
struct Run<'a> {
    load: DeviceLoad,
    device_size: u64,
    /// Operations that were begun.
    begun: Cell<u64>,
    /// Stop after so many.
    count: u64,
    meter: RefCell<Meter<'a>>,
    /// What ended it early.
    failure: RefCell<Option<String>>,
    /// Contents are written and checked, with this seed.
    seed: Option<u64>,
}

impl Run<'_> {
    fn place_count(&self) -> u64 {
        self.device_size / self.load.size as u64
    }

    /// Where the next operation goes; nothing when the run is over. A run that checks goes to each place once.
    fn next(&self) -> Option<u64> {
        let number = self.begun.get();
        if number >= self.count || self.meter.borrow().is_over() || self.failure.borrow().is_some() {
            return None;
        }
        self.begun.set(number + 1);
        let places = self.place_count();
        let place = match (self.load.pattern.is_random, self.seed) {
            (false, _) => number % places,
            (true, None) => mix(number) % places,
            (true, Some(_)) => (number * stride(places)) % places,
        };
        Some(place * self.load.size as u64)
    }

    fn fill(&self, offset: u64, buffer: &mut [u8]) {
        if let (Some(seed), true) = (self.seed, self.load.pattern.is_write) {
            fill_pattern(seed, offset, buffer);
        }
    }

    /// Notes what an operation came to.
    fn note(&self, began: u64, offset: u64, result: Result<usize, DeviceError>, buffer: &[u8]) {
        self.meter.borrow_mut().note_one_of_many(began);
        let failure = match result {
            Err(error) => Some(error.to_string()),
            Ok(count) if count < self.load.size => Some(format!("{count} bytes at {offset}: the device ends there")),
            Ok(count) => match (self.seed, self.load.pattern.is_write) {
                (Some(seed), false) => {
                    find_difference(seed, offset, &buffer[..count]).map(|at| format!("wrong contents at {at:?}"))
                }
                _ => None,
            },
        };
        if failure.is_some() {
            *self.failure.borrow_mut() = failure;
        }
    }
}

/// A step that comes to each of so many places once.
fn stride(places: u64) -> u64 {
    let divisor = |a: u64, b: u64| std::iter::successors(Some((a, b)), |(a, b)| (*b > 0).then(|| (*b, a % b))).last();
    let is_coprime = |step: &u64| divisor(*step, places).is_some_and(|(divisor, _)| divisor == 1);
    (places * 5 / 8 + 1..).find(is_coprime).unwrap_or(1)
}

/// A device that is opened anew for each point.
pub struct Bed<'a> {
    pub path: &'a Path,
    pub is_writable: bool,
}

/// One point's device and memory.
struct Opened {
    reactor: Reactor,
    device: Device,
    pool: BufferPool,
}

impl Bed<'_> {
    fn open(&self, load: &DeviceLoad) -> Result<Opened, String> {
        let driver = if load.interface == Interface::Aio { DriverKind::Epoll } else { DriverKind::IoUring };
        let said = |error: std::io::Error| error.to_string();
        let reactor = Reactor::open(driver).map_err(|error| format!("io_uring: {error}"))?;
        let (depth, writable) = (load.depth, self.is_writable);
        let options = DeviceOptions { writable, depth, ..DeviceOptions::default() };
        let device = reactor.open_device(self.path, &options).map_err(said)?;
        let pool = reactor.buffer_pool(load.size, load.depth).map_err(said)?;
        Ok(Opened { reactor, device, pool })
    }

    /// Keeps the device busy for a time.
    pub fn measure(&self, load: DeviceLoad, seconds: f64) -> Result<DeviceResult, String> {
        let opened = self.open(&load)?;
        // What is written differs from place to place, as data does.
        let mut buffers: Vec<Buffer> = std::iter::from_fn(|| opened.pool.take()).collect();
        buffers.iter_mut().enumerate().for_each(|(at, buffer)| fill_pattern(1, (at as u64) << 32, buffer));
        drop(buffers);
        let clock = CallClock::calibrated();
        // Read before the meter begins: its limit then lies within this time, whoever takes the core in between.
        let (started, cpu) = (opened.reactor.now(), reactor::process::cpu_time());
        let meter = Meter::new(clock, |_| (), true, seconds);
        let run = opened.go(load, meter, u64::MAX, None)?;
        let (ended, cpu_ended) = (opened.reactor.now(), reactor::process::cpu_time());
        let times = run.meter.borrow().times().quantiles();
        Ok(DeviceResult {
            bytes: run.begun.get() * load.size as u64,
            seconds: (ended - started) as f64 / 1e9,
            cpu_ns: cpu_ended - cpu,
            times,
        })
    }

    /// Writes up to `volume` bytes in this way and reads them in it, and compares.
    pub fn verify(&self, load: DeviceLoad, volume: u64, seed: u64) -> Result<(), String> {
        let opened = self.open(&load)?;
        let count = (opened.device.abilities().size.min(volume) / load.size as u64).max(1);
        for is_write in [true, false] {
            let load = DeviceLoad { pattern: Pattern { is_write, ..load.pattern }, ..load };
            let meter = Meter::new(CallClock::calibrated(), |_| (), false, 0.0);
            opened.go(load, meter, count, Some((seed, count)))?;
            if is_write {
                opened.reactor.block_on(opened.device.flush()).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// Writes all of the device, so that no block of it is new.
    pub fn fill(&self) -> Result<(), String> {
        let load = DeviceLoad { interface: Interface::IoUring, pattern: PATTERNS[1].0, size: 1 << 20, depth: 4 };
        let opened = self.open(&load)?;
        let count = opened.device.abilities().size / load.size as u64;
        let meter = Meter::new(CallClock::calibrated(), |_| (), false, 0.0);
        opened.go(load, meter, count, Some((1, count)))?;
        opened.reactor.block_on(opened.device.flush()).map_err(|error| error.to_string())
    }

    /// What the device can.
    pub fn abilities(&self) -> Result<reactor::device::Abilities, String> {
        let load = DeviceLoad { interface: Interface::IoUring, pattern: PATTERNS[0].0, size: 4096, depth: 1 };
        Ok(self.open(&load)?.device.abilities().clone())
    }
}

impl Opened {
    /// Keeps the operations under way until the run is over. `checked` is a seed, and the places that there are.
    fn go(
        &self,
        load: DeviceLoad,
        meter: Meter<'static>,
        count: u64,
        checked: Option<(u64, u64)>,
    ) -> Result<Rc<Run<'static>>, String> {
        let device_size = match checked {
            Some((_, places)) => places * load.size as u64,
            None => self.device.abilities().size,
        };
        if device_size < load.size as u64 {
            return Err(format!("{}: is smaller than an operation", self.device.path().display()));
        }
        let run = Rc::new(Run {
            load,
            device_size,
            begun: Cell::new(0),
            count,
            meter: RefCell::new(meter),
            failure: RefCell::new(None),
            seed: checked.map(|(seed, _)| seed),
        });
        match load.interface {
            Interface::Sync => self.call(&run)?,
            _ => self.submit(&run),
        }
        match run.failure.take() {
            Some(words) => Err(words),
            None => Ok(run),
        }
    }

    /// A task for each operation under way.
    fn submit(&self, run: &Rc<Run<'static>>) {
        let tasks: Vec<_> = (0..run.load.depth)
            .filter_map(|_| self.pool.take())
            .map(|buffer| self.reactor.spawn_joinable(Class::Data, keep_busy(run.clone(), self.device.clone(), buffer)))
            .collect();
        self.reactor.block_on(async {
            for task in tasks {
                task.await;
            }
        });
    }

    /// One call after the other.
    fn call(&self, run: &Run<'_>) -> Result<(), String> {
        let mut buffer = self.pool.take().ok_or("no buffer")?;
        while let Some(offset) = run.next() {
            run.fill(offset, &mut buffer[..run.load.size]);
            let began = run.meter.borrow().read();
            let result = match run.load.pattern.is_write {
                true => self.device.write_blocking(offset, &mut buffer, run.load.size),
                false => self.device.read_blocking(offset, &mut buffer, run.load.size),
            };
            run.note(began, offset, result, &buffer);
        }
        Ok(())
    }
}

async fn keep_busy(run: Rc<Run<'static>>, device: Device, mut buffer: Buffer) {
    while let Some(offset) = run.next() {
        run.fill(offset, &mut buffer[..run.load.size]);
        let began = run.meter.borrow().read();
        let (result, back) = match run.load.pattern.is_write {
            true => device.write(offset, buffer, run.load.size).await,
            false => device.read(offset, buffer, run.load.size).await,
        };
        buffer = back;
        run.note(began, offset, result, &buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a run that checks comes to each place once, whatever their number.
    #[test]
    fn strides_come_to_each_place() {
        for places in [1u64, 2, 3, 7, 8, 64, 1000, 4096] {
            let mut seen = vec![false; places as usize];
            (0..places).for_each(|number| seen[(number * stride(places) % places) as usize] = true);
            assert!(seen.iter().all(|seen| *seen), "{places}");
        }
    }

    /// Goal: what a run writes it reads, in each way and order, and wrong contents are found.
    #[test]
    fn contents_are_checked() {
        let path = std::env::temp_dir().join(format!("tabane-bench-load-{}", std::process::id()));
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let bed = Bed { path: &path, is_writable: true };
        for (interface, _) in INTERFACES {
            for (pattern, _) in PATTERNS {
                let load = DeviceLoad { interface, pattern, size: 16 << 10, depth: 3 };
                bed.verify(load, 1 << 20, 5).unwrap();
                let measured = bed.measure(load, 0.01).unwrap();
                // The two clocks differ by up to a tenth where somebody took the core while one learned its rate.
                assert!(measured.bytes > 0 && measured.times.is_some());
                assert!(measured.seconds >= 0.009, "{} s", measured.seconds);
            }
        }
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let load = DeviceLoad { interface: Interface::IoUring, pattern: PATTERNS[2].0, size: 4096, depth: 3 };
        let opened = bed.open(&load).unwrap();
        let meter = Meter::new(CallClock::calibrated(), |_| (), false, 0.0);
        let words = opened.go(load, meter, 256, Some((5, 256))).err().unwrap();
        assert!(words.contains("wrong contents"), "{words}");
        std::fs::remove_file(&path).unwrap();
    }
}
