//! Storage on a simulated device: what a life had is there for the next one.

use super::{BufferedStorage, PagePin, PartialRegion};
use crate::device::DeviceOptions;
use crate::sim::{CrashKind, DeviceFaults, NodeId, World};
use crate::{Class, OpenMode, PageNeed, PageRoom, Reactor, Region, Storage};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::rc::Rc;

const SECOND: u64 = 1_000_000_000;
const PAGE: u64 = 4096;
const SECTOR: usize = 512;
const DEVICE: &str = "/dev/simulated";
const SIZE: u64 = 4 << 20;
const REGION_PAGES: u64 = 70;
const NAMES: [&str; 3] = ["one", "two", "three"];
/// The version of a page whose bytes count no more.
const RELEASED: u64 = u64::MAX;
/// Pages of a partial region that are in memory at most.
const PARTIAL_PAGES: u64 = 20;

fn world(seed: u64, faults: DeviceFaults) -> (Rc<World>, NodeId) {
    let world = Rc::new(World::new(seed));
    let node = world.add_node("node", IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)));
    world.set_volatile(node, true);
    world.set_device_faults(node, faults);
    (world, node)
}

/// With `is_partial` one of the regions is in memory in part.
fn open(reactor: &Reactor, create: bool, is_partial: bool) -> io::Result<Rc<BufferedStorage>> {
    let image = reactor.storage("memory".as_ref())?;
    let options = DeviceOptions { create: create.then_some(SIZE), depth: 4, ..DeviceOptions::default() };
    let device = reactor.open_device(Path::new(DEVICE), &options)?;
    let partial = PartialRegion { name: NAMES[0].to_owned(), memory: PARTIAL_PAGES * PAGE };
    BufferedStorage::open(reactor, image, device, SIZE, is_partial.then_some(partial)).map(Rc::new)
}

/// Pins pages, whatever errors the device has. Nothing if it has too many.
async fn pin(region: &dyn Region, need: PageNeed) -> Option<PagePin> {
    for _ in 0..20 {
        if let Some(pin) = region.try_pin(&need, PageRoom::Left) {
            return Some(pin);
        }
        if let Ok(room) = region.pin(need.clone()).await
            && let Some(pin) = region.try_pin(&need, PageRoom::Granted(&room))
        {
            return Some(pin);
        }
    }
    None
}

fn filled(first: u64, count: u64) -> PageNeed {
    PageNeed { filled: std::iter::once(first..first + count).collect(), ..PageNeed::default() }
}

fn fresh(first: u64, count: u64) -> PageNeed {
    PageNeed { fresh: std::iter::once(first..first + count).collect(), ..PageNeed::default() }
}

/// What a region may hold after power loss: for each page the versions since the one that was synced last.
#[derive(Clone)]
struct Pages(Vec<Vec<u64>>);

/// What the storage holds.
#[derive(Default)]
struct Model {
    regions: BTreeMap<&'static str, Pages>,
    /// What a name stood for before each change since names were last synced; nothing for none. Of those that are in
    /// here little is known after power loss.
    before: BTreeMap<&'static str, Vec<Option<Pages>>>,
    next: u64,
    /// Pages that were read and compared.
    compared: u64,
}

fn page(name: &str, number: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE as usize];
    if version > 0 {
        for (index, part) in bytes.chunks_mut(64).enumerate() {
            part[..8].copy_from_slice(&version.to_le_bytes());
            part[8..16].copy_from_slice(&(number << 8 | index as u64).to_le_bytes());
            part[16..16 + name.len()].copy_from_slice(name.as_bytes());
        }
    }
    bytes
}

