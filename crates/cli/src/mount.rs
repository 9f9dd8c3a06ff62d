//! `tabane mount` and `tabane umount`, and what `up`, `run` and `down` do about mounts.
//!
//! The process that serves a mount is this program with --foreground. It says on its standard output that it is ready;
//! who started it in the background waits for that line.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, io_words};
use crate::mounts::{self, MountRecord, MountSite, log_path, record_of};
use crate::run_directory::{RunDirectory, of_cluster_path};
use crate::session::{cluster_path, find_cluster, open_reactor};
use client::mounts::{MountPoint, mount_on, source_of};
use client::{Client, Cluster, Contact, FileId, Options};
use reactor::process::{ProcessId, SIGKILL, SIGTERM, inherited_descriptor, spawn_detached};
use reactor::workers::{Event, HeldSignals};
use reactor::{Nanos, Reactor};
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tabane_fuse::{IoUring, Mount, MountOptions};

const NANOS_PER_MS: Nanos = 1_000_000;
/// How often a process is looked at while its end is waited for, and how long it has to end.
const LOOK_INTERVAL: Nanos = 5 * NANOS_PER_MS;
const END_TIME: Nanos = 5_000 * NANOS_PER_MS;
/// What the one who serves says when it is ready.
const READY: &str = "mounted on ";
/// Where descriptors that were inherited have paths.
const DESCRIPTORS: &str = "/dev/fd/";
/// Bytes of the log that are shown when it fails.
const LOG_SHOWN_MAX: usize = 2000;

/// A mount that somebody wants, here or on other hosts.
#[derive(Debug, Clone)]
pub struct MountRequest {
    pub directory: PathBuf,
    thread_count: u64,
    io_uring: String,
    keep_entries: String,
    timeout_ms: Option<u64>,
    allow_other: bool,
    suid: bool,
    dev: bool,
    contact: Option<String>,
}

impl MountRequest {
    fn of(arguments: &Arguments, directory: PathBuf) -> MountRequest {
        MountRequest {
            directory,
            thread_count: arguments.number("threads"),
            io_uring: arguments.text_or_default("io-uring"),
            keep_entries: arguments.text_or_default("keep-entries"),
            timeout_ms: arguments.number_given("timeout-ms"),
            allow_other: arguments.flag("allow-other"),
            suid: arguments.flag("suid"),
            dev: arguments.flag("dev"),
            contact: arguments.text("contact"),
        }
    }

    /// As an order to other hosts has it.
    pub fn to_json(&self) -> Value {
        json!({
            "directory": self.directory.display().to_string(),
            "threads": self.thread_count,
            "io_uring": self.io_uring,
            "keep_entries": self.keep_entries,
            "timeout_ms": self.timeout_ms,
            "allow_other": self.allow_other,
            "suid": self.suid,
            "dev": self.dev,
            "contact": self.contact,
        })
    }

    /// What `to_json` has written.
    pub fn from_json(told: &Value) -> Option<MountRequest> {
        Some(MountRequest {
            directory: PathBuf::from(told["directory"].as_str()?),
            thread_count: told["threads"].as_u64()?,
            io_uring: told["io_uring"].as_str()?.to_owned(),
            keep_entries: told["keep_entries"].as_str()?.to_owned(),
            timeout_ms: told["timeout_ms"].as_u64(),
            allow_other: told["allow_other"].as_bool()?,
            suid: told["suid"].as_bool()?,
            dev: told["dev"].as_bool()?,
            contact: told["contact"].as_str().map(str::to_string),
        })
    }
}

