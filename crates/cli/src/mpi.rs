//! The library for MPI-IO of a kind of MPI (docs/mpiio.md): where it is, and how programs get it.

use crate::arguments::{Arguments, environment};
use crate::failure::{Failure, Outcome};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

const LIBRARY: &str = "libtabane_mpiio.so";

/// Where directories of kinds are, seen from the directory of this program: where it is installed, and where it was
/// built.
const PLACES: [&str; 2] = ["../lib/tabane", "../mpiio"];

/// Where an installation has the library's sources and their Makefile, seen from there.
const SOURCES: &str = "../share/tabane/mpiio";

/// The library that `--mpi` names: by the kind of MPI that it was built for, or by its path. Errors say which kinds
/// there are, and how one is made.
pub fn library(arguments: &Arguments) -> Outcome<Option<PathBuf>> {
    let Some(kind) = arguments.text("mpi") else { return Ok(None) };
    let program = std::env::current_exe().unwrap_or_default();
    let own = program.parent().unwrap_or(Path::new("/"));
    let places: Vec<PathBuf> = PLACES.iter().map(|place| own.join(place)).collect();
    match find(&kind, &places) {
        Some(library) => Ok(Some(library)),
        None if kind.contains('/') => Err(Failure::usage(format!("--mpi {kind}: there is no {LIBRARY} at this path"))),
        None => {
            let kinds = kinds(&places);
            let there = match &kinds[..] {
                [] => "none is there yet".to_owned(),
                kinds => format!("there is {}", kinds.join(", ")),
            };
            let way = way_to_build(&own.join(SOURCES));
            Err(Failure::usage(format!(
                "--mpi {kind}: there is no {LIBRARY} for this kind of MPI ({there}); {way}, and --mpi takes its path \
                 too"
            )))
        }
    }
}

fn find(kind: &str, places: &[PathBuf]) -> Option<PathBuf> {
    let found = if kind.contains('/') {
        let path = PathBuf::from(kind);
        Some(if path.is_dir() { path.join(LIBRARY) } else { path })
    } else {
        places.iter().map(|place| place.join(kind).join(LIBRARY)).find(|path| path.is_file())
    };
    found.filter(|path| path.is_file()).and_then(|path| fs::canonicalize(path).ok())
}

/// How the library is made: from the sources that were installed, if any were.
fn way_to_build(sources: &Path) -> String {
    match fs::canonicalize(sources).ok().filter(|sources| sources.join("Makefile").is_file()) {
        Some(sources) => format!("`make -C {} MPICC=COMPILER` builds it", sources.display()),
        None => "`make mpiio MPICC=COMPILER` in the sources builds it, `make install` installs it".to_owned(),
    }
}

/// The kinds that there are, sorted.
fn kinds(places: &[PathBuf]) -> Vec<String> {
    let entries = places.iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten();
    let there = entries.filter(|entry| entry.path().join(LIBRARY).is_file());
    let mut kinds: Vec<String> = there.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

/// LD_PRELOAD with the library before what is there already.
pub fn preloads(library: &Path) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = environment("LD_PRELOAD") {
        all.push(":");
        all.push(others);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: kinds are found in the first place that has them, paths may be those of a directory, and what is not there
    /// is not found.
    #[test]
    fn libraries_are_found() {
        let place = fs::canonicalize(std::env::temp_dir()).unwrap().join(format!("tabane-mpi-{}", std::process::id()));
        let [first, second] = ["first", "second"].map(|name| place.join(name));
        for directory in [first.join("mpich"), second.join("mpich"), second.join("openmpi"), second.join("empty")] {
            fs::create_dir_all(&directory).unwrap();
            if !directory.ends_with("empty") {
                fs::write(directory.join(LIBRARY), "").unwrap();
            }
        }
        let places = [first.clone(), place.join("missing"), second.clone()];
        let path = |kind: &str| find(kind, &places);
        assert_eq!(path("mpich"), Some(first.join("mpich").join(LIBRARY)));
        assert_eq!(path("openmpi"), Some(second.join("openmpi").join(LIBRARY)));
        assert_eq!(path(&second.join("openmpi").to_string_lossy()), path("openmpi"));
        assert_eq!(path(&second.join("openmpi").join(LIBRARY).to_string_lossy()), path("openmpi"));
        assert_eq!((path("empty"), path("other"), path(&second.to_string_lossy())), (None, None, None));
        assert_eq!(kinds(&places), ["mpich", "openmpi"]);
        assert!(way_to_build(&second.join("empty")).contains("`make mpiio MPICC=COMPILER`"));
        fs::write(first.join("Makefile"), "").unwrap();
        let way = way_to_build(&second.join("../first"));
        assert_eq!(way, format!("`make -C {} MPICC=COMPILER` builds it", first.display()));
        fs::remove_dir_all(&place).unwrap();
    }
}
