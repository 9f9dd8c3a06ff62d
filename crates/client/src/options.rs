//! The client's options: one table that names each, with its environment variable, default, unit and help. The
//! environment is read here once, when a client is made.

use crate::error::{Error, Result, status_of_system};
use crate::open_files::contact::Contact;
use crate::servers::relaying::Relaying;
use reactor::trust::{self, Distrust};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use wire::credentials::{Credentials, Groups};
use wire::label::Label;
use wire::limits::{CHUNK_SIZE_MAX, CHUNK_SIZE_MIN};
use wire::{Cluster, Status};

/// Name of the cluster file within a run directory.
pub const CLUSTER_FILE_NAME: &str = "cluster";

/// What a client may be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// A server that is silent for this long, in milliseconds, is given up on.
    pub timeout_ms: u64,
    /// On whose behalf: what the servers and the directories on a path are asked to allow.
    pub user: Credentials,
    /// Whose job it is of: servers count by it.
    pub label: Label,
    /// Permission bits that new files and directories do not get.
    pub umask: u32,
    /// Bytes of a chunk of new files; 0 takes the cluster's.
    pub chunk_size: u32,
    /// Whether what is asked for steps back on the servers while other clients are at work, for work that nobody waits
    /// for.
    pub is_low_priority: bool,
    /// Whether a server near by is asked first for what others are the homes of.
    pub contact: Contact,
    /// Whether connections to servers of other machines go through one server.
    pub relaying: Relaying,
    /// How much is remembered.
    pub bounds: Bounds,
    /// The session's number, for simulations; else drawn at random.
    pub session: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            timeout_ms: TIMEOUT_MS_DEFAULT,
            user: Credentials::new(0, 0),
            label: Label::default(),
            umask: 0o022,
            chunk_size: 0,
            is_low_priority: false,
            contact: Contact::Auto,
            relaying: Relaying::Auto,
            bounds: Bounds::default(),
            session: None,
        }
    }
}

/// How much a client remembers of each kind. Beyond it something is forgotten and asked for anew. Simulations choose
/// small ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of directories that are cached, in each of two generations.
    pub directory_cache_size: usize,
    /// Chunks whose places in servers' memory are known.
    pub placed_chunks: usize,
    /// Files whose contents an open brought, under a lease; more are of no use within the time that leases last.
    pub read_leases: usize,
    /// Bytes up to which a body needs no permit of its server, of a file that is throttled.
    pub free_body_size: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { directory_cache_size: 8 << 20, placed_chunks: 1024, read_leases: 32, free_body_size: 64 << 10 }
    }
}

const TIMEOUT_MS_DEFAULT: u64 = 30_000;
const TIMEOUT_MS_MAX: u64 = 24 * 3600 * 1000;

/// One option: its environment variable, default, unit and help.
#[derive(Debug, Clone, Copy)]
pub struct OptionRow {
    pub variable: &'static str,
    pub default: &'static str,
    pub unit: &'static str,
    pub help: &'static str,
}

/// All options that the environment can set.
pub const TABLE: &[OptionRow] = &[
    OptionRow {
        variable: "TABANE_CLUSTER",
        default: "",
        unit: "path",
        help: "run directory of the cluster, or its cluster file",
    },
    OptionRow {
        variable: "TABANE_TIMEOUT_MS",
        default: "30000",
        unit: "milliseconds",
        help: "a server that is silent for this long is given up on",
    },
    OptionRow {
        variable: "TABANE_CHUNK_SIZE",
        default: "0",
        unit: "bytes",
        help: "chunk size of new files, also with K, M or G; 0 takes the cluster's",
    },
    OptionRow {
        variable: "TABANE_CONTACT",
        default: "auto",
        unit: "auto|always|off",
        help: "whether opens ask a server near by first: auto, one of this machine for files of others",
    },
    OptionRow {
        variable: "TABANE_RELAY",
        default: "auto",
        unit: "auto|always|off",
        help: "whether servers of other machines are reached through one server: auto, when there are more than 256 of \
               them",
    },
    OptionRow {
        variable: "TABANE_JOB",
        default: "",
        unit: "name",
        help: "the job that servers count this process's requests to; else the batch system's id of it",
    },
    OptionRow { variable: "TABANE_STEP", default: "", unit: "name", help: "the step of TABANE_JOB" },
];

