//! The rules one by one, each with the case that it is for.

use super::*;

const CHUNK: u32 = 65_536;

fn offsets(write: &ChunkWrite) -> Vec<u64> {
    write.places.iter().map(|place| place.offset).collect()
}

/// Goal: two writes on their way never share a byte, whichever way they overlap and in whichever order they commit.
/// Method: all pairs of a few ranges, bodies filled interleaved, both orders, with and without data before.
#[test]
fn writes_on_their_way_never_share_bytes() {
    let ranges = [(0, 100), (50, 100), (0, CHUNK), (4096, 4096), (4000, 200), (8191, 2), (100, 50)];
    for (one, other) in ranges.iter().flat_map(|&one| ranges.map(|other| (one, other))) {
        for (is_written, is_swapped) in [(false, false), (false, true), (true, false), (true, true)] {
            let (disk, store) = new_store(128 * PAGE_SIZE, false);
            let mut expected = vec![0; CHUNK as usize];
            if is_written {
                write(&store, 1, 0, CHUNK, 0, &[7; CHUNK as usize]).unwrap();
                expected.fill(7);
            }
            let first = store.reserve_write(1, 0, CHUNK, one.0, one.1).unwrap();
            let second = store.reserve_write(1, 0, CHUNK, other.0, other.1).unwrap();
            for a in &first.places {
                assert!(second.places.iter().all(|b| a.offset + a.size <= b.offset || b.offset + b.size <= a.offset));
            }
            let bodies = [Vec::new(), vec![1; one.1 as usize], vec![2; other.1 as usize]];
            fill_part(&second, &bodies[2], 0, bodies[2].len() / 2);
            fill_part(&first, &bodies[1], 0, bodies[1].len() / 2);
            let order =
                if is_swapped { [(second, other, 2), (first, one, 1)] } else { [(first, one, 1), (second, other, 2)] };
            for (write, (offset, size), value) in order {
                let body = &bodies[usize::from(value)];
                fill_part(&write, body, body.len() / 2, body.len());
                finish(&store, write, 1).unwrap();
                expected[offset as usize..(offset + size) as usize].fill(value);
            }
            assert!(read(&store, 1, 0, 0, CHUNK) == expected, "{one:?} {other:?} {is_written} {is_swapped}");
            assert!(read(&reopen(&disk).unwrap(), 1, 0, 0, CHUNK) == expected);
            store.check().unwrap();
        }
    }
}

/// Goal: bytes that a reader holds never change, by overwrites, truncates with writes after them, or removal.
/// Method: hold a read through each of them, over and over, in a store that would have to recycle the pages.
#[test]
fn pinned_bytes_stay() {
    let (_, store) = new_store(64 * PAGE_SIZE, false);
    write(&store, 1, 0, CHUNK, 0, &[1; 20_000]).unwrap();
    let held = store.read(1, 0, 0, 20_000).unwrap();
    for round in 2..60u8 {
        write(&store, 1, 0, CHUNK, 5000, &[round; 100]).unwrap();
        write(&store, 1, 0, CHUNK, 0, &[round; 20_000]).unwrap();
        let mut transaction = store.begin();
        store.truncate_file(1, 10_001, u32::from(round), &mut transaction);
        store.commit(transaction).unwrap();
        write(&store, 1, 0, CHUNK, 10_001, &[round; 3000]).unwrap();
        assert!(bytes_of(&held) == [1; 20_000], "round {round}");
        store.check().unwrap();
    }
    let mut transaction = store.begin();
    store.reap_file(1, &mut transaction);
    store.commit(transaction).unwrap();
    write(&store, 2, 0, CHUNK, 0, &[9; 60_000]).unwrap();
    assert!(bytes_of(&held) == [1; 20_000]);
    assert!(store.usage().free < 64 * PAGE_SIZE - 16 * PAGE_SIZE);
    drop(held);
    store.check().unwrap();
    assert_eq!(store.usage().free, 48 * PAGE_SIZE);
}

