//! Pipes, sockets and devices through the client, against real servers in the simulator.

#[path = "common/simulated.rs"]
#[allow(dead_code)]
mod common;

use client::{FileId, Kind, OpenHow, RENAME_EXCHANGE, Status};
use common::Stage;
use wire::Placement;

const DEVICE: u32 = 0x0123_4567;
const KINDS: [(Kind, &[u8], u32); 4] = [
    (Kind::Fifo, b"/pipe", 0o010_000),
    (Kind::Socket, b"/socket", 0o140_000),
    (Kind::CharacterDevice, b"/character", 0o020_000),
    (Kind::BlockDevice, b"/block", 0o060_000),
];

/// Goal: what has no contents here is a name with attributes: made, seen, changed, renamed, linked and removed as a
/// file is, and refused what takes contents. Method: each kind goes through all of it; the number of a device is seen,
/// and only by who asks for it.
#[test]
fn names_with_attributes() {
    let stage = Stage::new(1, 3, 4096, Placement::Modular);
    let guest = stage.client();
    guest.get(async |fs| {
        for (kind, path, bits) in KINDS {
            let made = fs.make_node(path, kind, 0o666, DEVICE).await.expect("made");
            assert_eq!((made.kind, made.st_mode(), made.size, made.link_count), (kind, bits | 0o644, 0, 1));
            assert_eq!(made.device(), if kind.is_device() { DEVICE } else { 0 });
            assert_eq!(fs.stat(path).await.expect("there"), made);
            let again = fs.make_node(path, kind, 0o666, 0).await.expect_err("it is there");
            assert_eq!(again.status, Status::Exists);

            for how in [OpenHow::reading(), OpenHow::reading_and_writing(), OpenHow::creating(0o600)] {
                assert_eq!(fs.open(path, &how).await.expect_err("it has no contents").status, Status::IsSpecial);
            }
            let exclusive = OpenHow { exclusive: true, ..OpenHow::creating(0o600) };
            assert_eq!(fs.open(path, &exclusive).await.expect_err("it is there").status, Status::Exists);
            let below = [path, b"/below"].concat();
            assert_eq!(fs.stat(&below).await.expect_err("no directory").status, Status::NotDirectory);
            assert_eq!(fs.stat(&[path, b"/"].concat()).await.expect_err("no directory").status, Status::NotDirectory);
            assert_eq!(fs.truncate(path, 1).await.expect_err("it has no contents").status, Status::Invalid);
            assert_eq!(fs.readlink(path).await.expect_err("no link").status, Status::Invalid);
            assert_eq!(fs.rmdir(path).await.expect_err("no directory").status, Status::NotDirectory);
            let value = fs.set_extended(path, true, b"user.a", b"", 0).await;
            assert_eq!(value.expect_err("only files and directories have these").status, Status::NotPermitted);

            fs.chmod(path, 0o600).await.expect("changed");
            fs.link(path, b"/second").await.expect("linked");
            fs.rename(b"/second", b"/third", 0).await.expect("renamed");
            fs.open(b"/file", &OpenHow::creating(0o600)).await.expect("created");
            fs.rename(b"/third", b"/file", RENAME_EXCHANGE).await.expect("exchanged");
            let seen = fs.stat(b"/file").await.expect("there");
            assert_eq!((seen.st_mode(), seen.link_count, seen.device()), (bits | 0o600, 2, made.device()));
            fs.unlink(b"/file").await.expect("removed");
            fs.rename(b"/third", path, 0).await.expect("a file replaces it");
            assert_eq!(fs.stat(path).await.expect("there").kind, Kind::File);
            fs.unlink(path).await.expect("removed");
        }
        let made = fs.make_node_at(FileId::ROOT, b"pipe", Kind::Fifo, 0o600, 0).await.expect("made by identity");
        fs.link_id(made.id, FileId::ROOT, b"other").await.expect("linked by identity");
        assert_eq!(fs.lookup_at(FileId::ROOT, b"other").await.expect("there").link_count, 2);
        let other = fs.make_node(b"/file", Kind::File, 0o600, 0).await.expect_err("not made in this way");
        assert_eq!(other.status, Status::Invalid);
        assert_eq!(fs.stat(b"/file").await.expect_err("nothing was made").status, Status::NotFound);
    });
}
