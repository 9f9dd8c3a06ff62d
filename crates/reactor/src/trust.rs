//! Files that tell whom to talk to, and with which key: opened so that no other user of the machine can have put them
//! there.
//!
//! Each component of the path is opened by itself, below what was opened before it, and looked at as what was opened;
//! links are followed by hand. So nothing can be put in place of a component between the look and the use. What must
//! hold:
//!
//! 1. A directory on the way belongs to us or to root, and nobody else may write to it; or it has the sticky bit, as
//!    /tmp has, and what lies in it belongs to us or to root. A group of ours alone is nobody else.
//! 2. A directory whose files are believed belongs to us or to root, and nobody else may write to it.
//! 3. A file that is believed is a plain one, belongs to us or to root, and nobody else may write to it, nor read it
//!    unless its directory is closed to others: the key lies in it.
//!
//! In a user namespace that lacks the machine's root (most containers), 1. accepts owners that have no number there; 2.
//! and 3. hold all the same, so that nothing of others is believed.

use crate::process::{is_private_group, user, user_name};
use crate::system::check;
use std::collections::VecDeque;
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Symbolic links that are followed on one way, as many as the kernel follows (path_resolution(7)).
const LINK_COUNT_MAX: u32 = 40;
const ROOT: u32 = 0;
/// Bits by which the group and others may write, and by which they may do anything.
const GROUP_WRITABLE: u32 = 0o020;
const OTHERS_WRITABLE: u32 = 0o002;
const WRITABLE: u32 = GROUP_WRITABLE | OTHERS_WRITABLE;
const OPEN: u32 = 0o077;
const STICKY: u32 = 0o1000;
/// Bytes of a file that is believed, at most.
const FILE_SIZE_MAX: u64 = 16 << 20;

/// Why something is not believed.
#[derive(Debug)]
pub enum Distrust {
    /// It can't be opened or read.
    System(PathBuf, io::Error),
    /// It belongs to another user.
    Foreign(PathBuf, u32),
    /// Others may write to it: to a directory, or else a file.
    Writable(PathBuf, bool),
    /// Others may read it.
    Readable(PathBuf),
    /// It is neither a file nor a directory.
    Odd(PathBuf),
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distrust::System(path, error) => write!(f, "{}: {error}", path.display()),
            Distrust::Foreign(path, owner) => {
                let name = user_name(*owner).map(|name| format!(" ({name})")).unwrap_or_default();
                write!(
                    f,
                    "{} belongs to user {owner}{name}, who may lead you to servers of their own; name a run directory \
                     of yours, or work as that user",
                    path.display()
                )
            }
            Distrust::Writable(path, true) => write!(
                f,
                "others may write to the directory {0} and put there what they like; take that from them (chmod go-w \
                 {0}), or keep the run directory elsewhere",
                path.display()
            ),
            Distrust::Writable(path, false) => {
                write!(
                    f,
                    "others may write to {0}; take that from them (chmod 600 {0}) once it is as it should be",
                    path.display()
                )
            }
            Distrust::Readable(path) => {
                write!(f, "others may read {0}, and the key in it; take that from them (chmod 600 {0})", path.display())
            }
            Distrust::Odd(path) => write!(f, "{} is neither a file nor a directory", path.display()),
        }
    }
}

/// What a path has led to.
struct TrustedPath {
    path: PathBuf,
    /// The directory itself, or the one that the file is in.
    directory: File,
    facts: Metadata,
    /// The name within it.
    file: Option<OsString>,
}

/// The text of the file at `path`, or of that named `name` in the directory there.
pub fn read(path: &Path, name: &str) -> Result<String, Distrust> {
    let mut text = String::new();
    let read = open(path, name)?.take(FILE_SIZE_MAX).read_to_string(&mut text);
    read.map_err(|error| Distrust::System(path.to_owned(), error))?;
    Ok(text)
}

/// The same file, opened.
pub fn open(path: &Path, name: &str) -> Result<File, Distrust> {
    let mut place = walk(path)?;
    if place.file.is_none() {
        believe_directory(&place.path, &place.facts)?;
        place.path.push(name);
        place.file = Some(OsString::from(name));
    }
    let of_system = |error| Distrust::System(place.path.clone(), error);
    let name = place.file.as_deref().unwrap_or(OsStr::new(name));
    // A pipe in its place must not hold us up before we have seen that it is one.
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = open_at(&place.directory, name, flags).map_err(of_system)?;
    let facts = file.metadata().map_err(of_system)?;
    believe_file(&place.path, &facts, &place.facts)?;
    Ok(file)
}

/// Whether the files of a directory may be believed.
pub fn check_directory(path: &Path) -> Result<(), Distrust> {
    let place = walk(path)?;
    match place.file {
        Some(_) => Err(Distrust::System(place.path, io::Error::from_raw_os_error(libc::ENOTDIR))),
        None => believe_directory(&place.path, &place.facts),
    }
}

/// Whether others than its owner may write to a directory.
fn is_writable(facts: &Metadata) -> bool {
    let by_group = facts.mode() & GROUP_WRITABLE != 0;
    facts.mode() & OTHERS_WRITABLE != 0 || by_group && !is_private_group(facts.gid())
}