/// Goal: a truncate does not lay bare to a write the bytes that a reader still sees.
/// Method: read, truncate within the page, write behind the cut.
#[test]
fn a_truncated_page_is_not_reused_under_a_reader() {
    let (_, store) = new_store(64 * PAGE_SIZE, false);
    write(&store, 1, 0, CHUNK, 0, &[1; 3000]).unwrap();
    let held = store.read(1, 0, 0, 3000).unwrap();
    let mut transaction = store.begin();
    store.truncate_file(1, 1000, 1, &mut transaction);
    store.commit(transaction).unwrap();
    let reserved = store.reserve_write(1, 0, CHUNK, 1000, 500).unwrap();
    fill(&reserved, &[2; 500]);
    assert!(bytes_of(&held) == [1; 3000]);
    finish(&store, reserved, 1).unwrap();
    assert!(bytes_of(&held) == [1; 3000]);
    assert_eq!(read(&store, 1, 0, 999, 3), [1, 2, 2]);
    assert_eq!(read(&store, 1, 0, 1499, 3), [2, 0, 0]);
}

/// Goal: one stalled reader holds up no more than the pages that it reads, however often they are overwritten.
/// Method: hold a read, overwrite more often than the store has room for, with other readers coming and going.
#[test]
fn a_stalled_reader_holds_only_its_pages() {
    let (_, store) = new_store(16 * PAGE_SIZE, false);
    write(&store, 1, 0, 8192, 0, &[1; 8192]).unwrap();
    let held = store.read(1, 0, 0, 8192).unwrap();
    let mut other = None;
    for round in 0..100 {
        write(&store, 1, 0, 8192, 0, &[round; 8192]).unwrap();
        other = Some(store.read(1, 0, 0, 10).unwrap());
    }
    assert!(bytes_of(&held) == [1; 8192]);
    drop((held, other));
    store.check().unwrap();
    assert_eq!(store.usage().free, 14 * PAGE_SIZE);
}

/// Goal: a write that is given up leaves nothing behind, on a new chunk and on one with data.
/// Method: reserve, drop, count.
#[test]
fn an_abandoned_write_leaves_nothing() {
    let (disk, store) = new_store(64 * PAGE_SIZE, false);
    drop(store.reserve_write(1, 3, CHUNK, 10, 30_000).unwrap());
    assert_eq!((store.usage().free, store.usage().files, store.share(1)), (64 * PAGE_SIZE, 0, None));
    assert!(!store.gains_by_sync(), "nothing was there that a loss of power could bring back");
    write(&store, 1, 0, CHUNK, 0, &[1; 4096]).unwrap();
    let free = store.usage().free;
    drop(store.reserve_write(1, 0, CHUNK, 100, 9000).unwrap());
    drop(store.reserve_write(1, 0, CHUNK, 5000, 9000).unwrap());
    let reserved = store.reserve_write(1, 0, CHUNK, 5000, 9000).unwrap();
    let mut transaction = store.begin();
    store.commit_write(reserved, &mut transaction, 5).unwrap();
    drop(transaction);
    assert_eq!(store.usage().free, free);
    let lsn_count = store.usage().journal_used;
    assert_eq!(reopen(&disk).unwrap().usage().journal_used, lsn_count);
    store.check().unwrap();
}

/// Goal: full means full of data, not of holes between data, and a write that does not fit changes nothing.
/// Method: fill with single pages, free every second one, and write chunks that only fit in pieces.
#[test]
fn fragments_are_used_to_the_last_page() {
    let (disk, store) = new_store(64 * PAGE_SIZE, false);
    for file in 0..64 {
        write(&store, file, 0, 4096, 0, &[file as u8; 4096]).unwrap();
    }
    assert!(matches!(store.reserve_write(99, 0, 4096, 0, 1), Err(StoreError::Full)));
    for file in (0..64).step_by(2) {
        let mut transaction = store.begin();
        store.reap_file(file, &mut transaction);
        store.commit(transaction).unwrap();
    }
    let content = body(&mut Random(5), 32 * 4096);
    assert!(matches!(store.reserve_write(100, 0, 1 << 20, 0, 33 * 4096), Err(StoreError::Full)));
    store.check().unwrap();
    write(&store, 100, 0, 1 << 20, 0, &content).unwrap();
    assert_eq!(store.usage().free, 0);
    assert!(read(&reopen(&disk).unwrap(), 100, 0, 0, 32 * 4096) == content);
    assert_eq!(store.share(99), None);
    store.check().unwrap();
}

