//! fsync as users see it: its cost, and errors of the medium.

#[path = "common/simulated.rs"]
#[allow(dead_code)] // Shared with other tests.
mod simulated;

use client::{OpenHow, Status};
use simulated::{SECOND, Stage};
use wire::Placement;

const CHUNK: u32 = 4096;

/// Goal: fsync asks the servers that this handle wrote to, at once, then the home, and nobody else.
/// Method: count the round trips for one chunk and for as many as there are servers.
#[test]
fn fsync_asks_those_concerned() {
    let stage = Stage::new(1, 4, CHUNK, Placement::Modular);
    let guest = stage.client();
    let file = guest.get(|files| async move {
        let file = files.open(b"/f", &OpenHow::creating(0o644)).await.expect("opened");
        files.write_at(&file, &[1; 100], 0).await.expect("written");
        file
    });
    let own = file.clone();
    let (result, trips) = guest.run(|files| async move { files.synchronise(&own).await });
    assert_eq!((result, trips), (Ok(()), 1));
    let own = file.clone();
    let (result, trips) = guest.run(|files| async move {
        files.write_at(&own, &[2; 4 * CHUNK as usize], 0).await.expect("written");
        files.synchronise(&own).await
    });
    assert_eq!((result, trips), (Ok(()), 4 + 4));
    let (result, trips) = guest.run(|files| async move { files.synchronise_all().await });
    assert_eq!((result, trips), (Ok(()), 4));
}

/// Goal: data that the medium refused is reported once to each open file, and to nobody who opened it later.
/// Method: a sync fails; two handles from before and one from later ask, twice each.
#[test]
fn a_refused_write_is_told_once_to_each() {
    let stage = Stage::new(2, 1, CHUNK, Placement::Modular);
    let guest = stage.client();
    let how = OpenHow::creating(0o644);
    let (one, other) = guest.get(|files| async move {
        let one = files.open(b"/f", &how).await.expect("opened");
        let other = files.open(b"/f", &OpenHow::reading_and_writing()).await.expect("opened");
        files.write_at(&one, &[1; 100], 0).await.expect("written");
        (one, other)
    });
    stage.fail_sync(0);
    let own = one.clone();
    let error = guest.get(|files| async move { files.synchronise(&own).await.expect_err("refused") });
    assert_eq!(error.status, Status::Io);
    assert!(error.message.contains("server 0"), "{}", error.message);
    stage.pass(10 * SECOND);
    guest.get(|files| async move {
        files.synchronise(&one).await.expect("told already, and made good");
        let later = files.open(b"/f", &OpenHow::reading_and_writing()).await.expect("opened");
        files.synchronise(&later).await.expect("no business of a later open");
        files.synchronise(&other).await.expect_err("not told yet");
        files.synchronise(&other).await.expect("told");
        let mut place = [0; 100];
        assert_eq!(files.read_at(&other, &mut place, 0).await.expect("read"), 100);
        assert_eq!(place, [1; 100]);
    });
}
