//! Stores whose bits have flipped: what servers say of them, and what `tabane salvage` does. Real servers, stores in
//! memory.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::{Ground, text};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A cluster of two servers with a tree in it whose first one was killed.
struct Damaged {
    ground: Ground,
    stores: PathBuf,
    sums: String,
}

impl Damaged {
    fn new(name: &str) -> Damaged {
        let ground = Ground::new(name);
        let stores = Path::new("/dev/shm").join(ground.path.file_name().unwrap());
        let damaged = Damaged { ground, stores, sums: String::new() };
        let store = format!("memory:{},size=32M", text(&damaged.stores));
        let tree = damaged.ground.make_tree();
        damaged.ground.run(&["up", "--servers", "2", "--store", &store]);
        damaged.ground.run(&["cp", "-r", text(&tree), ":/"]);
        let sums = damaged.ground.run(&["checksum", "-r", ":/tree"]);
        damaged.ground.kill(0);
        Damaged { sums, ..damaged }
    }

    fn store(&self) -> PathBuf {
        self.stores.join("server-0")
    }

    /// Offset of a record in the middle of the journal that has entries.
    fn middle_record(&self) -> u64 {
        let journal = fs::read(self.store().join("journal")).unwrap();
        let size = |at: usize| u32::from_le_bytes(journal[at + 4..at + 8].try_into().unwrap());
        let starts = (0..journal.len()).step_by(64).filter(|at| journal[*at..].starts_with(b"TbJr") && size(*at) > 32);
        let starts: Vec<usize> = starts.collect();
        assert!(starts.len() > 50, "{} records", starts.len());
        starts[starts.len() / 2] as u64
    }

    fn flip(&self, offset: u64, bit: u8) {
        let file = fs::File::options().read(true).write(true).open(self.store().join("journal")).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_all_at(&[byte[0] ^ 1 << bit], offset).unwrap();
    }