/// Makes, writes, syncs and removes regions, for ever.
async fn work(reactor: Reactor, storage: Rc<BufferedStorage>, model: Rc<RefCell<Model>>, failures: Rc<Cell<u64>>) {
    loop {
        let name = NAMES[reactor.random() as usize % NAMES.len()];
        let is_there = model.borrow().regions.contains_key(name);
        assert_eq!(storage.exists(name), is_there);
        if !is_there {
            storage.open(name, REGION_PAGES * PAGE, OpenMode::CreateNew).unwrap().note_unused(0);
            model.borrow_mut().regions.insert(name, Pages(vec![vec![0]; REGION_PAGES as usize]));
            model.borrow_mut().before.entry(name).or_default().push(None);
            continue;
        }
        let region = storage.open(name, 0, OpenMode::Existing).unwrap();
        match reactor.random() % 16 {
            0 if reactor.random().is_multiple_of(4) => {
                storage.remove(name).unwrap();
                let gone = model.borrow_mut().regions.remove(name);
                model.borrow_mut().before.entry(name).or_default().push(gone);
            }
            0..=1 => sync(storage.clone(), model.clone(), failures.clone()).await,
            2 => {
                // One begins while another is under way.
                let first = sync(storage.clone(), model.clone(), failures.clone());
                let first = reactor.spawn_joinable(Class::Data, first);
                for _ in 0..reactor.random() % 4 {
                    reactor.sleep(reactor.random() % 1_000_000).await;
                    write(&reactor, &*region, name, &model).await;
                }
                sync(storage.clone(), model.clone(), failures.clone()).await;
                first.await;
            }
            3 => release(&reactor, &*region, name, &model),
            _ => write(&reactor, &*region, name, &model).await,
        }
        if reactor.random().is_multiple_of(4) {
            reactor.sleep(reactor.random() % 200_000).await;
        }
    }
}

/// Reads what others write, and keeps it for a while, for ever.
async fn watch(reactor: Reactor, storage: Rc<BufferedStorage>, model: Rc<RefCell<Model>>) {
    loop {
        reactor.sleep(reactor.random() % 300_000).await;
        let name = NAMES[reactor.random() as usize % NAMES.len()];
        let Ok(region) = storage.open(name, 0, OpenMode::Existing) else { continue };
        let first = reactor.random() % REGION_PAGES;
        let count = 1 + reactor.random() % (REGION_PAGES - first).min(9);
        if reactor.random().is_multiple_of(4) {
            // Whoever comes finds them there, or on their way, or gone again.
            region.fetch_ahead(&filled(reactor.random() % REGION_PAGES, 1));
            region.fetch_ahead(&filled(first, count));
        }
        let Some(_pin) = pin(&*region, filled(first, count)).await else { continue };
        let is_same =
            storage.open(name, 0, OpenMode::Existing).is_ok_and(|now| std::ptr::eq(now.base(), region.base()));
        for number in (first..first + count).filter(|_| is_same) {
            let newest = model.borrow().regions.get(name).map(|pages| *pages.0[number as usize].last().unwrap());
            let mut bytes = vec![0; PAGE as usize];
            region.read(number * PAGE, &mut bytes);
            if let Some(newest) = newest.filter(|newest| ![0, RELEASED].contains(newest)) {
                assert!(bytes == page(name, number, newest), "{name}, page {number} is of version {newest}");
                model.borrow_mut().compared += 1;
            }
        }
        reactor.sleep(reactor.random() % 1_000_000).await;
    }
}

/// Says of pages that they count no more.
fn release(reactor: &Reactor, region: &dyn Region, name: &'static str, model: &RefCell<Model>) {
    let first = reactor.random() % REGION_PAGES;
    let count = 1 + reactor.random() % (REGION_PAGES - first).min(9);
    if region.is_partial() {
        region.release(first * PAGE, count * PAGE);
        let mut model = model.borrow_mut();
        let pages = model.regions.get_mut(name).unwrap();
        (first..first + count).for_each(|number| pages.0[number as usize].push(RELEASED));
    }
}

