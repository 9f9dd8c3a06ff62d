//! Pages that clients write into by themselves: whose they are, and what becomes of what they wrote.

use super::*;
use reactor::Region;

/// Somebody for whom pages are registered.
fn holder(store: &Store, connection: u64) -> Holder {
    Holder {
        connection,
        mapping_lock: store.shared().expect("this store is shared").mapping_lock().expect("a test lends all"),
    }
}

/// Copies a body into pages of a registered buffer and commits it. None if the store does not take the pages.
fn write_registered(
    store: &Store,
    holder: &Holder,
    (file, index, chunk): (u64, u64, u32),
    offset: u32,
    body: &[u8],
    run: RegisteredRun,
) -> Option<Lsn> {
    let at = u64::from(run.start) * PAGE_SIZE + u64::from(offset) % PAGE_SIZE;
    holder.mapping_lock.poke(at, body);
    let bytes = (offset, body.len() as u32);
    let write = store.reserve_registered((file, index), chunk, bytes, holder.connection, run).unwrap()?;
    Some(finish(store, write, 1).unwrap())
}

fn pages_of(offset: u32, size: u32) -> u32 {
    let page = PAGE_SIZE as u32;
    (offset + size).div_ceil(page) - offset / page
}

/// Pages from one of a registered buffer on.
fn part(buffer: RegisteredRun, from: u32, pages: u32) -> RegisteredRun {
    RegisteredRun { start: buffer.start + from, pages, ..buffer }
}

/// Goal: what is committed from registered pages is the chunk's, and nothing beside it changes, for edges of every
/// alignment, over nothing, over old bytes and under a reader; also for the next life of the store.
#[test]
fn edges_of_every_alignment() {
    const CHUNK: u32 = 5 * PAGE_SIZE as u32 + 700;
    let page = PAGE_SIZE as u32;
    let points = [0, 1, page - 1, page, page + 1, 2 * page, 3 * page + 77, 5 * page, CHUNK - 1, CHUNK];
    let mut random = Random(5);
    for (start, end) in points.iter().flat_map(|start| points.map(|end| (*start, end))).filter(|(a, b)| a < b) {
        for before in 0..3 {
            let (disk, store) = new_store(1024 * PAGE_SIZE, false);
            let writer = holder(&store, 1);
            let mut expected = vec![0; CHUNK as usize];
            if before > 0 {
                let size = if before == 1 { CHUNK } else { 2 * page + 300 };
                let body = body(&mut random, size);
                write(&store, 1, 0, CHUNK, 0, &body).unwrap();
                expected[..size as usize].copy_from_slice(&body);
            }
            let held = store.read(1, 0, 0, CHUNK).unwrap();
            let buffer = store.register_buffer(&writer, 7, 12).expect("there is room");
            let body = body(&mut random, end - start);
            let run = part(buffer, 0, pages_of(start, end - start));
            write_registered(&store, &writer, (1, 0, CHUNK), start, &body, run).expect("taken");
            drop(held);
            expected[start as usize..end as usize].copy_from_slice(&body);
            assert!(read(&store, 1, 0, 0, CHUNK) == expected, "{start}..{end} over {before}");
            store.check().unwrap();
            drop(store);
            let store = reopen(&disk).unwrap();
            assert!(read(&store, 1, 0, 0, CHUNK) == expected, "{start}..{end} over {before}, in the next life");
            store.check().unwrap();
        }
    }
}

