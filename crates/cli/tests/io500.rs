//! What `scripts/io500.sh` says before it builds or starts anything. The benchmark takes sources that are not here.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

use std::path::PathBuf;
use std::process::{Command, Stdio};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/io500.sh");

/// A directory of this test's own, which goes with it.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("tabane-test-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    /// Makes files of no contents: they are only looked for.
    fn make(&self, names: &[&str]) {
        for name in names {
            let path = self.0.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
    }

    /// Runs the script here, and gives what it complained: it has to refuse.
    fn refused(&self, words: &[&str]) -> String {
        let mut command = Command::new("sh");
        command.arg(SCRIPT).args(words).current_dir(&self.0).env("TMPDIR", &self.0).stdin(Stdio::null());
        let output = command.output().unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {complaint}");
        complaint
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Goal: what is wrong with an option is said by its name, before anything is built or started, and nothing is left.
/// Method: programs of no contents, which could not be run; the directory of temporary files is looked at afterwards.
#[test]
fn wrong_options() {
    let place = Place::new("io500-options");
    assert!(place.refused(&[]).contains("the directory with the programs is missing"));
    assert!(place.refused(&["programs"]).contains("programs: there is no tabane here"));
    place.make(&["programs/tabane", "programs/tabane-bench", "programs/libchfs.so", "programs/libtabane.so"]);
    let cases: &[(&[&str], &str)] = &[
        (&["--nothing", "3"], "--nothing: no such option"),
        (&["--seconds"], "--seconds: a value is missing"),
        (&["--seconds", "0"], "--seconds 0: a number from 1 on is wanted"),
        (&["--procs", "08"], "--procs 08: a number from 1 on is wanted"),
        (&["--servers", "two"], "--servers two: a number from 1 on is wanted"),
        (&["--size", "1.5G"], "--size 1.5G: a whole number with M or G is wanted"),
        (&["--size", "G"], "--size G: a whole number with M or G is wanted"),
        (&["--size", "16M", "--procs", "9"], "--size 16M: too small for 9 processes"),
        (&["--beside", "nowhere"], "--beside nowhere: there is no such directory"),
        (&["--beside", ".", "--size", "100000G"], "--beside .: has less room than the stores, 2 of 100000G"),
        (&["--beside", ".", "--size", "16M"], "--sources is missing"),
    ];
    for (words, expected) in cases {
        let complaint = place.refused(&[&["programs"], *words].concat());
        assert!(complaint.contains(expected), "{words:?}: {complaint}");
    }
    let left: Vec<_> = std::fs::read_dir(&place.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["programs"]);
}

/// Goal: which of the three sources is missing is said, and where it is to be had.
/// Method: they are added one after the other.
#[test]
fn missing_sources() {
    let place = Place::new("io500-sources");
    place.make(&["programs/tabane", "programs/tabane-bench", "programs/libchfs.so", "programs/libtabane.so"]);
    let words = ["programs", "--beside", ".", "--size", "16M", "--sources", "sources"];
    for missing in ["io500/src/phase_find.c", "ior/bootstrap", "pfind/compile.sh"] {
        let complaint = place.refused(&words);
        assert!(complaint.contains(&format!("sources/{missing} is missing")), "{complaint}");
        assert!(complaint.contains("github.com"), "{complaint}");
        place.make(&[&format!("sources/{missing}")]);
    }
}