/// Goal: a medium that has no more space makes the store full early, and nothing is half written.
/// Method: let allocations fail after the first step.
#[test]
fn a_full_medium_is_a_full_store() {
    let (disk, store) = new_store(8 << 20, false);
    disk.fail_allocations_after(Some(1));
    let mut written = 0;
    let error = loop {
        match write(&store, written, 0, 1 << 20, 0, &[3; 1 << 20]) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Full));
    assert_eq!((written, store.usage().backed), (4, 4 << 20));
    store.check().unwrap();
    disk.fail_allocations_after(None);
    write(&store, written, 0, 1 << 20, 0, &[3; 1 << 20]).unwrap();
}

/// Goal: space is faulted in ahead of its use up to a bound, an eighth of a small store, in steps that end at whole
/// multiples of their size; it is due again when half of it is used, and freed pages count as well. Method: count the
/// steps of a store of 16 MiB, use its space up, and free it.
#[test]
fn space_is_faulted_in_ahead() {
    let (_, store) = new_store(16 << 20, false);
    let fill = |store: &Store| (0..).take_while(|_| store.prefault_step()).count();
    assert!(store.is_prefault_due());
    assert_eq!((fill(&store), store.usage().backed), (8, 2 << 20));
    assert!(!store.is_prefault_due() && !store.prefault_step());
    write(&store, 1, 0, 1 << 20, 0, &[1; 1 << 20]).unwrap();
    assert!(!store.is_prefault_due());
    write(&store, 2, 0, 4096, 0, &[2; 4096]).unwrap();
    assert!(store.is_prefault_due());
    assert_eq!((fill(&store), store.usage().backed), (5, (3 << 20) + (256 << 10)));
    // A request that needs more takes 4 MiB at a time, and ends at a multiple of it.
    write(&store, 3, 0, 3 << 20, 0, &[3; 3 << 20]).unwrap();
    assert_eq!(store.usage().backed, 8 << 20);
    for file in 1..=3 {
        let mut transaction = store.begin();
        store.reap_file(file, &mut transaction);
        store.commit(transaction).unwrap();
    }
    assert!(!store.is_prefault_due() && !store.prefault_step());
    store.check().unwrap();
}

/// Goal: a medium that refuses to give space ahead is not asked again and again; whoever needs the space hears of it.
#[test]
fn nothing_is_faulted_in_where_there_is_no_room() {
    let (disk, store) = new_store(16 << 20, false);
    disk.fail_allocations_after(Some(1));
    assert!(store.prefault_step() && !store.prefault_step());
    assert!(!store.is_prefault_due() && store.usage().backed == 256 << 10);
    assert!(matches!(write(&store, 1, 0, 1 << 20, 0, &[3; 1 << 20]), Err(StoreError::Full)));
    disk.fail_allocations_after(None);
    write(&store, 1, 0, 1 << 20, 0, &[3; 1 << 20]).unwrap();
    let options =
        StoreOptions { size: 16 << 20, journal_size: 64 * 1024, journal_growth: JournalGrowth::NONE, checksums: false };
    let stable = Store::create(Rc::new(TestDisk::stable()), &options, IDENTITY).unwrap();
    assert!(!stable.is_prefault_due() && !stable.prefault_step());
}

/// Goal: a checkpoint that the medium has no space for is an error; the journal keeps everything and a later one works.
/// Method: refuse the allocation of the segment.
#[test]
fn a_checkpoint_without_space_is_given_up() {
    let (disk, store) = new_store(64 * PAGE_SIZE, false);
    write(&store, 1, 0, 4096, 0, &[5; 4096]).unwrap();
    disk.fail_allocations_after(Some(0));
    assert!(matches!(store.checkpoint_begin().finish(), Err(StoreError::Medium(..))));
    assert!(store.usage().journal_used > 0);
    disk.fail_allocations_after(None);
    store.checkpoint_begin().finish().unwrap();
    assert_eq!(store.usage().journal_used, 0);
    assert_eq!(read(&reopen(&disk).unwrap(), 1, 0, 0, 4096), [5; 4096]);
}