/// Variables by which batch systems tell a job's id and the step of it, ours first.
const JOB_VARIABLES: [(&str, &str); 6] = [
    ("TABANE_JOB", "TABANE_STEP"),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("PBS_JOBID", ""),
    ("LSB_JOBID", "LSB_JOBINDEX"),
    ("OAR_JOB_ID", ""),
    ("FLUX_JOB_ID", ""),
];
/// Variables by which starters of parallel programs tell a process its rank.
const RANK_VARIABLES: [&str; 5] = ["PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "FLUX_TASK_RANK", "SLURM_PROCID"];

/// The label of this process, by variables and what the kernel says of it.
fn own_label(variable: impl Fn(&str) -> Option<String>) -> Label {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let found = JOB_VARIABLES.iter().find_map(|(job, step)| Some((variable(job)?, variable(step))));
    let (job, step) = found.unwrap_or_default();
    let rank = RANK_VARIABLES.iter().find_map(|name| variable(name));
    let [host, program] = [read("/proc/sys/kernel/hostname"), read("/proc/self/comm")];
    Label::new(&job, &step.unwrap_or_default(), &rank.unwrap_or_default(), &host, &program)
}

/// Values of environment variables, in the order of `names`. Doors call this once, at start-up.
#[allow(clippy::disallowed_methods)] // This is the one place where the client's options are read.
pub fn take_variables<const N: usize>(names: [&str; N]) -> [Option<String>; N] {
    names.map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

/// The run directory of a cluster whose users name none, of `tabane up` and all who look for it.
pub fn default_run_directory() -> PathBuf {
    let [parent] = take_variables(["XDG_RUNTIME_DIR"]);
    let parent = parent.map(PathBuf::from).filter(|path| path.is_absolute() && path.is_dir());
    parent.unwrap_or_else(|| PathBuf::from("/tmp")).join(format!("tabane-{}", reactor::process::user()))
}

/// The cluster of this process: that of the run directory or cluster file that `TABANE_CLUSTER` names, else that of the
/// default run directory.
///
/// Errors: there is none, or what is there is not to be trusted; the words say what to do.
pub fn own_cluster() -> Result<Cluster> {
    if let [Some(path)] = take_variables(["TABANE_CLUSTER"]) {
        return load_cluster(Path::new(&path));
    }
    let path = default_run_directory();
    load_cluster(&path).map_err(|error| match error.status {
        Status::NotFound => Error::new(
            Status::NotFound,
            format!(
                "TABANE_CLUSTER is not set, and no cluster is up in {}: start one with `tabane up`, run this under \
                 `tabane run`, or set TABANE_CLUSTER to the run directory of one",
                path.display()
            ),
        ),
        _ => error,
    })
}

impl Options {
    /// The options of this process: effective user, groups and umask as the kernel has them, the rest from the
    /// environment.
    ///
    /// Errors: `Invalid` for a value that is not a number or out of range.
    pub fn of_this_process() -> Result<Options> {
        let mut options = Options::default();
        if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
            options.take_process_status(&status);
        }
        options.label = own_label(|name| match name {
            "" => None,
            name => take_variables([name])[0].take(),
        });
        let variables = ["TABANE_TIMEOUT_MS", "TABANE_CHUNK_SIZE", "TABANE_CONTACT", "TABANE_RELAY"];
        let [timeout_ms, chunk_size, contact, relaying] = take_variables(variables);
        if let Some(text) = timeout_ms {
            options.timeout_ms = parse_within("TABANE_TIMEOUT_MS", &text, 1, TIMEOUT_MS_MAX)?;
        }
        if let Some(text) = chunk_size.filter(|text| text != "0") {
            let bytes = without_suffix(&text);
            let (least, most) = (u64::from(CHUNK_SIZE_MIN), u64::from(CHUNK_SIZE_MAX));
            options.chunk_size = parse_within("TABANE_CHUNK_SIZE", &bytes, least, most)? as u32;
        }
        if let Some(text) = contact {
            let choice = Contact::from_word(text.trim());
            let words = || format!("TABANE_CONTACT={text} is none of auto, always and off; correct it or unset it");
            options.contact = choice.ok_or_else(|| Error::new(Status::Invalid, words()))?;
        }
        if let Some(text) = relaying {
            let choice = Relaying::from_word(text.trim());
            let words = || format!("TABANE_RELAY={text} is none of auto, always and off; correct it or unset it");
            options.relaying = choice.ok_or_else(|| Error::new(Status::Invalid, words()))?;
        }
        Ok(options)
    }

    /// Reads effective ids, groups and umask from the text of /proc/self/status (proc(5)).
    fn take_process_status(&mut self, status: &str) {
        for line in status.lines() {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("Umask:") => {
                    let umask = words.next().and_then(|word| u32::from_str_radix(word, 8).ok());
                    self.umask = umask.unwrap_or(self.umask);
                }
                Some("Uid:") => take_number(words.nth(1), &mut self.user.uid),
                Some("Gid:") => take_number(words.nth(1), &mut self.user.gid),
                Some("Groups:") => {
                    let groups: Vec<u32> = words.filter_map(|word| word.parse().ok()).collect();
                    self.user.groups = Groups::new(&groups);
                }
                _ => {}
            }
        }
    }
}