async fn write(reactor: &Reactor, region: &dyn Region, name: &'static str, model: &RefCell<Model>) {
    let first = reactor.random() % REGION_PAGES;
    let count = 1 + reactor.random() % (REGION_PAGES - first).min(9);
    region.allocate(first * PAGE, count * PAGE).unwrap();
    let Some(_pin) = pin(region, fresh(first, count)).await else { return };
    let mut model = model.borrow_mut();
    model.next += 1;
    let version = model.next;
    for number in first..first + count {
        let bytes = page(name, number, version);
        match reactor.random() % 2 {
            0 => region.write(number * PAGE, &bytes),
            _ => {
                // As bytes of a connection arrive.
                // SAFETY: the page lies within the region, which nobody else writes to.
                unsafe {
                    let to = region.base().add((number * PAGE) as usize);
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
                }
                region.note_received(number * PAGE, PAGE);
            }
        }
        model.regions.get_mut(name).unwrap().0[number as usize].push(version);
    }
}

/// Syncs everything at once, as a store does.
async fn sync(storage: Rc<BufferedStorage>, model: Rc<RefCell<Model>>, failures: Rc<Cell<u64>>) {
    let open = |name: &&str| storage.open(name, 0, OpenMode::Existing).unwrap();
    let names: Vec<&'static str> = model.borrow().regions.keys().copied().collect();
    let mut syncs: Vec<_> = names.iter().map(open).map(|region| region.sync(0, region.size())).collect();
    syncs.push(storage.sync_names());
    let held: BTreeMap<&str, Vec<u64>> = {
        let model = model.borrow();
        let newest = |pages: &Pages| pages.0.iter().map(|versions| *versions.last().unwrap()).collect();
        model.regions.iter().map(|(name, pages)| (*name, newest(pages))).collect()
    };
    let mut all_went = true;
    for sync in syncs {
        all_went &= sync.await.is_ok();
    }
    if !all_went {
        failures.set(failures.get() + 1);
        return;
    }
    let mut model = model.borrow_mut();
    model.before.clear();
    for (name, pages) in &mut model.regions {
        for (versions, synced) in pages.0.iter_mut().zip(&held[name]) {
            let older = versions.iter().rposition(|version| version == synced).unwrap_or(0);
            versions.drain(..older);
        }
    }
}

/// What is wrong with a region: nothing, if each page is one of its versions. Power loss may leave a mixture of
/// sectors, whatever the device writes in one piece: a page that is changed while it is written is one. A process that
/// was killed leaves the newest.
async fn judge(region: &dyn Region, name: &str, pages: &Pages, lost_power: bool) -> Option<String> {
    for number in 0..REGION_PAGES {
        let Some(_pin) = pin(region, filled(number, 1)).await else { return Some("it can't be read".to_owned()) };
        let mut bytes = vec![0; PAGE as usize];
        region.read(number * PAGE, &mut bytes);
        let versions = &pages.0[number as usize];
        if (lost_power || region.is_partial()) && [0, RELEASED].iter().any(|any| versions.contains(any)) {
            // What was never written is whatever the device has there, and what was released whatever it was.
            continue;
        }
        let left = if lost_power { &versions[..] } else { &versions[versions.len() - 1..] };
        let possible: Vec<Vec<u8>> = left.iter().map(|version| page(name, number, *version)).collect();
        let size = if lost_power { SECTOR } else { PAGE as usize };
        let fits = |(at, part): (usize, &[u8])| possible.iter().any(|bytes| bytes[at * size..][..part.len()] == *part);
        let is_possible = bytes.chunks(size).enumerate().all(fits);
        let found: Vec<u64> = bytes.chunks(size).map(|part| u64::from_le_bytes(*part.first_chunk().unwrap())).collect();
        if !is_possible {
            return Some(format!("{name}, page {number}: {found:?}, not of {left:?}"));
        }
    }
    None
}

/// Runs something to its end.
fn run<T: 'static>(world: &World, reactor: &Reactor, task: impl Future<Output = T> + 'static) -> T {
    let result = Rc::new(RefCell::new(None));
    let told = result.clone();
    reactor.spawn(Class::Data, async move { drop(told.replace(Some(task.await))) });
    loop {
        world.run_for(SECOND / 1000);
        if let Some(result) = result.take() {
            return result;
        }
    }
}