/// Goal: chunks written piece by piece, in any order, stay in few extents and land where they belong without copies.
/// Method: 47,008-byte pieces of a 1 MiB chunk, forwards; places that follow one another, and few extents at the end.
/// In the fourth chunk, whose forerunners are full, the second half comes first.
#[test]
fn pieces_land_side_by_side() {
    let (_, store) = new_store(64 << 20, false);
    let piece = 47_008;
    for index in [0, 1] {
        for number in 0..22 {
            let reserved = store.reserve_write(1, index, 1 << 20, number * piece, piece).unwrap();
            assert!(offsets(&reserved).len() <= 2);
            fill(&reserved, &vec![number as u8; piece as usize]);
            finish(&store, reserved, 1).unwrap();
        }
        assert!(store.read(1, index, 0, 22 * piece).unwrap().pieces.len() <= 3);
    }
    let whole = store.reserve_write(1, 2, 1 << 20, 0, 1 << 19).unwrap();
    fill(&whole, &vec![1; 1 << 19]);
    finish(&store, whole, 1).unwrap();
    let rest = store.reserve_write(1, 2, 1 << 20, 1 << 19, 1 << 19).unwrap();
    assert_eq!(rest.places[0].offset, store.read(1, 2, 0, 1).map(|read| first_offset(&read)).unwrap() + (1 << 19));
    fill(&rest, &vec![1; 1 << 19]);
    finish(&store, rest, 1).unwrap();
    for number in (11..22).chain(0..11) {
        let reserved = store.reserve_write(1, 3, 1 << 20, number * piece, piece).unwrap();
        assert_eq!(offsets(&reserved).len(), 1);
        fill(&reserved, &vec![number as u8; piece as usize]);
        finish(&store, reserved, 1).unwrap();
    }
    assert_eq!(store.read(1, 3, 0, 22 * piece).unwrap().pieces.len(), 1);
    assert_eq!(
        read(&store, 1, 3, 10 * piece, 2 * piece),
        [vec![10; piece as usize], vec![11; piece as usize]].concat()
    );
    // A small file's second chunk does not get it all.
    let small = store.reserve_write(2, 1, 1 << 20, 0, 4096).unwrap();
    fill(&small, &[1; 4096]);
    finish(&store, small, 1).unwrap();
    let usage = store.usage();
    assert_eq!(usage.size - usage.free, (4 << 20) + (128 << 10));
}

fn first_offset(read: &ChunkRead) -> u64 {
    match &read.pieces[0] {
        Piece::Bytes(span) => span.offset,
        Piece::Zero(_) => panic!("bytes were written there"),
    }
}

/// Goal: pages that were freed are used again before new ones are taken from the medium.
/// Method: write and reap; the backed space does not grow.
#[test]
fn freed_pages_come_back_first() {
    let (_, store) = new_store(64 << 20, false);
    let mut backed = Vec::new();
    for file in 0..100 {
        write(&store, file, 1, 1 << 20, 0, &[1; 1 << 20]).unwrap();
        let mut transaction = store.begin();
        store.reap_file(file, &mut transaction);
        store.commit(transaction).unwrap();
        backed.push(store.usage().backed);
        if file % 20 == 0 {
            store.checkpoint_begin().finish().unwrap();
        }
    }
    assert!(backed.iter().all(|&size| size == backed[0]));
}

/// Goal: the share tells end, count, sizes and generations, and outlives its chunks.
/// Method: follow one file through its life.
#[test]
fn the_share_follows_the_file() {
    let (disk, store) = new_store(64 * PAGE_SIZE, false);
    write(&store, 9, 4, 5000, 10, &[1; 20]).unwrap();
    let share = store.share(9).unwrap();
    assert_eq!((share.end, share.chunk_count, share.chunk_size, share.mtime), (4 * 5000 + 30, 1, 5000, 1));
    write(&store, 9, 2, 5000, 0, &[1; 5000]).unwrap();
    assert_eq!(store.share(9).unwrap().end, 4 * 5000 + 30);
    assert!(matches!(
        write(&store, 9, 2, 4096, 0, &[1]),
        Err(StoreError::ChunkSizeMismatch { known: 5000, given: 4096, .. })
    ));
    assert!(matches!(write(&store, 9, 2, 5000, 4999, &[1; 2]), Err(StoreError::TooLarge)));
    let mut transaction = store.begin();
    store.set_announced(9, Some(11), 0, &mut transaction);
    store.commit(transaction).unwrap();
    let mut transaction = store.begin();
    store.truncate_file(9, 0, 12, &mut transaction);
    store.commit(transaction).unwrap();
    let expected =
        FileShare { end: 0, mtime: 1, chunk_size: 5000, chunk_count: 0, generation: 12, announced: Some(11) };
    assert_eq!(store.share(9), Some(expected));
    assert_eq!(reopen(&disk).unwrap().share(9), Some(expected));
    assert_eq!(store.usage().free, 64 * PAGE_SIZE);
}