fn is_ours(owner: u32) -> bool {
    owner == user() || owner == ROOT
}

/// Rule 2.
fn believe_directory(path: &Path, facts: &Metadata) -> Result<(), Distrust> {
    match is_writable(facts) {
        _ if !is_ours(facts.uid()) => Err(Distrust::Foreign(path.to_owned(), facts.uid())),
        false => Ok(()),
        true => Err(Distrust::Writable(path.to_owned(), true)),
    }
}

/// Rule 3.
fn believe_file(path: &Path, facts: &Metadata, directory: &Metadata) -> Result<(), Distrust> {
    if !facts.is_file() {
        return Err(Distrust::Odd(path.to_owned()));
    }
    if !is_ours(facts.uid()) {
        return Err(Distrust::Foreign(path.to_owned(), facts.uid()));
    }
    if facts.mode() & WRITABLE != 0 {
        return Err(Distrust::Writable(path.to_owned(), false));
    }
    match facts.mode() & OPEN != 0 && directory.mode() & OPEN != 0 {
        true => Err(Distrust::Readable(path.to_owned())),
        false => Ok(()),
    }
}

/// Rule 1, and what a path leads to.
fn walk(path: &Path) -> Result<TrustedPath, Distrust> {
    let of_system = |path: &Path, error| Distrust::System(path.to_owned(), error);
    let absolute = std::path::absolute(path).map_err(|error| of_system(path, error))?;
    let mut left: VecDeque<OsString> = parts(&absolute).collect();
    let mut links = 0;
    let mut here = PathBuf::from("/");
    let mut directory = File::open(&here).map_err(|error| of_system(&here, error))?;
    let mut facts = look(&here, &directory)?;
    while let Some(name) = left.pop_front() {
        if name == "/" {
            here = PathBuf::from("/");
            directory = File::open(&here).map_err(|error| of_system(&here, error))?;
            facts = look(&here, &directory)?;
            continue;
        }
        let next = if name == ".." { here.parent().unwrap_or(&here).to_owned() } else { here.join(&name) };
        let is_shared = is_writable(&facts);
        // Asking for a directory also has the kernel mount what is mounted on demand.
        match open_at(&directory, &name, libc::O_PATH | libc::O_DIRECTORY) {
            Ok(found) => {
                let found_facts = look(&next, &found)?;
                (here, directory, facts) = (next, found, found_facts);
                continue;
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTDIR | libc::ELOOP)) => {}
            Err(error) => return Err(of_system(&next, error)),
        }
        let found = open_at(&directory, &name, libc::O_PATH).map_err(|error| of_system(&next, error))?;
        let found_facts = found.metadata().map_err(|error| of_system(&next, error))?;
        if is_shared && !is_above_us(found_facts.uid()) {
            return Err(Distrust::Foreign(next, found_facts.uid()));
        }
        if found_facts.is_symlink() {
            links += 1;
            let target = match links > LINK_COUNT_MAX {
                true => Err(io::Error::from_raw_os_error(libc::ELOOP)),
                false => read_link(&found),
            };
            let target = target.map_err(|error| of_system(&next, error))?;
            parts(&target).collect::<Vec<_>>().into_iter().rev().for_each(|part| left.push_front(part));
        } else if left.is_empty() {
            return Ok(TrustedPath { path: next, directory, facts, file: Some(name) });
        } else {
            return Err(of_system(&next, io::Error::from_raw_os_error(libc::ENOTDIR)));
        }
    }
    Ok(TrustedPath { path: here, directory, facts, file: None })
}

/// The parts of a path, "/" for its beginning if it is absolute.
fn parts(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter(|part| *part != Component::CurDir).map(|part| part.as_os_str().to_owned())
}

/// What a directory on the way is like, if it may lie there.
fn look(path: &Path, directory: &File) -> Result<Metadata, Distrust> {
    let facts = directory.metadata().map_err(|error| Distrust::System(path.to_owned(), error))?;
    if !is_above_us(facts.uid()) {
        return Err(Distrust::Foreign(path.to_owned(), facts.uid()));
    }
    match is_writable(&facts) && facts.mode() & STICKY == 0 {
        true => Err(Distrust::Writable(path.to_owned(), true)),
        false => Ok(facts),
    }
}

/// Whether what lies on the way may belong to this user.
fn is_above_us(owner: u32) -> bool {
    is_ours(owner) || is_unknown(owner)
}