    /// What salvage may change.
    fn bytes(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut paths: Vec<PathBuf> = fs::read_dir(self.store()).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| !path.ends_with("data") && !path.ends_with("stamps"));
        paths.sort();
        paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }

    /// A start that does not get the server up.
    fn fail_up(&self) {
        let complaint = self.ground.fail(1, &["up"]);
        let named = format!("store in {}: the store is damaged: ", text(&self.store()));
        let advice = format!("; 'tabane salvage {}' tells whether it can be mended", text(&self.store()));
        assert!(complaint.contains(&named) && complaint.contains(&advice), "{complaint}");
    }

    /// What salvage prints, with its exit status.
    fn salvage(&self, code: i32, options: &[&str]) -> String {
        let store = self.store();
        let output = self.ground.try_run(&[&["salvage", text(&store)][..], options].concat());
        assert_eq!(output.status.code(), Some(code), "{options:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{options:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Goal: a server whose journal has a flipped bit does not start, and says what looks at it; that finds the bit and
/// changes nothing, mends it if asked to, and then everything is there.
/// Method: SIGKILL, one bit of a record with others after it, `up` before and after.
#[test]
fn one_bit_is_mended() {
    let damaged = Damaged::new("salvage-one");
    let sound = damaged.bytes();
    assert!(damaged.salvage(0, &[]).contains("nothing is wrong"));
    let place = damaged.middle_record() + 41;
    damaged.flip(place, 6);
    damaged.fail_up();
    let before = damaged.bytes();
    let said = damaged.salvage(1, &[]);
    assert!(said.contains(&format!("file `journal`, byte {place}, bit 6: record ")), "{said}");
    assert!(said.contains("1 flipped bit; nothing is lost: 'tabane salvage --mend "), "{said}");
    assert!(damaged.bytes() == before);
    let said = damaged.salvage(0, &["--mend"]);
    assert!(said.contains(": flipped, put right\n1 flipped bit put right, nothing is lost; 'tabane up'"), "{said}");
    assert!(damaged.bytes() == sound);
    assert!(damaged.salvage(0, &["--mend"]).contains("nothing is wrong"));
    assert!(damaged.ground.run(&["up"]).contains("1 server started again: 0"));
    assert_eq!(damaged.ground.run(&["checksum", "-r", ":/tree"]), damaged.sums);
    assert!(damaged.ground.run(&["check", "--data"]).contains("all is well"));
}

/// Goal: of more damage it is said where it is and what to do; nothing is changed, with --mend neither.
/// Method: two bits of one record. Flipped back, the server starts.
#[test]
fn two_bits_are_told() {
    let damaged = Damaged::new("salvage-two");
    let record = damaged.middle_record();
    let flip = || [(40, 0), (55, 7)].iter().for_each(|(at, bit)| damaged.flip(record + at, *bit));
    flip();
    damaged.fail_up();
    let before = damaged.bytes();
    for options in [&[][..], &["--mend"]] {
        let said = damaged.salvage(1, options);
        assert!(said.contains(&format!("of the journal, at byte {record}, with record ")), "{said}");
        assert!(said.contains("1 can't be mended") && said.contains("docs/troubleshooting.md"), "{said}");
        assert!(damaged.bytes() == before);
    }
    damaged.fail_up();
    flip();
    damaged.ground.run(&["up"]);
    assert_eq!(damaged.ground.run(&["checksum", "-r", ":/tree"]), damaged.sums);
}

/// The fields of an object.
fn fields(object: &serde_json::Value) -> Vec<String> {
    let mut fields: Vec<String> = object.as_object().unwrap().keys().cloned().collect();
    fields.sort();
    fields
}

/// Goal: for programs the same is printed, with the path exactly, and as docs/json.md says.
/// Method: copies of a store in a directory whose name is no UTF-8, with a bit flipped and with two.
#[test]
fn output_for_programs() {
    let damaged = Damaged::new("salvage-json");
    let copy = damaged.ground.path.join(Path::new(std::ffi::OsStr::from_bytes(b"copy-\xff")));
    fs::create_dir(&copy).unwrap();
    damaged.bytes().iter().for_each(|(path, bytes)| fs::write(copy.join(path.file_name().unwrap()), bytes).unwrap());
    // Only its size is looked at.
    let size = fs::metadata(damaged.store().join("data")).unwrap().len();
    fs::File::create(copy.join("data")).unwrap().set_len(size).unwrap();
    let document = |code: i32, options: &[&str]| -> serde_json::Value {
        let mut command = damaged.ground.command(&[&["salvage", "--json"], options].concat());
        let output = command.arg(&copy).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let sound = document(0, &[]);
    assert!(sound["records"].as_u64().unwrap() > 50 && sound["flipped"].as_array().unwrap().is_empty(), "{sound}");
    let record = damaged.middle_record();
    let journal = fs::File::options().read(true).write(true).open(copy.join("journal")).unwrap();
    let invert = |offset: u64, mask: u8| {
        let mut byte = [0];
        journal.read_exact_at(&mut byte, offset).unwrap();
        journal.write_all_at(&[byte[0] ^ mask], offset).unwrap();
    };
    invert(record + 32, 0xff);
    let lost = document(1, &["--mend"]);
    assert_eq!((lost["unreadable"].as_array().unwrap().len(), &lost["mended"]), (1, &false.into()), "{lost}");
    invert(record + 32, 0xfe);
    let found = document(1, &[]);
    let flipped = &found["flipped"][0];
    assert_eq!(
        (&flipped["file"], flipped["byte"].as_u64(), &flipped["bit"]),
        (&"journal".into(), Some(record + 32), &0.into())
    );
    assert_eq!(fields(flipped), ["bit", "byte", "file", "what"]);
    let mended = document(0, &["--mend"]);
    assert_eq!((&mended["flipped"], &mended["mended"]), (&found["flipped"], &true.into()));
    assert_eq!(document(0, &[])["flipped"], sound["flipped"]);

    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md")).unwrap();
    let chapter = page.split("\n## ").find(|part| part.starts_with("tabane salvage\n")).unwrap();
    let cells = chapter.lines().filter_map(|line| line.strip_prefix("| `")?.split("` |").next());
    let mut documented: Vec<String> = cells.flat_map(|cell| cell.split("`, `").map(str::to_owned)).collect();
    documented.sort();
    assert_eq!(fields(&mended), documented);
}

/// Goal: what is no store, or is in use, is refused in words that say what is meant, with an exit status of its own; no
/// directory is made.
#[test]
fn wrong_uses() {
    let damaged = Damaged::new("salvage-wrong");
    let (ground, stores) = (&damaged.ground, &damaged.stores);
    let refused = |path: &Path, words: &str| {
        for options in [&[][..], &["--mend"], &["--json"]] {
            let complaint = ground.fail(2, &[&["salvage", text(path)][..], options].concat());
            assert!(complaint.contains(words), "{complaint}");
        }
    };
    let nowhere = ground.path.join("nowhere/at/all");
    refused(&nowhere, "nowhere/at/all: no such directory");
    assert!(!ground.path.join("nowhere").exists());
    refused(
        &ground.run_directory(),
        &format!("run directory; name the store of one server, such as {}", text(&damaged.store())),
    );
    refused(stores, &format!("name one of them, such as {}", text(&damaged.store())));
    refused(&ground.path.join("tree"), "there is no store in it");
    refused(&ground.path.join("tree/one"), "not a directory");
    refused(&stores.join("server-1"), "a server uses it; stop that server first");
    assert!(ground.fail(2, &["salvage"]).contains("DIR is missing"));
    let super_of = damaged.store().join("super");
    let away = damaged.store().join("away");
    fs::rename(&super_of, &away).unwrap();
    refused(&damaged.store(), "the file `super` is missing");
    fs::rename(&away, &super_of).unwrap();

    if reactor::process::user() == 0 {
        // Whoever is not root, and not the one whose server it is.
        fs::set_permissions(&ground.path, fs::Permissions::from_mode(0o755)).unwrap();
        let program = ground.path.join("tabane");
        fs::copy(common::TABANE, &program).unwrap();
        let words = ["--reuid", "65534", "--regid", "65534", "--clear-groups", text(&program), "salvage"];
        let mut command = std::process::Command::new("setpriv");
        command.args(words).arg(damaged.store()).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nowhere");
        let output = command.output().unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert!(complaint.contains("permission denied; work as the user whose server it is"), "{complaint}");
        assert_eq!(output.status.code(), Some(2));
    }
    ground.run(&["up"]);
}