/// Goal: only its holder commits a registered buffer's pages, under its generation, each of them once, and nothing that
/// does not lie in it.
#[test]
fn generations() {
    const CHUNK: u32 = 1 << 20;
    let (_, store) = new_store(1024 * PAGE_SIZE, false);
    let (one, other) = (holder(&store, 1), holder(&store, 2));
    let buffer = store.register_buffer(&one, 7, 8).expect("there is room");
    let stranger = store.register_buffer(&other, 8, 8).expect("there is room");
    let body = [3; 2 * PAGE_SIZE as usize];
    let take = |holder: &Holder, run| write_registered(&store, holder, (1, 0, CHUNK), 0, &body, run).is_some();
    let try_take = |holder: &Holder, run: RegisteredRun| {
        let bytes = (0, 2 * PAGE_SIZE as u32);
        store.reserve_registered((1, 0), CHUNK, bytes, holder.connection, run).unwrap().is_some()
    };
    assert!(!try_take(&one, part(stranger, 0, 2)), "another one's");
    assert!(!try_take(&other, part(buffer, 0, 2)), "another one's");
    assert!(!try_take(&one, RegisteredRun { generation: 8, ..part(buffer, 0, 2) }), "of another generation");
    assert!(!try_take(&one, part(buffer, 0, 3)), "more pages than bytes");
    assert!(!try_take(&one, part(buffer, 7, 2)), "one page too far");
    assert!(!try_take(&one, RegisteredRun { start: u32::MAX, ..part(buffer, 0, 2) }), "nowhere");
    assert!(!try_take(&one, RegisteredRun { start: 0, ..part(buffer, 0, 2) }) || buffer.start == 0, "before it");
    assert!(take(&one, part(buffer, 2, 2)));
    for from in 1..4 {
        assert!(!try_take(&one, part(buffer, from, 2)), "page {from} was committed, or the next one");
    }
    assert!(take(&one, part(buffer, 4, 2)), "the last write has let go of the pages of the one before");
    assert!(!try_take(&one, part(buffer, 2, 2)), "free, but not unused");
    drop(store.reserve_registered((1, 1), CHUNK, (0, 8192), 1, part(buffer, 6, 2)).unwrap().expect("unused"));
    assert!(!try_take(&one, part(buffer, 6, 2)), "nobody knows what is in them");
    assert!(!try_take(&one, part(buffer, 0, 2)) || store.registered_usage().registered > 0);
    store.end_buffer(2, 7);
    assert_eq!(store.registered_usage().registered, 16 * PAGE_SIZE, "it is not his to end");
    store.end_buffer(1, 7);
    assert!(!try_take(&one, part(buffer, 0, 2)), "it has ended");
    store.end_holder(2);
    assert!(!try_take(&other, part(stranger, 0, 2)), "he has gone");
    assert_eq!(store.registered_usage(), RegisteredUsage { registered: 8 * PAGE_SIZE, orphaned: 8 * PAGE_SIZE });
    drop(other);
    assert!(!store.end_unmapped_buffers());
    assert_eq!(store.registered_usage(), RegisteredUsage::default());
    store.check().unwrap();
}

/// Goal: what a client had filled and submitted when its server was killed becomes the file's in the next life, also in
/// a store without any other page that is free, and whether the client still has the pages mapped or not; what that
/// life had committed is not taken twice. Method: a store is filled up to registered pages, of which some are filled,
/// some committed, and opened anew.
#[test]
fn filled_pages_are_left_to_the_next_life() {
    const CHUNK: u32 = 1 << 20;
    const SIZE: u32 = 3 * PAGE_SIZE as u32 - 77;
    let mut random = Random(9);
    for is_mapped in [true, false] {
        let (disk, store) = new_store(512 * PAGE_SIZE, false);
        let writer = holder(&store, 1);
        let buffer = store.register_buffer(&writer, 7, 12).expect("there is room");
        let (first, second) = (body(&mut random, SIZE), body(&mut random, SIZE));
        write_registered(&store, &writer, (1, 0, CHUNK), 0, &first, part(buffer, 0, 3)).expect("taken");
        writer.mapping_lock.poke(u64::from(buffer.start + 3) * PAGE_SIZE + 77, &second);
        let mut chunk = 0;
        while let Ok(write) = store.reserve_write(2, chunk, CHUNK, 0, PAGE_SIZE as u32) {
            finish(&store, write, 1).unwrap();
            chunk += 1;
        }
        let writer = is_mapped.then_some(writer);
        drop(store);
        let store = reopen(&disk).unwrap();
        assert!(store.hold_pages(buffer.start, 3).is_none(), "the earlier life has committed it");
        assert!(store.hold_pages(buffer.start + 1, 3).is_none(), "half of it");
        assert!(store.hold_pages(u32::MAX - 1, 3).is_none() && store.hold_pages(511, 3).is_none(), "beyond the end");
        let held = store.hold_pages(buffer.start + 3, 3).expect("filled");
        assert!(store.hold_pages(buffer.start + 3, 1).is_none(), "it is taken");
        store.check().unwrap();
        assert!(store.write_held((3, 0), CHUNK, (77, 4 * PAGE_SIZE as u32), held).is_err(), "fewer pages than bytes");
        let held = store.hold_pages(buffer.start + 3, 3).expect("it is free again");
        let write = store.write_held((3, 0), CHUNK, (77, SIZE), held).unwrap();
        finish(&store, write, 1).unwrap();
        store.check().unwrap();
        drop(writer);
        store.end_unmapped_buffers();
        store.check().unwrap();
        let store = reopen(&disk).unwrap();
        assert!(read(&store, 1, 0, 0, SIZE) == first && read(&store, 3, 0, 77, SIZE) == second);
    }
}

