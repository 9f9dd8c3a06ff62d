//! Extended attributes through the client, against real servers in the simulator.

#[path = "common/simulated.rs"]
#[allow(dead_code)]
mod common;

use client::{EXTENDED_CREATE, OpenHow, Status};
use common::Stage;
use wire::Placement;
use wire::limits::EXTENDED_SIZE_MAX;

/// Goal: attributes belong to the inode: seen through every name of it, wherever those are, and through links.
/// Method: files are renamed to and linked under so many names that some are parted from their inodes; what is set
/// through one name is read through the other; a symbolic link leads to the file or is meant itself.
#[test]
fn through_any_name() {
    let stage = Stage::new(1, 3, 4096, Placement::Modular);
    let guest = stage.client();
    guest.get(async |fs| {
        for index in 0..12u8 {
            let (old, new) = (format!("/old{index}").into_bytes(), format!("/new{index}").into_bytes());
            let file = fs.open(&old, &OpenHow::creating(0o600)).await.expect("created");
            fs.set_extended(&old, true, b"user.a", &[index], 0).await.expect("set by path");
            fs.link(&old, &new).await.expect("linked");
            assert_eq!(fs.get_extended(&new, true, b"user.a").await, Ok(vec![index]));
            fs.set_extended(&new, true, b"user.b", b"two", EXTENDED_CREATE).await.expect("set by the second name");
            assert_eq!(fs.get_file_extended(&file, b"user.b").await, Ok(b"two".to_vec()));
            fs.unlink(&old).await.expect("unlinked");
            assert_eq!(fs.list_extended(&new, true).await, Ok(b"user.a\0user.b\0".to_vec()));
            fs.remove_file_extended(&file, b"user.a").await.expect("removed by handle");
            assert_eq!(fs.list_file_extended(&file).await, Ok(b"user.b\0".to_vec()));
            let trouble = fs.remove_extended(&new, true, b"user.a").await.expect_err("it is gone");
            assert_eq!(trouble.status, Status::NoAttribute);
        }
        fs.symlink(b"new1", b"/link").await.expect("a link");
        assert_eq!(fs.get_extended(b"/link", true, b"user.b").await, Ok(b"two".to_vec()));
        assert_eq!(fs.list_extended(b"/link", false).await, Ok(Vec::new()));
        let refused = fs.set_extended(b"/link", false, b"user.a", b"", 0).await.expect_err("links have no user.");
        assert_eq!(refused.status, Status::NotPermitted);
    });
}

/// Goal: the largest value, an empty one, and sizes and names beyond the limits; each costs one round trip by handle
/// and one more by path.
#[test]
fn limits_and_costs() {
    let stage = Stage::new(2, 2, 4096, Placement::Modular);
    let guest = stage.client();
    let largest: Vec<u8> = (0..EXTENDED_SIZE_MAX).map(|index| (index / 7) as u8).collect();
    let value = largest.clone();
    let file = guest.get(async |fs| fs.open(b"/f", &OpenHow::creating(0o600)).await.expect("created"));
    let handle = file.clone();
    let (_, trips) =
        guest.run(async move |fs| fs.set_file_extended(&handle, b"user.large", &value, 0).await.expect("set"));
    assert_eq!(trips, 1);
    let handle = file.clone();
    let (found, trips) = guest.run(async move |fs| fs.get_file_extended(&handle, b"user.large").await);
    assert_eq!((found.expect("there"), trips), (largest, 1));
    let (found, trips) = guest.run(async |fs| fs.list_extended(b"/f", true).await);
    assert_eq!((found.expect("there"), trips), (b"user.large\0".to_vec(), 2));
    guest.get(async move |fs| {
        fs.set_file_extended(&file, b"user.empty", b"", 0).await.expect("set");
        assert_eq!(fs.get_file_extended(&file, b"user.empty").await, Ok(Vec::new()));
        let too_large = vec![0; EXTENDED_SIZE_MAX + 1];
        let long_name = [b"user.".as_slice(), &[b'x'; 251]].concat();
        for (name, value, expected) in [
            (b"user.c".as_slice(), too_large.as_slice(), Status::ArgumentTooLarge),
            (&long_name, b"", Status::OutOfRange),
            (b"", b"", Status::OutOfRange),
            (b"user.d", &too_large[1..], Status::NoSpace),
        ] {
            let refused = fs.set_file_extended(&file, name, value, 0).await.expect_err("beyond a limit");
            assert_eq!(refused.status, expected);
        }
        let before = fs.stat_file(&file).await.expect("there");
        fs.remove_file_extended(&file, b"user.large").await.expect("removed");
        let after = fs.stat_file(&file).await.expect("there");
        assert!(after.ctime >= before.ctime && after.version > before.version && after.mtime == before.mtime);
    });
}