/// `tabane mount`.
pub fn run(arguments: &Arguments) -> Outcome {
    check_options(arguments)?;
    let path = Path::new(&arguments.operands[0]);
    let descriptor = descriptor_of(path);
    let directory = match descriptor {
        Some(_) => path.to_owned(),
        None => mount_directory(path)?,
    };
    if let Some(key) = ["allow-other", "suid", "dev"].iter().find(|key| descriptor.is_some() && arguments.flag(key)) {
        return Err(Failure::usage(format!(
            "--{key}: {} is mounted already, with the options of who mounted it; leave it away",
            path.display()
        )));
    }
    if arguments.flag("foreground") {
        return serve(arguments, directory, descriptor);
    }
    let wanted = MountRequest::of(arguments, directory);
    start(&wanted, &cluster_path(arguments))?;
    if descriptor.is_none() {
        println!("{READY}{}", wanted.directory.display());
    }
    Ok(())
}

/// The number of a descriptor of `/dev/fuse` that stands in place of a directory, as libfuse 3.3 and later have it.
fn descriptor_of(path: &Path) -> Option<i32> {
    let digits = path.to_str()?.strip_prefix(DESCRIPTORS)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// What stands for a mount in the run directory and in `status`: of a descriptor, whose directory is not known here,
/// the path by which others see it, which no other process has.
fn recorded_directory(directory: &Path, descriptor: Option<i32>) -> PathBuf {
    match descriptor {
        Some(number) => PathBuf::from(format!("/proc/{}/fd/{number}", std::process::id())),
        None => directory.to_owned(),
    }
}

/// Modes of caching have a name from the day on which they are there; set-user bits and devices are root's to allow,
/// which `fusermount3` would leave out without a word.
fn check_options(arguments: &Arguments) -> Outcome {
    for key in ["suid", "dev"] {
        if arguments.flag(key) && reactor::process::user() != 0 {
            return Err(Failure::usage(format!("--{key}: only root may mount so; leave it away")));
        }
    }
    match arguments.text("cache") {
        None => Ok(()),
        Some(value) => Err(Failure::usage(format!(
            "--cache {value}: there are no modes of caching yet; every mount shows at once what any other has changed; \
             leave --cache away"
        ))),
    }
}

/// As `mounts::settled`, for a directory that has to be there.
fn settled_to_mount(path: &Path) -> Outcome<PathBuf> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Failure::failed(format!(
            "{}: {}; make the directory first (mkdir -p)",
            path.display(),
            io_words(&error)
        ))),
        _ => mounts::settled(path),
    }
}

/// The directory to mount on. Errors: it is none, or something of ours is mounted there.
fn mount_directory(path: &Path) -> Outcome<PathBuf> {
    let directory = settled_to_mount(path)?;
    if mount_on(&directory).is_some() {
        return Err(Failure::failed(format!(
            "{0} is a mount of Tabane already; unmount it with 'tabane umount {0}'",
            directory.display()
        )));
    }
    if !directory.is_dir() {
        return Err(Failure::failed(format!("{} is not a directory", directory.display())));
    }
    Ok(directory)
}

/// Serves a mount until it is taken out of the tree, or a signal asks to. With a descriptor, one that is mounted.
/// Refuses a directory of the tree that is behind the cluster: it would be in itself, without an end.
fn check_not_behind(arguments: &Arguments, directory: &Path) -> Outcome {
    let run_directory = of_cluster_path(&cluster_path(arguments));
    let known = run_directory.and_then(|path| RunDirectory::shared(&path).cluster().ok().flatten());
    match known.and_then(|(_, settings)| settings.backing) {
        Some(backing) if directory.starts_with(&backing) => Err(Failure::failed(format!(
            "{} lies in {}, which the cluster shows; mount it elsewhere",
            directory.display(),
            backing.display()
        ))),
        _ => Ok(()),
    }
}

