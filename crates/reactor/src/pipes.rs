//! Standard input and output of other programs, and our own standard input, as streams of a loop.

use crate::process::{ProcessId, SIGHUP};
use crate::system::check;
use crate::trust::{self, Distrust};
use crate::{Reactor, Stream, threads};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// How often a file that grows is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A connected pair: our end on the loop, and the other one for a program that is to be started.
pub fn pair(reactor: &Reactor) -> io::Result<(Stream, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair()?;
    Ok((reactor.driver().adopt(OwnedFd::from(ours))?, OwnedFd::from(theirs)))
}

/// Does what may wait for others than servers, such as for whoever writes to our standard input, on a thread of its
/// own, while the loop goes on. What is not waited for any more goes on to its own end. Errors: those of starting it,
/// and `BrokenPipe` where it panicked.
pub async fn aside<T: Send + 'static>(reactor: &Reactor, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (ended, theirs) = pair(reactor)?;
    let (sender, receiver) = mpsc::channel();
    threads::start("aside", move || {
        let _theirs = theirs;
        // Whoever asked for it may have gone.
        let _: Result<(), _> = sender.send(work());
    })?;
    // The thread's end of the pair is closed with the last thing it does.
    let _: io::Result<usize> = ended.recv(&mut [0]).await;
    receiver.recv().map_err(|_| ErrorKind::BrokenPipe.into())
}

/// Where lines come from that somebody else writes.
pub enum LineOrigin {
    /// Our own standard input.
    StandardInput,
    /// A file that grows, for launchers that give standard input to one process only. It has ended when it has not
    /// grown for this many looks, or has gone.
    File { path: PathBuf, looks_max: u32 },
}

/// What comes from there. When it ends, this process gets SIGHUP as well, so that whatever it does then is given up.
pub fn follow(reactor: &Reactor, origin: LineOrigin) -> io::Result<Stream> {
    let (stream, theirs) = pair(reactor)?;
    let mut theirs = UnixStream::from(theirs);
    threads::start("orders", move || {
        // Whoever reads the stream may have gone: then nobody cares.
        let _: io::Result<()> = match origin {
            LineOrigin::StandardInput => io::copy(&mut io::stdin().lock(), &mut theirs).map(drop),
            LineOrigin::File { path, looks_max } => follow_file(&path, looks_max, &mut theirs),
        };
        drop(theirs);
        if let Some(own) = ProcessId::of(std::process::id()) {
            let _: io::Result<bool> = own.signal(SIGHUP);
        }
    })?;
    Ok(stream)
}

/// From now on what goes to standard error is passed on as long as somebody reads it, and lost afterwards, so that a
/// program whose caller has gone can still end in order: printing to a closed pipe would be a panic.
pub fn shield_standard_error() -> io::Result<()> {
    let (mut ours, theirs) = UnixStream::pair()?;
    let mut before = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    // SAFETY: both descriptors are open; the second one stays open, now as another end of the pair.
    check(unsafe { libc::dup2(theirs.as_raw_fd(), 2) })?;
    threads::start("complaints", move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = ours.read(&mut bytes) {
            let _: io::Result<()> = before.write_all(&bytes[..count]);
        }
    })
}

/// Opens a file that nobody else can have put there.
fn open_trusted(path: &Path) -> io::Result<File> {
    trust::open(path, "orders").map_err(|distrust| match distrust {
        Distrust::System(_, error) => error,
        distrust => io::Error::new(ErrorKind::PermissionDenied, distrust.to_string()),
    })
}

/// The file is opened anew for each look, for only then network file systems tell what others wrote.
#[allow(clippy::disallowed_methods)] // A thread of its own, which may sleep.
fn follow_file(path: &Path, looks_max: u32, out: &mut impl Write) -> io::Result<()> {
    let (mut offset, mut idle) = (0, 0);
    while idle < looks_max {
        let mut bytes = Vec::new();
        let read = open_trusted(path).and_then(|mut file| {
            file.seek(SeekFrom::Start(offset))?;
            file.read_to_end(&mut bytes)
        });
        match read {
            Err(error) if error.kind() == ErrorKind::NotFound && offset > 0 => return Ok(()),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                eprintln!("tabane: orders: {error}");
                return Err(error);
            }
            Ok(count) if count > 0 => {
                out.write_all(&bytes)?;
                offset += count as u64;
                idle = 0;
            }
            _ => {
                idle += 1;
                std::thread::sleep(LOOK_INTERVAL);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DriverKind;
    use std::process::{Command, Stdio};

    /// Goal: what a program writes comes over a stream, and what is sent to it arrives; then the end is seen.
    #[test]
    fn programs_at_streams() {
        let reactor = Reactor::open(DriverKind::Auto).unwrap();
        let (input, their_input) = pair(&reactor).unwrap();
        let (output, their_output) = pair(&reactor).unwrap();
        let mut command = Command::new("/bin/cat");
        command.stdin(Stdio::from(their_input)).stdout(Stdio::from(their_output));
        let mut child = command.spawn().unwrap();
        drop(command);
        let mut bytes = [0; 5];
        reactor.block_on(async {
            input.send_all(b"hello").await.unwrap();
            output.recv_exact(&mut bytes).await.unwrap();
            input.shutdown();
            assert_eq!(output.recv(&mut [0; 1]).await.unwrap(), 0);
        });
        assert_eq!(&bytes, b"hello");
        assert!(child.wait().unwrap().success());
    }

    /// Goal: a file that grows is followed to its end, which is when nobody writes to it any more.
    #[test]
    fn growing_files() {
        let path = std::env::temp_dir().join(format!("tabane-follow-{}", std::process::id()));
        std::fs::write(&path, "one\n").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let mut out = Vec::new();
        follow_file(&path, 2, &mut out).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(out, b"one\n");
        assert!(follow_file(&path, 2, &mut out).is_ok());
    }
}
