//! Bits that change between the caller's memory and the store, with servers that keep checksums.

#[path = "common/simulated.rs"]
mod common;

use client::{File, OpenHow, Status};
use common::{Guest, Stage};
use std::rc::Rc;
use wire::Placement;

const CHUNK: u32 = 4096;
/// Pieces of this size and more carry bytes of files.
const BODY: usize = 1_000;

fn pattern(size: usize, salt: u64) -> Vec<u8> {
    (0..size as u64).map(|i| ((i * 2_654_435_761 + salt * 977) >> 7) as u8).collect()
}

fn stage(seed: u64, checksums: bool) -> (Stage, Rc<Guest>, File) {
    let stage = Stage::with_checksums(seed, 3, CHUNK, Placement::Modular, checksums);
    let guest = stage.client();
    let file = guest.get(async |fs| fs.open(b"/f", &OpenHow::creating(0o644)).await).expect("created");
    (stage, guest, file)
}

fn write(guest: &Guest, file: &File, bytes: &[u8], offset: u64) -> Result<usize, client::Error> {
    let (file, bytes) = (file.clone(), bytes.to_vec());
    guest.get(async move |fs| fs.write_at(&file, &bytes, offset).await)
}

/// What a client finds that has nothing of the file in memory.
fn read(stage: &Stage, size: usize) -> Result<Vec<u8>, client::Error> {
    stage.client().get(async move |fs| {
        let file = fs.open(b"/f", &OpenHow::reading()).await?;
        let mut place = vec![0xEE; size];
        let count = fs.read_at(&file, &mut place, 0).await?;
        place.truncate(count);
        Ok(place)
    })
}

/// Goal: the fault that these tests are about is one: without checksums a bit that changes on its way is stored, and
/// nobody notices.
#[test]
fn without_checksums_nobody_notices() {
    let (stage, guest, file) = stage(1, false);
    stage.world.flip_bits(1, BODY);
    let bytes = pattern(4_000, 1);
    assert_eq!(write(&guest, &file, &bytes, 0), Ok(4_000));
    let found = read(&stage, 4_000).expect("read");
    assert_eq!(found.iter().zip(&bytes).filter(|(found, right)| found != right).count(), 1);
}

/// Goal: a bit that changes between client and server, in either direction, is noticed, and what was sent is sent
/// again.
/// Method: 500 times a bit at a random place of the body of a write, or of an answer to a read, of one chunk and of
/// several.
#[test]
fn changed_bits_are_sent_again() {
    let (stage, guest, file) = stage(2, true);
    let mut right = vec![0; 30_000];
    for round in 0..250u64 {
        let (offset, size) = (round as usize * 7_919 % 20_000, 1_500 + round as usize * 131 % 8_000);
        let bytes = pattern(size, round);
        stage.world.flip_bits(1, BODY);
        assert_eq!(write(&guest, &file, &bytes, offset as u64), Ok(size), "round {round}");
        right[offset..offset + size].copy_from_slice(&bytes);
        stage.world.flip_bits(u64::from(round % 2 == 0), BODY);
        let found = read(&stage, right.len()).expect("read");
        assert!(found == right[..found.len()], "round {round}");
    }
}

/// Goal: the same for appends, of which servers send each other parts, and for copies within the cluster.
/// Method: two bits a round, the second of which may change between servers.
#[test]
fn appends_and_copies() {
    let (stage, guest, file) = stage(3, true);
    let mut right = Vec::new();
    for round in 0..60u64 {
        let bytes = pattern(2_500 + round as usize * 97 % 9_000, round);
        stage.world.flip_bits(2, BODY);
        let (appended, handle) = (bytes.clone(), file.clone());
        let offset = guest.get(async move |fs| fs.append(&handle, &appended).await);
        assert_eq!(offset, Ok(right.len() as u64), "round {round}");
        right.extend(bytes);
        stage.world.flip_bits(0, BODY);
        assert!(read(&stage, right.len()).expect("read") == right, "round {round}");
    }
}

/// Goal: where bits change again and again, writes and reads fail with words that say so, and what was stored stays as
/// it is.
/// Method: a bit in everything that arrives.
#[test]
fn what_never_arrives_is_not_stored() {
    let (stage, guest, file) = stage(4, true);
    let bytes = pattern(4_000, 1);
    assert_eq!(write(&guest, &file, &bytes, 0), Ok(4_000));
    stage.world.flip_bits(u64::MAX, BODY);
    let error = write(&guest, &file, &pattern(4_000, 2), 0).expect_err("it does not arrive");
    assert_eq!((error.status, error.errno()), (Status::Damaged, 5));
    assert!(error.message.contains("checksum"), "{error}");
    let error = read(&stage, 4_000).expect_err("it does not arrive");
    assert_eq!(error.status, Status::Damaged);
    stage.world.flip_bits(0, BODY);
    assert!(read(&stage, 4_000).expect("read") == bytes);
}