fn serve(arguments: &Arguments, directory: PathBuf, descriptor: Option<i32>) -> Outcome {
    let of_system = |what: &str, error: io::Error| Failure::failed(format!("{what}: {}", io_words(&error)));
    // Before any thread is there, so that all of them leave signals to this one.
    let signals = HeldSignals::hold().map_err(|error| of_system("signals", error))?;
    let cluster = find_cluster(arguments)?;
    check_not_behind(arguments, &directory)?;
    let mut options = Options::of_this_process().map_err(|error| Failure::failed(error.message))?;
    options.timeout_ms = arguments.number_given("timeout-ms").unwrap_or(options.timeout_ms);
    options.contact = arguments.text("contact").and_then(|word| Contact::from_word(&word)).unwrap_or(options.contact);
    options.umask = 0;
    let user = options.user.clone();
    let source = source_of(&cluster);
    let client = Client::connect(cluster, options).map_err(|error| Failure::failed(error.message))?;
    client.run(async |_, files| files.look_id(FileId::ROOT).await).map_err(|error| Failure::failed(error.message))?;
    let allow_other = user.is_root() || arguments.flag("allow-other");
    let mount_options = MountOptions {
        directory: directory.clone(),
        source,
        thread_count: arguments.number("threads") as usize,
        io_uring: IoUring::from_word(&arguments.text_or_default("io-uring")).unwrap_or_default(),
        allow_other,
        suid: arguments.flag("suid"),
        dev: arguments.flag("dev"),
        keep_entries: arguments.text_or_default("keep-entries") != "off",
    };
    let mount = match descriptor {
        Some(number) => {
            inherited_descriptor(number).and_then(|device| Mount::over(device, client, user, mount_options))
        }
        None => Mount::new(client, user, mount_options),
    };
    let mount = mount.map_err(|error| cannot_mount(&directory, descriptor, &error))?;
    let unmounter = mount.unmounter();
    let us = ProcessId::of(std::process::id())
        .ok_or_else(|| Failure::failed("this process is not to be found in /proc".to_owned()))?;
    let thread_count = mount.thread_count() as u64;
    let recorded = recorded_directory(&directory, descriptor);
    let record = MountRecord { directory: recorded, process: us, thread_count, place: MountSite::here() };
    let run_directory = of_cluster_path(&cluster_path(arguments));
    if let Some(run_directory) = &run_directory {
        record.keep(run_directory)?;
    }
    // Nobody else could be told: the last thread that serves wakes this one.
    let ended = move || drop(us.signal(SIGTERM));
    mount.serve(ended).map_err(|error| of_system("threads", error))?;
    if descriptor.is_none() || arguments.flag("announce") {
        announce(&directory);
    }
    while signals.next().map_err(|error| of_system("signals", error))? == Event::ChildEnded {}
    let unmounted = unmounter.unmount();
    mount.finish();
    if let Some(run_directory) = &run_directory {
        record.remove(run_directory);
    }
    unmounted.map_err(|error| of_system(&directory.display().to_string(), error))
}

/// Says that the mount is there. Who does not listen need not know.
fn announce(directory: &Path) {
    let mut output = io::stdout();
    let _ = writeln!(output, "{READY}{}", directory.display()).and_then(|()| output.flush());
}

fn cannot_mount(directory: &Path, descriptor: Option<i32>, error: &io::Error) -> Failure {
    let advice = match error.kind() {
        _ if descriptor.is_some() => {
            "; it has to be a descriptor of /dev/fuse that is mounted, and to be left to this program (no \
             close-on-exec)"
        }
        io::ErrorKind::NotFound => "; is fusermount3 installed (package fuse3), and is there a /dev/fuse?",
        io::ErrorKind::PermissionDenied => {
            "; /dev/fuse must be open to you, and fusermount3 (package fuse3) installed; --allow-other takes \
             user_allow_other in /etc/fuse.conf"
        }
        io::ErrorKind::Unsupported => {
            "; FUSE over io_uring takes Linux 6.14 and, as root: echo Y >/sys/module/fuse/parameters/enable_uring; \
             --io-uring auto does without where it is not there"
        }
        _ => "",
    };
    Failure::failed(format!("{}: mounting: {}{advice}", directory.display(), io_words(error)))
}