/// Several lives of one storage. What is wrong at the start of one, how many syncs failed, and pages that were read.
fn lives(seed: u64, faults: DeviceFaults, is_partial: bool) -> (Option<String>, u64, u64) {
    let (world, node) = world(seed, faults);
    let model = Rc::new(RefCell::new(Model::default()));
    let failures = Rc::new(Cell::new(0));
    let mut lost_power = false;
    for life in 0..8 {
        let reactor = world.reactor(node);
        // A start that meets an error leaves everything to the next one.
        let create = |tries: u32| life == 0 && tries == 0;
        let storage =
            (0..20).map(|tries| open(&reactor, create(tries), is_partial)).find(Result::is_ok).and_then(Result::ok);
        let storage = storage.expect("not every start meets an error");
        let settled = settle(storage.clone(), model.take(), lost_power);
        let (found, known) = run(&world, &reactor, settled);
        model.replace(known);
        if let Some(found) = found {
            return (Some(format!("life {life}: {found}")), failures.get(), 0);
        }
        for _ in 0..2 {
            reactor.spawn(Class::Data, watch(reactor.clone(), storage.clone(), model.clone()));
        }
        let done = (storage, model.clone(), failures.clone());
        reactor.spawn(Class::Data, work(reactor.clone(), done.0, done.1, done.2));
        world.run_for(SECOND / 50 + seed % 7 * SECOND / 1000);
        lost_power = world.reactor(node).random().is_multiple_of(2);
        world.crash(node, if lost_power { CrashKind::PowerLoss } else { CrashKind::Kill });
        world.restart(node);
    }
    let compared = model.borrow().compared;
    (None, failures.get(), compared)
}

/// Compares what is there with the model, which goes on from it. What is wrong.
async fn settle(storage: Rc<BufferedStorage>, mut model: Model, lost_power: bool) -> (Option<String>, Model) {
    for name in NAMES {
        let before = if lost_power { model.before.remove(name).unwrap_or_default() } else { Vec::new() };
        let was_there = model.regions.contains_key(name);
        let region = storage.open(name, 0, OpenMode::Existing).ok();
        let could_be = |is_there: bool| before.iter().any(|before| before.is_some() == is_there);
        if was_there != region.is_some() && !could_be(region.is_some()) {
            return (Some(format!("{name} is{} there", if was_there { " not" } else { "" })), model);
        }
        let Some(region) = region else {
            model.regions.remove(name);
            continue;
        };
        // One that was there when names were synced is as it was left, also where it was removed since.
        let known = match &*before {
            [] => model.regions.get(name),
            [removed] => removed.as_ref(),
            _ => None,
        };
        if let Some(pages) = known
            && let Some(wrong) = judge(&*region, name, pages, lost_power).await
        {
            return (Some(wrong), model);
        }
        if !lost_power {
            continue;
        }
        // What its pages are, of all that they may be, is known no more; so they are written anew.
        region.allocate(0, REGION_PAGES * PAGE).unwrap();
        model.next += 1;
        let pages = model.regions.entry(name).or_insert_with(|| Pages(vec![Vec::new(); REGION_PAGES as usize]));
        for (number, versions) in (0..).zip(&mut pages.0) {
            let Some(_pin) = pin(&*region, fresh(number, 1)).await else {
                return (Some("there is no room for pages that are written".to_owned()), model);
            };
            region.write(number * PAGE, &page(name, number, model.next));
            versions.push(model.next);
        }
        if !before.is_empty() {
            // Its pages may be those of before until it is synced.
            let anything = Pages(vec![vec![0]; REGION_PAGES as usize]);
            model.before.insert(name, vec![Some(anything.clone()), Some(anything)]);
        }
    }
    (None, model)
}

/// Goal: a killed process loses nothing, and power loss nothing that was synced, whatever the device does late, in
/// pieces, in another order, or not at all. Method: lives that end at any time, beside a model that knows for each page
/// which versions are possible.
#[test]
fn what_was_synced_is_there() {
    let (mut failures, mut compared) = (0, 0);
    for seed in 0..60 {
        let error = if seed % 3 == 0 { 40 } else { 0 };
        let tear_size = if seed % 2 == 0 { 512 } else { 4096 };
        let faults = DeviceFaults { tear_size, error, ..DeviceFaults::default() };
        let (wrong, failed, read) = lives(seed, faults, seed % 4 > 1);
        assert_eq!(wrong, None, "seed {seed}");
        (failures, compared) = (failures + failed, compared + read);
    }
    assert!(failures > 10 && compared > 1000, "syncs fail: {failures}; pages are read: {compared}");
}