/// Goal: a file of many chunks is removed in one record, and its pages come back in bounded steps.
/// Method: reap a file of a thousand chunks and look at the free pages after each commit.
#[test]
fn large_files_are_freed_in_steps() {
    let (disk, store) = new_store(16 << 20, false);
    for index in 0..1000 {
        if store.checkpoint_due() {
            store.checkpoint_begin().finish().unwrap();
        }
        write(&store, 1, index, 4096, 0, &[1; 4096]).unwrap();
    }
    let before = store.usage().journal_used;
    let mut transaction = store.begin();
    store.reap_file(1, &mut transaction);
    store.commit(transaction).unwrap();
    assert_eq!(store.usage().journal_used, before + 64);
    assert_eq!((store.share(1), store.usage().chunks), (None, 0));
    for _ in 0..5 {
        store.commit(store.begin()).unwrap();
    }
    assert_eq!(store.usage().free, 16 << 20);
    store.check().unwrap();
    assert_eq!(reopen(&disk).unwrap().usage().free, 16 << 20);
}

/// Goal: the journal never holds a checkpoint up for good: records that can never fit are refused as such, and after a
/// full journal a checkpoint frees it.
/// Method: oversized entries; commits until the journal is full; a checkpoint; a commit.
#[test]
fn a_full_journal_is_freed_by_a_checkpoint() {
    let (_, store) = new_store(64 * PAGE_SIZE, false);
    let put = |size: usize| {
        let mut transaction = store.begin();
        transaction.put(64, |out| out.resize(out.len() + size, 1));
        store.commit(transaction)
    };
    assert!(matches!(put(40_000), Err(StoreError::TooLarge)));
    let mut checkpoint_was_due = false;
    let error = loop {
        checkpoint_was_due |= store.checkpoint_due();
        if let Err(error) = put(500) {
            break error;
        }
    };
    assert!(checkpoint_was_due && matches!(error, StoreError::JournalFull));
    store.checkpoint_begin().finish().unwrap();
    put(500).unwrap();
}

/// Goal: zeros that fill a gap between ranges never fall onto a body that is on its way.
/// Method: many small ranges; a write lands in the smallest gap while another makes the ranges too many.
#[test]
fn gaps_are_not_filled_under_a_body() {
    let (disk, store) = new_store(64 * PAGE_SIZE, true);
    let mut expected = vec![0; CHUNK as usize];
    write(&store, 1, 0, CHUNK, 60_000, &[9; 10]).unwrap();
    expected[60_000..60_010].fill(9);
    for number in 0..7 {
        write(&store, 1, 0, CHUNK, number * 4000, &[1; 3000]).unwrap();
        expected[number as usize * 4000..][..3000].fill(1);
    }
    let small = store.reserve_write(1, 0, CHUNK, 27_100, 300).unwrap();
    fill(&small, &[5; 300]);
    write(&store, 1, 0, CHUNK, 27_500, &[2; 10_000]).unwrap();
    expected[27_500..37_500].fill(2);
    write(&store, 1, 0, CHUNK, 50_000, &[3; 10]).unwrap();
    expected[50_000..50_010].fill(3);
    finish(&store, small, 1).unwrap();
    expected[27_100..27_400].fill(5);
    assert!(read(&store, 1, 0, 0, CHUNK) == expected);
    assert!(read(&reopen(&disk).unwrap(), 1, 0, 0, CHUNK) == expected);
}