/// Starts a process that serves a mount of a cluster, and waits until it does.
pub fn start(wanted: &MountRequest, cluster: &Path) -> Outcome<ProcessId> {
    let directory = wanted.directory.as_path();
    let of_system = |what: &str, error: io::Error| Failure::failed(format!("{what}: {}", io_words(&error)));
    let cluster = crate::settings::absolute(cluster)?;
    let program = std::env::current_exe().map_err(|error| of_system("this program's own file", error))?;
    let mut command = Command::new(program);
    command.arg("mount").args(["--foreground", "--announce"]).arg("--cluster").arg(&cluster);
    command.arg(format!("--threads={}", wanted.thread_count)).arg(format!("--io-uring={}", wanted.io_uring));
    command.arg(format!("--keep-entries={}", wanted.keep_entries));
    if let Some(timeout_ms) = wanted.timeout_ms {
        command.arg(format!("--timeout-ms={timeout_ms}"));
    }
    if let Some(contact) = &wanted.contact {
        command.arg(format!("--contact={contact}"));
    }
    let flags = [("--allow-other", wanted.allow_other), ("--suid", wanted.suid), ("--dev", wanted.dev)];
    command.args(flags.iter().filter(|(_, wanted)| *wanted).map(|(flag, _)| flag));
    command.arg("--").arg(directory).current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped());
    let logged = recorded_directory(directory, descriptor_of(directory));
    let log = of_cluster_path(&cluster).and_then(|run_directory| open_log(&log_path(&run_directory, &logged)));
    let log_path = log.map(|(path, log)| {
        command.stderr(log);
        path
    });
    let mut child = spawn_detached(&mut command).map_err(|error| of_system("starting a process", error))?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        // An end without a line is told apart below.
        let _ = BufReader::new(output).read_line(&mut line);
    }
    match ProcessId::of(child.id()) {
        Some(process) if line.starts_with(READY) => Ok(process),
        _ => {
            let _ = child.wait();
            let words = log_path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
            Err(Failure::failed(reason(directory, &words)))
        }
    }
}

fn open_log(path: &Path) -> Option<(PathBuf, File)> {
    let log = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path).ok()?;
    Some((path.to_owned(), log))
}

/// The last words of the one that was to serve.
fn reason(directory: &Path, log: &str) -> String {
    let shown = &log[log.floor_char_boundary(log.len().saturating_sub(LOG_SHOWN_MAX))..];
    match shown.trim() {
        "" => format!("{}: the process that was to serve it has ended", directory.display()),
        words => words.strip_prefix("tabane: mount: ").unwrap_or(words).to_owned(),
    }
}

/// `tabane umount`.
pub fn unmount(arguments: &Arguments) -> Outcome {
    let directory = mounts::settled(Path::new(&arguments.operands[0]))?;
    let Some(mount) = mount_on(&directory) else {
        return Err(Failure::failed(format!("{} is not a mount of Tabane", directory.display())));
    };
    let run_directory = of_cluster_path(&cluster_path(arguments));
    // Who serves it removes its record when it is taken out, and ends then.
    let record = run_directory.and_then(|run_directory| record_of(&run_directory, &directory));
    let force = arguments.flag("umount-force");
    take_out(&mount, force)?;
    if force {
        // Programs that use it would keep it, and the process that serves it. Without a record it is told by the
        // kernel.
        let told = record.as_ref().is_some_and(|record| record.process.signal(SIGTERM).unwrap_or(false));
        if !told {
            mount.abort();
        }
    }
    if let Some(record) = record {
        let reactor = open_reactor()?;
        end_all(&reactor, &[record.process], force);
    }
    Ok(())
}

/// Waits until those who served what is out of the tree now have ended; those that don't are killed, if that is wanted.
fn end_all(reactor: &Reactor, processes: &[ProcessId], kill: bool) {
    reactor.block_on(wait_for_end(reactor, processes));
    if kill {
        for process in processes.iter().filter(|process| process.is_alive()) {
            // It may have ended by itself since.
            let _ = process.signal(SIGKILL);
        }
        reactor.block_on(wait_for_end(reactor, processes));
    }
}