/// Goal: nobody has so much registered that others lack space, and nothing where nothing is lent.
#[test]
fn bounds() {
    let (_, store) = new_store(4096 * PAGE_SIZE, false);
    let holders: Vec<Holder> = (0..100).map(|connection| holder(&store, connection)).collect();
    let mut generation = 0;
    let mut pages = 0;
    for holder in &holders {
        while let Some(buffer) = store.register_buffer(holder, generation, u32::MAX) {
            generation += 1;
            pages += u64::from(buffer.pages);
        }
    }
    assert!(pages > 512 && pages <= 1024, "{pages} of 4096 pages are registered");
    assert_eq!(store.usage().free, 4096 * PAGE_SIZE, "they are free");
    store.check().unwrap();
    let (_, small) = new_store(16 * PAGE_SIZE, false);
    assert!(small.register_buffer(&holder(&small, 1), 1, 1).is_none());
    let (_, summed) = new_store(4096 * PAGE_SIZE, true);
    assert!(summed.register_buffer(&holders[0], 1, 1).is_none());
}

/// Goal: registered buffers are made of what was used before for as long as there is any, smaller where it gets scarce,
/// and only then of what has to be taken from the medium.
#[test]
fn used_pages_come_first() {
    const CHUNK: u32 = 1 << 20;
    const CHUNKS: u64 = 25;
    let (_, store) = new_store(65_536 * PAGE_SIZE, false);
    for index in 0..CHUNKS {
        write(&store, 1, index, CHUNK, 0, &[1; CHUNK as usize]).unwrap();
    }
    let mut transaction = store.begin();
    store.reap_file(1, &mut transaction);
    store.commit(transaction).unwrap();
    let backed = store.usage().backed;
    let one = holder(&store, 1);
    let (mut registered, mut sizes) = (0, Vec::new());
    for generation in 1.. {
        let buffer = store.register_buffer(&one, generation, u32::MAX).expect("there is room");
        if store.usage().backed > backed {
            break;
        }
        registered += u64::from(buffer.pages) * PAGE_SIZE;
        sizes.push(buffer.pages);
    }
    assert!(
        registered >= CHUNKS * u64::from(CHUNK),
        "only {registered} bytes were of those that were used before: {sizes:?}"
    );
    // A quarter of what is backed and free, as all of it is.
    let most = backed / PAGE_SIZE / 4;
    assert!(sizes.is_sorted_by(|one, next| one >= next) && u64::from(sizes[0]) <= most, "{sizes:?} of {most} at first");
    store.check().unwrap();
}

/// What a client may have mapped, and what was committed there.
struct Mapped {
    holder: Holder,
    buffer: RegisteredRun,
    used: u32,
    /// The server does not know him any more.
    is_lost: bool,
}