/// Goal: a finished checkpoint releases the journal up to its begin and not further.
/// Method: commit while the checkpoint is under way, then fill the journal and open.
#[test]
fn a_checkpoint_keeps_the_journal_since_its_begin() {
    let (disk, store) = new_store(64 * PAGE_SIZE, false);
    let checkpoint = store.checkpoint_begin();
    for index in 0..10 {
        write(&store, 1, index, 4096, 0, &[index as u8; 4096]).unwrap();
    }
    let used = store.usage().journal_used;
    checkpoint.finish().unwrap();
    assert_eq!(store.usage().journal_used, used);
    let error = loop {
        let mut transaction = store.begin();
        transaction.put(64, |out| out.resize(out.len() + 1000, 1));
        if let Err(error) = store.commit(transaction) {
            break error;
        }
    };
    assert!(matches!(error, StoreError::JournalFull));
    let opened = reopen(&disk).unwrap();
    assert!((0..10).all(|index| read(&opened, 1, index, 0, 4096) == [index as u8; 4096]));
}

/// Goal: pages that only wait for the next record do not make a store full.
/// Method: overwrite a few bytes by a copy in a store with one free page, then ask for that page.
#[test]
fn staged_pages_come_back_before_the_store_is_full() {
    let (_, store) = new_store(2 * PAGE_SIZE, false);
    write(&store, 1, 0, 4096, 0, &[1; 4096]).unwrap();
    write(&store, 1, 0, 4096, 100, &[2; 10]).unwrap();
    assert_eq!(store.usage().free, 0);
    let reserved = store.reserve_write(2, 0, 4096, 0, 10).unwrap();
    assert_eq!(reserved.places.len(), 1);
    assert_eq!(read(&store, 1, 0, 98, 4), [1, 1, 2, 2]);
    store.check().unwrap();
}

/// Goal: on a volatile medium what was committed is as durable as it will ever be.
/// Method: a commit, and a question.
#[test]
fn durable_is_immediate_in_memory() {
    let (_, store) = new_store(64 * PAGE_SIZE, false);
    write(&store, 1, 0, 4096, 0, &[1; 4096]).unwrap();
    assert!(store.is_durable());
    sync(&store).unwrap();
}

/// Goal: what was reserved can be written when the store is full, once; a hole gives its pages back, and reads as
/// zeros. Method: reserve a chunk, fill the store with another file, write the chunk page by page, punch it, fill what
/// is free.
#[test]
fn reserved_pages_take_writes() {
    for checksums in [false, true] {
        let (disk, store) = new_store(64 * PAGE_SIZE, checksums);
        let mut transaction = store.begin();
        store.reserve_pages(1, 0, CHUNK, 0..CHUNK, &mut transaction);
        store.commit(transaction).unwrap();
        let mut filler = 0;
        while write(&store, 2, filler, 4096, 0, &[9; 4096]).is_ok() {
            filler += 1;
        }
        assert_eq!(store.usage().free, 0);
        assert_eq!(store.share(1).unwrap().end, 0, "nothing is written yet");
        for page in 0..CHUNK / 4096 {
            write(&store, 1, 0, CHUNK, page * 4096, &[page as u8 + 1; 4096]).unwrap();
        }
        let hole = Hole { file: 1, start: 100, end: 4 * 4096 + 100, keep_pages: false, mtime: 5 };
        let mut transaction = store.begin();
        store.punch(hole, &mut transaction);
        store.commit(transaction).unwrap();
        assert_eq!(store.usage().free, 3 * PAGE_SIZE);
        let mut expected: Vec<u8> = (0..CHUNK).map(|byte| (byte / 4096) as u8 + 1).collect();
        expected[100..4 * 4096 + 100].fill(0);
        for store in [store.clone(), reopen(&disk).unwrap()] {
            assert!(read(&store, 1, 0, 0, CHUNK) == expected);
            assert_eq!(store.share(1).unwrap().end, u64::from(CHUNK));
            assert_eq!(store.next_hole(1, 0, CHUNK, 0), Some(100));
            assert_eq!(store.next_data(1, 100), (Some(4 * 4096 + 100), true));
            assert_eq!(store.next_hole(1, 0, CHUNK, 5 * 4096), None);
            store.check().unwrap();
        }
    }
}