fn take_number(word: Option<&str>, place: &mut u32) {
    if let Some(number) = word.and_then(|word| word.parse().ok()) {
        *place = number;
    }
}

/// A size with K, M or G behind it as the plain number of bytes, since the command line takes the same variable so.
/// What is no size stays as it is.
fn without_suffix(text: &str) -> String {
    let size = text.trim().trim_end_matches("iB");
    let scaled = [('K', 10), ('M', 20), ('G', 30)].into_iter().find_map(|(suffix, shift)| {
        let number: u64 = size.strip_suffix([suffix, suffix.to_ascii_lowercase()])?.parse().ok()?;
        number.checked_mul(1 << shift)
    });
    scaled.map_or_else(|| text.to_owned(), |bytes| bytes.to_string())
}

fn parse_within(name: &str, text: &str, least: u64, most: u64) -> Result<u64> {
    let value = text.trim().parse().ok().filter(|value| (least..=most).contains(value));
    value.ok_or_else(|| {
        Error::new(
            Status::Invalid,
            format!("{name}={text} is not a number from {least} to {most}; correct it or unset it"),
        )
    })
}

/// Reads the cluster file at `path`, or within it when it is a run directory. The one door to a cluster: what another
/// user may have put there is refused (`reactor::trust`).
///
/// Errors name the path and say what to do.
pub fn load_cluster(path: &Path) -> Result<Cluster> {
    let read = || {
        let mut file = trust::open(path, CLUSTER_FILE_NAME)?;
        let mut text = String::new();
        let owner = file.read_to_string(&mut text).and_then(|_| file.metadata()).map(|facts| facts.uid());
        owner.map(|owner| (text, owner)).map_err(|error| Distrust::System(path.to_owned(), error))
    };
    let (text, owner) = read().map_err(|distrust| {
        let status = match &distrust {
            Distrust::System(_, error) => status_of_system(error),
            _ => Status::AccessDenied,
        };
        let advice = match &distrust {
            Distrust::System(..) => "; is the cluster up, and is this its run directory?",
            _ => "",
        };
        Error::new(status, format!("cluster file of {}: {distrust}{advice}", path.display()))
    })?;
    let mut cluster = Cluster::parse(&text)
        .map_err(|reason| Error::new(Status::Invalid, format!("cluster file of {} {reason}", path.display())))?;
    cluster.owner = Some(owner);
    Ok(cluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: effective ids, supplementary groups and the umask are taken from the kernel's text.
    /// Method: a text with four different ids.
    #[test]
    fn process_status_is_understood() {
        let mut options = Options::default();
        options.take_process_status("Name:\tx\nUmask:\t0027\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 4 \n");
        assert_eq!(options.umask, 0o027);
        assert_eq!(options.user, Credentials { uid: 2, gid: 6, groups: Groups::new(&[4, 9]) });
    }

    /// Goal: numbers out of range are refused with a message that names the variable.
    #[test]
    fn numbers_are_checked() {
        assert_eq!(parse_within("X", "17", 1, 20), Ok(17));
        for text in ["", "0", "21", "-1", "seventeen"] {
            let error = parse_within("X", text, 1, 20).expect_err(text);
            assert!(error.status == Status::Invalid && error.message.contains("X="), "{error}");
        }
    }

    /// Goal: sizes are taken in bytes or with a suffix, and nothing else is touched.
    #[test]
    fn size_suffixes() {
        let cases =
            [("64K", "65536"), ("1M", "1048576"), ("2MiB", "2097152"), ("1g", "1073741824"), ("47008", "47008")];
        for (text, bytes) in cases {
            assert_eq!(without_suffix(text), bytes);
        }
        for text in ["K", "1T", "xM", "99999999999999999999M"] {
            assert_eq!(without_suffix(text), text);
        }
    }

    /// Goal: a missing cluster file is an error that names the file and what to check.
    #[test]
    fn missing_cluster_file() {
        let error = load_cluster(Path::new("/nonexistent/run")).expect_err("there is no such file");
        assert_eq!(error.status, Status::NotFound);
        assert!(error.message.contains("/nonexistent/run"), "{error}");
    }
}