/// Whether it is the number of those that have none in our user namespace, which lacks some of the machine's users
/// (user_namespaces(7)).
fn is_unknown(owner: u32) -> bool {
    let number = |path| std::fs::read_to_string(path).unwrap_or_default();
    let unknown = number("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(65_534);
    let all = ["0", "0", "4294967295"];
    owner == unknown && !number("/proc/self/uid_map").split_ascii_whitespace().eq(all)
}

/// Opens what has this name in a directory, and never what a link of that name leads to.
fn open_at(directory: &File, name: &OsStr, flags: libc::c_int) -> io::Result<File> {
    let name = CString::new(name.as_bytes())?;
    let flags = flags | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: the name ends with NUL and lives through the call; the new descriptor is owned from here on.
    let opened = unsafe {
        let raw = check(libc::openat(directory.as_raw_fd(), name.as_ptr(), flags))?;
        OwnedFd::from_raw_fd(raw)
    };
    Ok(File::from(opened))
}

/// Where an opened symbolic link leads.
fn read_link(link: &File) -> io::Result<PathBuf> {
    let mut target = vec![0; libc::PATH_MAX as usize];
    // SAFETY: the empty name ends with NUL and stands for the link itself; at most the size of the vector is written.
    let size = unsafe { libc::readlinkat(link.as_raw_fd(), c"".as_ptr(), target.as_mut_ptr().cast(), target.len()) };
    let size = usize::try_from(size).map_err(|_| io::Error::last_os_error())?;
    target.truncate(size);
    Ok(PathBuf::from(OsString::from_vec(target)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    const STRANGER: u32 = 65_534;

    struct Scene(PathBuf);

    impl Scene {
        /// A directory of ours with a cluster file in a directory `run` of it.
        fn new(name: &str) -> Scene {
            let path = std::env::temp_dir().join(format!("tabane-trust-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("run")).unwrap();
            let scene = Scene(path);
            scene.set_mode("", 0o755);
            scene.set_mode("run", 0o700);
            fs::write(scene.at("run/cluster"), "text").unwrap();
            scene.set_mode("run/cluster", 0o600);
            scene
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.join(path)
        }

        fn set_mode(&self, path: &str, mode: u32) {
            fs::set_permissions(self.at(path), fs::Permissions::from_mode(mode)).unwrap();
        }

        fn refused(&self, path: &str, words: &str) {
            let said = read(&self.at(path), "cluster").expect_err("it may not be believed").to_string();
            assert!(said.contains(words), "{path}: {said}");
        }

        fn taken(&self, path: &str) {
            let text = read(&self.at(path), "cluster").unwrap_or_else(|distrust| panic!("{path}: {distrust}"));
            assert_eq!(text, "text");
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    /// Goal: what others may write to, or read the key in, is refused by its name; links, `..` and sticky directories
    /// are taken as they come.
    /// Method: one mode after the other.
    #[test]
    fn modes() {
        let scene = Scene::new("modes");
        scene.taken("run");
        scene.taken("run/cluster");
        scene.taken("run/../run/./cluster");
        symlink("run", scene.at("link")).unwrap();
        symlink(scene.at("link/cluster"), scene.at("deep")).unwrap();
        scene.taken("link");
        scene.taken("deep");
        symlink("loop", scene.at("loop")).unwrap();
        scene.refused("loop", "symbolic links");
        scene.refused("nowhere", "nowhere");
        scene.refused("run/cluster/x", "cluster");
        scene.set_mode("run", 0o707);
        scene.refused("run", "chmod go-w");
        scene.set_mode("run", 0o755);
        scene.taken("run");
        for (mode, words) in [(0o640, "may read"), (0o604, "may read"), (0o620, "may write"), (0o602, "may write")] {
            scene.set_mode("run/cluster", mode);
            scene.refused("run", words);
            scene.refused("deep", words);
        }
        scene.set_mode("run", 0o700);
        scene.set_mode("run/cluster", 0o644);
        scene.taken("run");
        scene.set_mode("run/cluster", 0o600);
        scene.set_mode("", 0o777);
        scene.refused("run", "chmod go-w");
        scene.set_mode("", 0o1777);
        scene.taken("run");
        scene.taken("link");
        fs::remove_file(scene.at("run/cluster")).unwrap();
        fs::create_dir(scene.at("run/cluster")).unwrap();
        scene.refused("run", "neither a file nor a directory");
    }

    /// Goal: what belongs to another user is refused, whether it is the file, its directory, a directory on the way, or
    /// a link in a directory that anybody may write to.
    /// Method: as root, each given away in turn.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "whether a test is left out is for whoever runs it")]
    fn owners() {
        if std::env::var("TABANE_CI_NO_ROOT").is_ok_and(|value| value == "1") {
            return;
        }
        let scene = Scene::new("owners");
        let words = format!("belongs to user {STRANGER}");
        for path in ["run/cluster", "run", ""] {
            let give = |owner| {
                chown(scene.at(path), Some(owner), None)
                    .expect("this test gives files away: run it as root, or set TABANE_CI_NO_ROOT=1 to leave it out")
            };
            give(STRANGER);
            scene.refused("run", &words);
            scene.refused("run/cluster", &words);
            assert_eq!(check_directory(&scene.at("run")).is_ok(), path == "run/cluster");
            give(user());
            scene.taken("run");
        }
        // A group of others; that of root is root's own.
        scene.set_mode("", 0o775);
        chown(scene.0.as_path(), None, Some(STRANGER)).unwrap();
        scene.refused("run", "chmod go-w");
        scene.set_mode("", 0o755);
        symlink("run", scene.at("link")).unwrap();
        std::os::unix::fs::lchown(scene.at("link"), Some(STRANGER), None).unwrap();
        scene.taken("link");
        scene.set_mode("", 0o1777);
        scene.refused("link", &words);
    }
}