/// Goal: what is filled behind a short run never comes over what is written there meanwhile.
/// Method: a page of a region in which nothing was written is synced, another one behind it is written while the device
/// is busy with that, and is synced too; then power is lost.
#[test]
fn filling_spares_what_is_written_meanwhile() {
    for seed in 0..60 {
        let (world, node) = world(seed, DeviceFaults::default());
        let reactor = world.reactor(node);
        let storage = open(&reactor, true, true).unwrap();
        let done = {
            let (reactor, storage) = (reactor.clone(), storage.clone());
            run(&world, &reactor.clone(), async move {
                let region = storage.open(NAMES[0], REGION_PAGES * PAGE, OpenMode::CreateNew).unwrap();
                region.note_unused(0);
                region.allocate(0, REGION_PAGES * PAGE).unwrap();
                let write = async |number: u64| {
                    let _pin = pin(&*region, fresh(number, 1)).await.unwrap();
                    region.write(number * PAGE, &page(NAMES[0], number, 1));
                };
                write(3).await;
                let first = [region.sync(0, region.size()), storage.sync_names()];
                reactor.sleep(1 + reactor.random() % 200_000).await;
                write(9).await;
                for sync in first {
                    sync.await.unwrap();
                }
                region.sync(0, region.size()).await.unwrap();
                true
            })
        };
        assert!(done);
        world.crash(node, CrashKind::PowerLoss);
        world.restart(node);
        let reactor = world.reactor(node);
        let storage = open(&reactor, false, true).unwrap();
        for number in [3, 9] {
            let storage = storage.clone();
            let found = run(&world, &reactor, async move {
                let region = storage.open(NAMES[0], 0, OpenMode::Existing).unwrap();
                let _pin = pin(&*region, filled(number, 1)).await.unwrap();
                let mut bytes = vec![0; PAGE as usize];
                region.read(number * PAGE, &mut bytes);
                bytes
            });
            assert!(found == page(NAMES[0], number, 1), "seed {seed}, page {number}");
        }
    }
}

/// Goal: `what_was_synced_is_there` notices a device that does not flush.
#[test]
fn flushes_that_do_nothing_are_noticed() {
    let noticed = |seed| {
        let faults = DeviceFaults { ignores_flushes: true, ..DeviceFaults::default() };
        lives(seed, faults, false).0.is_some()
    };
    assert!((0..20).any(noticed));
}

/// Goal: what is on a device that is no store of ours, damaged, or cut short is told, and left as it is.
#[test]
fn devices_of_others() {
    let (world, node) = world(1, DeviceFaults::default());
    let reactor = world.reactor(node);
    let storage = open(&reactor, true, false).unwrap();
    let region = storage.open("one", PAGE, OpenMode::CreateNew).unwrap();
    region.allocate(0, PAGE).unwrap();
    region.write(0, b"bytes");
    drop((region, storage));
    let words = |reactor: &Reactor| {
        let error = open(reactor, false, false).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        error.to_string()
    };
    world.cut_device(node, DEVICE, SIZE - PAGE);
    assert!(words(&reactor).contains("shorter"));
    world.cut_device(node, DEVICE, SIZE);
    assert!(open(&reactor, false, false).is_ok());
    world.corrupt_device(node, DEVICE, 8, 2);
    world.corrupt_device(node, DEVICE, super::SLOT_SIZE + 8, 2);
    assert!(words(&reactor).contains("version 3"));
    world.corrupt_device(node, DEVICE, 0, 1);
    world.corrupt_device(node, DEVICE, super::SLOT_SIZE, 1);
    let told = words(&reactor);
    assert!(told.contains("holds no store") && told.contains(DEVICE), "{told}");
}