/// Takes a mount out of the tree. One that nobody serves goes in any case, one that is in use only by force.
fn take_out(mount: &MountPoint, force: bool) -> Outcome {
    let directory = &mount.directory;
    let outcome = if force { tabane_fuse::detach(directory) } else { tabane_fuse::unmount(directory) };
    let outcome = match outcome {
        // Asked only now: the mount itself may have to wait for a server before it answers.
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy && !is_served(directory) => {
            tabane_fuse::detach(directory)
        }
        other => other,
    };
    outcome.map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::ResourceBusy => {
                "; somebody uses it (a program that runs in it, or has a file of it open); --force takes it away"
            }
            _ => "",
        };
        Failure::failed(format!("{}: {}{advice}", directory.display(), io_words(&error)))
    })
}

fn is_served(directory: &Path) -> bool {
    !matches!(fs::metadata(directory), Err(error) if error.raw_os_error() == Some(libc::ENOTCONN))
}

/// Mounts, unless a mount of this cluster that is served is there already. Returns whether it did.
pub fn ensure(wanted: &MountRequest, cluster: &Cluster, cluster_path: &Path) -> Outcome<bool> {
    match mount_on(&wanted.directory) {
        Some(mount) if mount.source == source_of(cluster) && is_served(&mount.directory) => return Ok(false),
        Some(mount) if mount.source == source_of(cluster) => take_out(&mount, true)?,
        _ => {}
    }
    let directory = mount_directory(&wanted.directory)?;
    start(&MountRequest { directory, ..wanted.clone() }, cluster_path).map(|_| true)
}

/// Takes all mounts of a cluster on this machine out of the tree, whoever uses them, and ends those who serve them. For
/// the end of a cluster.
pub fn take_all_out(reactor: &Reactor, run_directory: &Path) -> Outcome {
    let here = MountSite::here();
    let records = mounts::records(run_directory);
    take_records_out(reactor, records.into_iter().filter(|record| record.place.is_same_machine(&here)).collect())
}

/// The same for one directory.
pub fn take_one_out(reactor: &Reactor, run_directory: &Path, directory: &Path) -> Outcome {
    take_records_out(reactor, record_of(run_directory, directory).into_iter().collect())
}

fn take_records_out(reactor: &Reactor, records: Vec<MountRecord>) -> Outcome {
    for record in &records {
        // Those of another tree are not to be seen from here: who serves them takes them out.
        if let Some(mount) = mount_on(&record.directory) {
            let taken = take_out(&mount, true);
            // Another host's part of `down`, on this machine too, may have been faster.
            if mount_on(&record.directory).as_ref() == Some(&mount) {
                taken?;
            }
        }
        if record.process.is_alive() {
            // It may have ended by itself since.
            let _ = record.process.signal(SIGTERM);
        }
    }
    let processes: Vec<ProcessId> = records.iter().map(|record| record.process).collect();
    end_all(reactor, &processes, true);
    Ok(())
}

async fn wait_for_end(reactor: &Reactor, processes: &[ProcessId]) {
    let give_up = reactor.now() + END_TIME;
    while processes.iter().any(|process| process.is_alive()) && reactor.now() < give_up {
        reactor.sleep(LOOK_INTERVAL).await;
    }
}

/// What --mount asks for, if it is there, after a look at whether its directory can be mounted on.
pub fn wanted(arguments: &Arguments) -> Outcome<Option<MountRequest>> {
    check_options(arguments)?;
    let Some(path) = arguments.path("mount") else { return Ok(None) };
    mount_directory(&path).map(|directory| Some(MountRequest::of(arguments, directory)))
}

/// The same for several hosts, where it may be there already of some.
pub fn wanted_on_hosts(arguments: &Arguments) -> Outcome<Option<MountRequest>> {
    check_options(arguments)?;
    let Some(path) = arguments.path("mount") else { return Ok(None) };
    let directory = settled_to_mount(&path)?;
    let directory = if mount_on(&directory).is_some() { directory } else { mount_directory(&directory)? };
    Ok(Some(MountRequest::of(arguments, directory)))
}