/// Goal: a hole over the last bytes leaves the share's end, over a restart and a checkpoint too; a truncate takes it.
#[test]
fn holes_leave_the_end() {
    let (disk, store) = new_store(64 * PAGE_SIZE, false);
    write(&store, 1, 3, 4096, 0, &[1; 1000]).unwrap();
    let mut transaction = store.begin();
    store.punch(Hole { file: 1, start: 0, end: 1 << 40, keep_pages: false, mtime: 7 }, &mut transaction);
    store.commit(transaction).unwrap();
    let end = 3 * 4096 + 1000;
    assert_eq!((store.share(1).unwrap().end, store.share(1).unwrap().chunk_count), (end, 0));
    store.checkpoint_begin().finish().unwrap();
    let store = reopen(&disk).unwrap();
    assert_eq!((store.share(1).unwrap().end, store.share(1).unwrap().mtime), (end, 7));
    let mut transaction = store.begin();
    store.truncate_file(1, 2000, 1, &mut transaction);
    store.commit(transaction).unwrap();
    assert_eq!(store.share(1).unwrap().end, 0);
    assert_eq!(reopen(&disk).unwrap().share(1).unwrap().end, 0);
}

/// Goal: all parts that a write brings of a chunk are one record, whose size is bounded, and gaps between them that
/// nobody wrote stay holes, of as many as a change may keep; beyond that the smallest are filled, and all reads the
/// same.
/// Method: lists of parts with gaps of two sizes, few and as many as may be, with and without checksums and on media
/// that keep what was synced; the journal before and after; the ranges as the look for holes finds them.
#[test]
fn parts_are_one_record_and_leave_holes() {
    const LARGE: u32 = 1 << 20;
    for (checksums, stable) in [(false, false), (true, false), (false, true)] {
        let disk = if stable { TestDisk::stable() } else { TestDisk::default() };
        let journal_growth = JournalGrowth::NONE;
        let options = StoreOptions { size: 16 << 20, journal_size: 1 << 20, journal_growth, checksums };
        let store = Store::create(Rc::new(disk.clone()), &options, IDENTITY).unwrap();
        let holes = |file: u64| {
            let (mut byte, mut holes) = (0, 0);
            while let Some(from) = store.next_hole(file, 0, LARGE, byte) {
                match store.next_data(file, u64::from(from)).0 {
                    Some(next) => byte = next as u32,
                    None => break,
                }
                holes += 1;
            }
            holes
        };
        for (file, count, size, kept) in [(1, 5, 50, 5), (2, 40, 50, 40), (3, 200, 600, 200), (4, 1024, 64, 256)] {
            let step = LARGE / 1100;
            let parts = (0..count).map(|number| (number * step + u32::from(number % 3 == 0), size));
            let parts: Vec<(u32, u32)> = parts.collect();
            let reserved = store.reserve_parts((file, 0), LARGE, parts.iter().copied()).unwrap();
            let bytes = vec![7; (count * size) as usize];
            fill(&reserved, &bytes);
            let (before, estimate) = (store.journal_fill().0, store.entry_size(std::slice::from_ref(&reserved)));
            let lsn = finish(&store, reserved, 1).unwrap();
            let used = (store.journal_fill().0 - before) as usize;
            assert!(used <= 256 + 12 * (kept + 8), "{count} parts took {used} bytes of the journal");
            assert!(used <= estimate + 128, "{count} parts took {used} bytes, {estimate} were expected at most");
            assert_eq!(holes(file), kept - 1 + usize::from(parts[0].0 > 0), "{count} parts");
            let mut expected = vec![0; LARGE as usize];
            parts.iter().for_each(|&(offset, size)| expected[offset as usize..(offset + size) as usize].fill(7));
            assert!(read(&store, file, 0, 0, LARGE) == expected, "{count} parts");
            // A small write leaves a chunk with few ranges.
            assert_eq!(write(&store, file, 0, LARGE, 3, &[9]).unwrap(), lsn + 1);
            assert!(holes(file) <= 9, "{} holes are left of {count} parts", holes(file));
            expected[3] = 9;
            assert!(read(&store, file, 0, 0, LARGE) == expected, "{count} parts and one more");
        }
        store.check().unwrap();
    }
}