/// Goal: as long as somebody has a registered buffer mapped, its pages go to nobody else: not those that he has not
/// used, nor those that were freed since; whether his connection is there or has ended, and whether it is the same life
/// of the store or not. Method: random registered and ordinary writes, removals, connections that end while their
/// mapping stays, and reopening; each place that the store gives to anybody else is compared with all mappings, except
/// where the chunk itself lies there. Whoever has pages goes on writing to those that he did not commit, and nobody's
/// bytes may change by that.
#[test]
fn free_pages_go_to_nobody_else() {
    const FILES: u64 = 6;
    const CHUNK: u32 = 8 * PAGE_SIZE as u32;
    let (mut committed, mut refused, mut lives) = (0, 0, 0);
    for seed in 0..30 {
        let mut random = Random(seed * 31 + 7);
        let (disk, mut store) = new_store(1200 * PAGE_SIZE, false);
        let mut model = vec![vec![0u8; CHUNK as usize]; FILES as usize];
        let mut mapped: Vec<Mapped> = Vec::new();
        let mut generation = 0;
        for step in 0..200 {
            let file = random.below(FILES);
            let offset = random.below(u64::from(CHUNK) - 1) as u32;
            let size = 1 + random.below(u64::from(CHUNK - offset)) as u32;
            let bytes = body(&mut random, size);
            match random.below(12) {
                0 | 1 => {
                    let holder = holder(&store, generation + 1_000 * lives);
                    generation += 1;
                    if let Some(buffer) = store.register_buffer(&holder, generation, 24) {
                        mapped.push(Mapped { holder, buffer, used: 0, is_lost: false });
                    }
                }
                2 if !mapped.is_empty() => {
                    let gone = mapped.swap_remove(random.below(mapped.len() as u64) as usize);
                    if !gone.is_lost {
                        store.end_buffer(gone.holder.connection, gone.buffer.generation);
                    }
                }
                3 if !mapped.is_empty() && random.below(3) == 0 => {
                    let index = random.below(mapped.len() as u64) as usize;
                    mapped[index].is_lost = true;
                    store.end_holder(mapped[index].holder.connection);
                }
                4 => {
                    let mut transaction = store.begin();
                    store.reap_file(file, &mut transaction);
                    store.commit(transaction).unwrap();
                    model[file as usize].fill(0);
                }
                5 if random.below(3) == 0 => {
                    drop(store);
                    store = reopen(&disk).unwrap();
                    mapped.iter_mut().for_each(|mapped| mapped.is_lost = true);
                    lives += 1;
                }
                6..9 if !mapped.is_empty() => {
                    let index = random.below(mapped.len() as u64) as usize;
                    let Mapped { holder, buffer, used, .. } = &mut mapped[index];
                    let pages = pages_of(offset, size);
                    if *used + pages <= buffer.pages {
                        let run = part(*buffer, *used, pages);
                        *used += pages;
                        let done = write_registered(&store, holder, (file, 0, CHUNK), offset, &bytes, run);
                        assert_eq!(done.is_some(), !mapped[index].is_lost, "seed {seed}, step {step}");
                        (committed, refused) =
                            (committed + u32::from(done.is_some()), refused + u32::from(done.is_none()));
                        if done.is_some() {
                            model[file as usize][offset as usize..][..size as usize].copy_from_slice(&bytes);
                        }
                    }
                }
                _ => {
                    let write = store.reserve_write(file, 0, CHUNK, offset, size).unwrap();
                    for place in &write.places {
                        let pages = place.offset / PAGE_SIZE..(place.offset + place.size).div_ceil(PAGE_SIZE);
                        for Mapped { buffer, .. } in &mapped {
                            let of_buffer = u64::from(buffer.start)..u64::from(buffer.start + buffer.pages);
                            let clash = pages.clone().find(|page| of_buffer.contains(page));
                            let is_own = |page: u64| store_has(&store, file, page);
                            assert!(clash.is_none_or(is_own), "seed {seed}, step {step}: {clash:?} is mapped");
                        }
                    }
                    fill(&write, &bytes);
                    finish(&store, write, 1).unwrap();
                    model[file as usize][offset as usize..][..size as usize].copy_from_slice(&bytes);
                }
            }
            for Mapped { holder, buffer, used, .. } in &mapped {
                for page in *used..buffer.pages {
                    holder.mapping_lock.poke(u64::from(buffer.start + page) * PAGE_SIZE, &[0xEE; PAGE_SIZE as usize]);
                }
            }
            for (file, bytes) in model.iter().enumerate() {
                assert!(read(&store, file as u64, 0, 0, CHUNK) == *bytes, "seed {seed}, step {step}, file {file}");
            }
            store.check().unwrap();
        }
        drop(mapped);
        store.end_holder(u64::MAX);
        for connection in 0..=generation + 1_000 * lives {
            store.end_holder(connection);
        }
        assert_eq!(store.registered_usage(), RegisteredUsage::default(), "all is everybody's again");
        store.check().unwrap();
    }
    assert!(committed > 500 && refused > 100 && lives > 30, "{committed} {refused} {lives}");
}

/// Whether a page of the data space is one that a file's first chunk has: it lies between bytes of it that were
/// written.
fn store_has(store: &Store, file: u64, page: u64) -> bool {
    let mut has = false;
    store.places(file, 0, |place| {
        has |= (place.at / PAGE_SIZE..(place.at + u64::from(place.size)).div_ceil(PAGE_SIZE)).contains(&page);
    });
    has
}
