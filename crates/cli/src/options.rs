//! The one table of options: flags, environment variables, keys of the config file, completions of the shells, manual
//! pages and the texts about them all come from here.

use wire::limits::{CHUNK_SIZE_MAX, CHUNK_SIZE_MIN, SERVER_COUNT_MAX};

/// What an option takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// Nothing: it is there or not.
    Flag,
    /// A whole number within these limits.
    Number { least: u64, most: u64 },
    /// Bytes, with a suffix K, M, G or T (powers of 1,024), within these limits.
    Size { least: u64, most: u64 },
    /// Permission bits in octal.
    Octal,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Any text.
    Text,
    /// A path of the local file system.
    Path,
}

/// One option.
#[derive(Debug)]
pub struct OptionRow {
    /// Name within the program; that of the flag unless two commands use one flag differently.
    pub key: &'static str,
    /// `--name`.
    pub name: &'static str,
    /// Single letters that stand for it.
    pub letters: &'static str,
    pub value: Value,
    /// In words, where it is not a plain value.
    pub default: &'static str,
    /// Unit or form of the value, as the help shows it.
    pub unit: &'static str,
    pub help: &'static str,
    /// A setting: `TABANE_NAME` in the environment and `name` in the config file set it too.
    pub variable: bool,
}

impl OptionRow {
    /// Its environment variable.
    pub fn variable_name(&self) -> Option<String> {
        self.variable.then(|| format!("TABANE_{}", self.name.to_ascii_uppercase().replace('-', "_")))
    }

    /// The row of a key. Panics on a key that is not in the table: keys are written by us.
    pub fn of(key: &str) -> &'static OptionRow {
        let found = TABLE.iter().find(|row| row.key == key);
        found.unwrap_or_else(|| panic!("option {key} is not in the table"))
    }
}

const fn flag(key: &'static str, letters: &'static str, help: &'static str) -> OptionRow {
    OptionRow { key, name: key, letters, value: Value::Flag, default: "", unit: "", help, variable: false }
}

const fn setting(
    key: &'static str,
    value: Value,
    default: &'static str,
    unit: &'static str,
    help: &'static str,
) -> OptionRow {
    OptionRow { key, name: key, letters: "", value, default, unit, help, variable: true }
}

const fn choice_of_command(
    key: &'static str,
    name: &'static str,
    letters: &'static str,
    value: Value,
    unit: &'static str,
    help: &'static str,
) -> OptionRow {
    OptionRow { key, name, letters, value, default: "", unit, help, variable: false }
}

/// The least of a store on a disk that may be in memory, in bytes.
pub const BUFFER_SIZE_MIN: u64 = 16 << 20;
/// Smallest store and journal of a server, in bytes.
pub const STORE_SIZE_MIN: u64 = 16 << 20;
pub const JOURNAL_SIZE_MIN: u64 = 4 << 20;
/// Largest store of a server, in bytes.
pub const STORE_SIZE_MAX: u64 = 1 << 46;
const JOURNAL_SIZE_MAX: u64 = 16 << 30;
const CONNECTION_COUNT_MAX: u64 = 100_000;
const JOB_COUNT_MAX: u64 = 1024;
const THREAD_COUNT_MAX: u64 = 256;
const DAY_MS: u64 = 24 * 3600 * 1000;

/// All options of all commands.
pub static TABLE: &[OptionRow] = &[
    setting("cluster", Value::Path, "the run directory", "PATH", "run directory of the cluster, or its cluster file"),
    setting(
        "run-directory",
        Value::Path,
        "$XDG_RUNTIME_DIR/tabane-UID, else /tmp/tabane-UID",
        "PATH",
        "where the cluster file, the logs and the numbers of the processes are kept",
    ),
    setting(
        "timeout-ms",
        Value::Number { least: 1, most: DAY_MS },
        "30000",
        "MILLISECONDS",
        "a server that is silent for this long is given up on",
    ),
    setting(
        "contact",
        Value::Choice(&["auto", "always", "off"]),
        "auto",
        "auto|always|off",
        "whether opens ask a server near by first: auto, one of this machine for files of others",
    ),
    setting("servers", Value::Number { least: 1, most: SERVER_COUNT_MAX as u64 }, "2", "COUNT", "servers to start"),
    setting(
        "hosts",
        Value::Text,
        "this machine alone",
        "a,b,c|FILE|auto",
        "hosts to start servers on: names, also as node[01-04,7] and as name:SERVERS, a file with one a line, or those \
         of the batch job",
    ),
    setting(
        "per-host",
        Value::Number { least: 1, most: SERVER_COUNT_MAX as u64 },
        "1",
        "COUNT",
        "servers on each host that has no count of its own",
    ),
    setting(
        "launcher",
        Value::Text,
        "ssh",
        "ssh|srun|mpiexec|WORDS",
        "how a command is run on hosts; WORDS such as 'ssh {host} {command}' are run once for each host, without \
         {host} once for all",
    ),
    setting(
        "interface",
        Value::Text,
        "",
        "NAME|CIDR",
        "interface or network whose addresses the hosts' servers listen at; else that of the host's name or the \
         default route",
    ),
    setting("binary", Value::Path, "that of this program", "PATH", "where tabane is on the hosts"),
    setting(
        "launch-timeout-ms",
        Value::Number { least: 1, most: DAY_MS },
        "30000",
        "MILLISECONDS",
        "how long to wait until all hosts answer",
    ),
    choice_of_command(
        "host-number",
        "number",
        "",
        Value::Number { least: 0, most: SERVER_COUNT_MAX as u64 },
        "NUMBER",
        "number of this host",
    ),
    choice_of_command(
        "host-numbers",
        "numbers",
        "",
        Value::Text,
        "NUMBER,...",
        "numbers of all hosts that were launched at once",
    ),
    choice_of_command(
        "host-orders",
        "orders",
        "",
        Value::Path,
        "PATH",
        "read orders here instead of from standard input",
    ),
    flag("discard", "", "lose what was changed over a backing directory, instead of carrying it back"),
    flag("verify", "", "compare contents here with those in the backing directory when all has gone"),
    flag("wait", "", "end when it is done, and tell what came of it"),
    choice_of_command(
        "record",
        "record",
        "",
        Value::Path,
        "PLACE",
        "keep what the servers count in this file, a place of tabane-report, every 10 s and at the end",
    ),
    choice_of_command(
        "report",
        "report",
        "",
        Value::Path,
        "FILE.html",
        "write a report of the run into this file at the end, by tabane-report",
    ),
    choice_of_command(
        "mpi",
        "mpi",
        "",
        Value::Text,
        "KIND",
        "preload the library for MPI-IO of this kind of MPI, as mpich, or the one at this path",
    ),
    flag("web", "", "serve a live page, at 127.0.0.1 unless ADDRESS says otherwise"),
    choice_of_command(
        "from",
        "from",
        "",
        Value::Path,
        "PLACE",
        "replay what tabane-report has recorded in this file, in place of a cluster",
    ),
    flag("samples", "", "with a sample for each second of the last ten minutes in which something happened; of --json"),
    choice_of_command(
        "sample-count",
        "sample-count",
        "",
        Value::Number { least: 0, most: u32::MAX as u64 },
        "COUNT",
        "with so many of the youngest samples (default: 1); of --json",
    ),
    flag("metrics", "", "print the counters of all servers as one page of Prometheus' text"),
    flag("no-mounts", "", "say nothing of mounts, and ask no hosts about them"),
    flag("files", "", "list the files and directories to which clients did most, on all servers"),
    flag("lost", "", "list what can't be had without the servers that are down"),
    flag("forget", "", "give up hosts that can't be reached, and remove the run directory all the same"),
    setting(
        "dir",
        Value::Path,
        "/dev/shm/tabane-UID-CLUSTER",
        "PATH",
        "directory under which each server keeps its store; its file system is what is bundled",
    ),
    setting(
        "store",
        Value::Text,
        "memory",
        "memory[:DIR][,size=SIZE] or nvme:PATH[,PATH...][,size=SIZE][,buffer=SIZE]",
        "kind of store and bytes of data for each server: in memory, with its directory (as --dir), or on a disk, with \
         a directory, or a file or block device for each server of a host, and how much of it is in memory at most; \
         without a size, three quarters of what is free are shared out",
    ),
    setting(
        "backing",
        Value::Path,
        "",
        "DIR",
        "directory of the site's file system that the cluster shows and caches; the same on all hosts",
    ),
    setting(
        "backing-check",
        Value::Text,
        "10",
        "SECONDS|off",
        "what was looked at in the backing directory so long ago is looked at again when it is asked for, so that what \
         others change there is seen here; 'off' for never",
    ),
    setting(
        "flush",
        Value::Choice(&["idle", "immediate", "on-close", "manual", "never"]),
        "idle",
        "WHEN",
        "when changes go to the backing directory: in spells without accesses, at once, when files are closed, by \
         'flush' and 'down' alone, or not at all",
    ),
    setting(
        "flush-idle-ms",
        Value::Text,
        "auto",
        "MILLISECONDS",
        "quiet time after which a server counts as idle; 'auto' has it learnt from the gaps between accesses",
    ),
    setting(
        "flush-age",
        Value::Number { least: 1, most: 86_400 },
        "300",
        "SECONDS",
        "what has been changed for so long goes beside accesses too, in a tenth of the time",
    ),
    setting(
        "flush-rate",
        Value::Size { least: 0, most: 1 << 50 },
        "0",
        "SIZE",
        "bytes a second that a server writes to the backing directory when nobody waits for it; 0 sets no limit",
    ),
    setting(
        "flush-writers",
        Value::Number { least: 1, most: 1024 },
        "16",
        "COUNT",
        "files that all servers together write to the backing directory at a time; eight of up to 64 KiB count as one",
    ),
    setting(
        "flush-atomic",
        Value::Text,
        "1M",
        "SIZE|all",
        "changed files of this size and more that are in the backing directory already are updated where they are, by \
         what has changed alone; smaller ones, and with 'all' any, are replaced as a whole",
    ),
    setting(
        "on-conflict",
        Value::Choice(&["both", "ours", "theirs"]),
        "both",
        "WHICH",
        "where somebody else has changed a file of the backing directory that was changed here: theirs keeps the name \
         and ours goes beside it, ours takes the name and theirs goes beside it, or what was changed here is dropped",
    ),
    setting(
        "grace-ms",
        Value::Number { least: 0, most: 3_600_000 },
        "20000",
        "MILLISECONDS",
        "how long a server that gets SIGTERM carries changes to the backing directory before it ends, at most",
    ),
    setting(
        "fsync-backing",
        Value::Flag,
        "",
        "",
        "have fsync of a file, or of a directory for the names in it, wait until what was changed is in the backing \
         directory and durable there",
    ),
    setting(
        "chunk-size",
        Value::Size { least: CHUNK_SIZE_MIN as u64, most: CHUNK_SIZE_MAX as u64 },
        "1M",
        "SIZE",
        "bytes of a chunk of new files",
    ),
    setting(
        "placement",
        Value::Choice(&["modular", "ring"]),
        "modular",
        "modular|ring",
        "how chunks are spread: in turn and perfectly even, or scattered by consistent hashing",
    ),
    setting(
        "transport",
        Value::Choice(&["auto", "shm", "tcp"]),
        "auto",
        "auto|shm|tcp",
        "how clients reach servers: those of a server's machine through shared memory and others over TCP, all through \
         shared memory (those of other machines are refused), or all over TCP",
    ),
    setting(
        "protect",
        Value::Choice(&["off", "integrity", "encryption"]),
        "off",
        "off|integrity|encryption",
        "what is done about those who reach the network but have no key: nothing beyond the handshake, what they \
         change on the way is noticed, or they can't read it either",
    ),
    setting(
        "short-circuit",
        Value::Choice(&["auto", "reads", "off"]),
        "auto",
        "auto|reads|off",
        "whether clients of a server's machine look at names of, open and read what is in a store in memory by \
         themselves, and (auto) write to pages of it that are registered for them",
    ),
    setting(
        "pin",
        Value::Text,
        "auto",
        "auto|off|cores|LIST",
        "cores that servers stay on: an equal share of those allowed for each server of a machine, as long as nobody \
         computes there, all, one for each in turn, or in turn those of a list such as 0,4-7",
    ),
    setting(
        "huge-pages",
        Value::Choice(&["auto", "off"]),
        "auto",
        "auto|off",
        "whether stores in memory lie on mounts of their own with huge pages, where the system lets us mount",
    ),
    setting(
        "port",
        Value::Number { least: 0, most: 65_535 },
        "0",
        "PORT",
        "first of the servers' ports on 127.0.0.1, one for each server; 0 picks free ones",
    ),
    setting(
        "connections-max",
        Value::Number { least: 2, most: CONNECTION_COUNT_MAX },
        "256",
        "COUNT",
        "connections that one server accepts, of clients and other servers together; as many more may come through \
         others",
    ),
    setting(
        "checksums",
        Value::Flag,
        "",
        "",
        "keep a checksum of each 4 KiB and check it at every read (costs about as much as the copy itself); in stores \
         on disks they are kept unless that is switched off",
    ),
    setting(
        "journal-size",
        Value::Size { least: JOURNAL_SIZE_MIN, most: JOURNAL_SIZE_MAX },
        "64M",
        "SIZE",
        "bytes of each server's journal; in memory it grows with the number of names",
    ),
    setting(
        "warm",
        Value::Size { least: 0, most: STORE_SIZE_MAX },
        "0",
        "SIZE",
        "memory of each store to touch before the cluster is used, so that nobody waits for its first use",
    ),
    setting(
        "metrics-port",
        Value::Number { least: 0, most: 65_535 },
        "0",
        "PORT",
        "first of the ports on 127.0.0.1 with Prometheus text at /metrics, one for each server; 0 means none",
    ),
    setting(
        "session-grace-ms",
        Value::Number { least: 1, most: DAY_MS },
        "60000",
        "MILLISECONDS",
        "how long a client without a connection is remembered",
    ),
    setting(
        "start-timeout-ms",
        Value::Number { least: 1, most: DAY_MS },
        "60000",
        "MILLISECONDS",
        "how long to wait until all servers answer",
    ),
    setting(
        "stop-timeout-ms",
        Value::Number { least: 1, most: DAY_MS },
        "30000",
        "MILLISECONDS",
        "how long to wait for a server to stop by itself before it is told to by a signal",
    ),
    setting(
        "jobs",
        Value::Number { least: 1, most: JOB_COUNT_MAX },
        "16",
        "COUNT",
        "operations that are under way at once",
    ),
    setting(
        "threads",
        Value::Number { least: 1, most: THREAD_COUNT_MAX },
        "8",
        "COUNT",
        "threads that read a mount's device, where requests do not come by io_uring",
    ),
    setting(
        "io-uring",
        Value::Choice(&["auto", "on", "off"]),
        "auto",
        "auto|on|off",
        "whether requests of a mount come by io_uring, one thread for each core (Linux 6.14 on, and enable_uring of \
         the module fuse): where the kernel has it, or else there is no mount, or never",
    ),
    setting(
        "keep-entries",
        Value::Choice(&["auto", "off"]),
        "off",
        "auto|off",
        "whether a mount's kernel keeps names and attributes until others change something, where it can be made to \
         forget them (Linux 6.16 on): fast, with the limits that docs/kept-entries.md names, or never",
    ),
    setting(
        "interval-ms",
        Value::Number { least: 100, most: 60_000 },
        "1000",
        "MILLISECONDS",
        "how often the servers are asked",
    ),
    setting(
        "color",
        Value::Choice(&["auto", "always", "never"]),
        "auto",
        "auto|always|never",
        "colours: on terminals unless NO_COLOR is in the environment, or in any case, or not at all",
    ),
    choice_of_command("mount", "mount", "", Value::Path, "DIR", "mount the cluster on this directory too"),
    choice_of_command("cache", "cache", "", Value::Text, "MODE", "how much a mount may keep; there are no modes yet"),
    flag("foreground", "f", "stay in the foreground"),
    flag("announce", "", "with -f and /dev/fd/N: say on standard output when it serves, as other mounts do"),
    flag(
        "allow-other",
        "",
        "other users may use the mount too, which those of root allow anyway (takes user_allow_other in \
         /etc/fuse.conf)",
    ),
    flag(
        "suid",
        "",
        "programs on the mount run as the user or group that their set-user and set-group bits name (root only)",
    ),
    flag("dev", "", "device nodes on the mount can be opened (root only)"),
    choice_of_command(
        "umount-force",
        "force",
        "f",
        Value::Flag,
        "",
        "also when it is in use; who uses it gets errors from then on",
    ),
    choice_of_command(
        "clean-force",
        "force",
        "f",
        Value::Flag,
        "",
        "whatever their age; for clusters that are known to be gone",
    ),
    choice_of_command(
        "index",
        "index",
        "",
        Value::Number { least: 0, most: SERVER_COUNT_MAX as u64 - 1 },
        "INDEX",
        "which of the cluster's servers to be",
    ),
    choice_of_command("directory", "directory", "", Value::Path, "PATH", "directory of this server's store"),
    choice_of_command(
        "device",
        "device",
        "",
        Value::Path,
        "PATH",
        "file or block device that keeps the store; the directory is in memory then",
    ),
    choice_of_command(
        "buffer",
        "buffer",
        "",
        Value::Size { least: BUFFER_SIZE_MIN, most: STORE_SIZE_MAX },
        "SIZE",
        "bytes of data that are in memory at most, with --device",
    ),
    choice_of_command(
        "store-size",
        "size",
        "",
        Value::Size { least: STORE_SIZE_MIN, most: STORE_SIZE_MAX },
        "SIZE",
        "bytes of data, of a store that is created",
    ),
    choice_of_command(
        "log",
        "log",
        "",
        Value::Path,
        "PATH",
        "the file that its output goes to, to be kept from growing",
    ),
    OptionRow {
        default: "info",
        ..choice_of_command(
            "level",
            "level",
            "",
            Value::Choice(&["info", "warning", "error"]),
            "info|warning|error",
            "only what matters at least so much",
        )
    },
    flag(
        "traffic",
        "",
        "say at the end how many requests were sent, and how many times any were handed to the network",
    ),
    flag("follow", "f", "go on with what is written from now on, until a signal comes"),
    choice_of_command(
        "lines",
        "lines",
        "n",
        Value::Number { least: 0, most: u64::MAX },
        "COUNT",
        "only so many of the last lines",
    ),
    flag("keep", "", "stop the servers but keep the run directory and the stores: 'tabane up' brings the data back"),
    flag("json", "", "print JSON"),
    flag("once", "", "print one table and end"),
    flag("reverse", "r", "turn the order"),
    OptionRow {
        default: "server",
        ..choice_of_command(
            "sort",
            "sort",
            "s",
            Value::Choice(&[
                "server",
                "state",
                "operations",
                "read",
                "write",
                "queue",
                "wait",
                "active",
                "busy",
                "space",
            ]),
            "COLUMN",
            "the column that decides the order: server, state, operations, read, write, queue, wait, active, busy or \
             space",
        )
    },
    flag("explain", "", "say where each value comes from"),
    flag("long", "l", "mode, links, owner, group, size and time of each"),
    flag("all", "a", "also names that begin with a dot"),
    flag("human", "h", "sizes with K, M, G and T (powers of 1,024)"),
    flag("recursive", "rR", "whole trees"),
    flag("force", "f", "what does not exist is no error"),
    flag("parents", "p", "make what is missing above, and accept what exists"),
    flag("symbolic", "s", "make a symbolic link"),
    flag("no-replace", "n", "what exists already is an error"),
    flag("exchange", "", "both paths exist and change places"),
    flag("repair", "", "repair what is wrong"),
    flag("mend", "", "put flipped bits right"),
    choice_of_command(
        "from-list",
        "from-list",
        "",
        Value::Path,
        "FILE",
        "also what this file names, one path a line; - is standard input",
    ),
    flag("dry-run", "n", "only say what would be done"),
    flag("data", "", "also read all data and compare checksums"),
    flag("progress", "", "say how far it is, also where the output is no terminal"),
    flag("quiet", "q", "no progress and no closing line"),
    flag(
        "preserve",
        "p",
        "also keep extended attributes (user., for the superuser also trusted.), and groups that the caller is in",
    ),
    flag(
        "archive",
        "a",
        "trees with all that can be kept: -r, -p, and pipes, sockets, devices and several names of one file as such",
    ),
    flag("verbose", "v", "a line for each entry when it is copied, instead of progress"),
    flag("update", "u", "only what is missing at the target, or older there"),
    flag("no-clobber", "n", "what exists at the target stays as it is, and is no error"),
    flag("shared", "s", "a shared lock, which others may have at the same time"),
    flag("nonblock", "n", "fail at once with exit status 1 when somebody else has a conflicting lock"),
    flag("no-create", "c", "make no file"),
    flag("keep-size", "n", "the file does not grow"),
    flag("punch-hole", "p", "the range becomes a hole and its space is freed; the file keeps its size"),
    flag("zero-range", "z", "the range becomes zeros with room"),
    choice_of_command("truncate-size", "size", "s", Value::Text, "[+-<>/%]SIZE", "the new size"),
    choice_of_command(
        "offset",
        "offset",
        "o",
        Value::Size { least: 0, most: i64::MAX as u64 },
        "SIZE",
        "where the range begins (0)",
    ),
    choice_of_command(
        "length",
        "length",
        "l",
        Value::Size { least: 1, most: i64::MAX as u64 },
        "SIZE",
        "how long the range is",
    ),
    flag("count", "", "print only how many there are"),
    flag("print0", "", "end each path with a NUL instead of a new line"),
    flag("dump", "d", "with the values"),
    flag("no-dereference", "h", "of a symbolic link itself"),
    choice_of_command("attribute-name", "name", "n", Value::Text, "NAME", "the attribute, with its name space"),
    choice_of_command("attribute-value", "value", "v", Value::Text, "VALUE", "its value; without one it is empty"),
    choice_of_command("attribute-remove", "remove", "x", Value::Text, "NAME", "the attribute to remove"),
    choice_of_command(
        "match",
        "match",
        "m",
        Value::Text,
        "PATTERN",
        "names that contain this text, ^ and $ standing for their ends; - stands for all",
    ),
    choice_of_command("mode", "mode", "m", Value::Octal, "OCTAL", "permission bits, before the umask"),
    choice_of_command("name", "name", "", Value::Text, "PATTERN", "the last part of the path matches (*, ?, [...])"),
    choice_of_command(
        "type",
        "type",
        "",
        Value::Choice(&["f", "d", "l"]),
        "f|d|l",
        "is a file, a directory or a symbolic link",
    ),
    choice_of_command(
        "find-size",
        "size",
        "",
        Value::Text,
        "[+-]N[bcwkMG]",
        "takes N units of space, more with +, less with -; c bytes, w words of 2, k, M, G, b or nothing 512 bytes; \
         rounded up",
    ),
    choice_of_command(
        "newer",
        "newer",
        "",
        Value::Text,
        "FILE",
        "was changed after this file: one of the cluster as :/path, else one of this machine",
    ),
    choice_of_command(
        "iname",
        "iname",
        "",
        Value::Text,
        "PATTERN",
        "like -name, but letters of either case are the same",
    ),
    choice_of_command(
        "find-path",
        "path",
        "",
        Value::Text,
        "PATTERN",
        "the whole path matches; * and ? match slashes too",
    ),
    choice_of_command(
        "mtime",
        "mtime",
        "",
        Value::Text,
        "[+-]DAYS",
        "was changed so many whole days ago, more with +, less with -",
    ),
    choice_of_command("mmin", "mmin", "", Value::Text, "[+-]MINUTES", "was changed so many minutes ago, rounded up"),
    choice_of_command(
        "ctime",
        "ctime",
        "",
        Value::Text,
        "[+-]DAYS",
        "like -mtime, for changes of names, rights and owners too",
    ),
    choice_of_command(
        "cmin",
        "cmin",
        "",
        Value::Text,
        "[+-]MINUTES",
        "like -mmin, for changes of names, rights and owners too",
    ),
    choice_of_command("user", "user", "", Value::Text, "USER", "belongs to this user, by name or number"),
    choice_of_command("find-uid", "uid", "", Value::Text, "NUMBER", "belongs to the user of this number"),
    choice_of_command("group", "group", "", Value::Text, "GROUP", "belongs to this group, by name or number"),
    choice_of_command("find-gid", "gid", "", Value::Text, "NUMBER", "belongs to the group of this number"),
    choice_of_command(
        "perm",
        "perm",
        "",
        Value::Text,
        "[-/]OCTAL",
        "has exactly these permission bits, with - all of them, with / any of them",
    ),
    choice_of_command("links", "links", "", Value::Text, "[+-]N", "has N names, more with +, less with -"),
    choice_of_command("find-id", "id", "", Value::Text, "ID", "is a name of the inode with this id, as stat prints it"),
    flag("empty", "", "is a file of no bytes or a directory without entries"),
    choice_of_command(
        "maxdepth",
        "maxdepth",
        "",
        Value::Number { least: 0, most: u64::MAX },
        "LEVELS",
        "at most so far below the starting points",
    ),
    choice_of_command(
        "mindepth",
        "mindepth",
        "",
        Value::Number { least: 0, most: u64::MAX },
        "LEVELS",
        "at least so far below the starting points",
    ),
    choice_of_command(
        "find-server",
        "server",
        "",
        Value::Number { least: 0, most: SERVER_COUNT_MAX as u64 - 1 },
        "INDEX",
        "has its name on this server",
    ),
    flag("summarize", "s", "only the sum of each PATH"),
    choice_of_command("ls-directory", "directory", "d", Value::Flag, "", "directories themselves, not what is in them"),
    choice_of_command("du-all", "all", "a", Value::Flag, "", "a line for each file too"),
    choice_of_command(
        "max-depth",
        "max-depth",
        "d",
        Value::Number { least: 0, most: u64::MAX },
        "LEVELS",
        "no lines further below PATH than this",
    ),
    choice_of_command(
        "du-bytes",
        "bytes",
        "b",
        Value::Flag,
        "",
        "sizes of files in bytes, instead of what they take in units of 1,024",
    ),
    flag("apparent-size", "", "sizes of files instead of what they take on the servers"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Goal: keys are unique, and what has a value says its form.
    #[test]
    fn table_is_sound() {
        let (mut keys, mut settings) = (HashSet::new(), HashSet::new());
        for row in TABLE {
            // The environment and the config file know settings by their names, and the command line may switch them
            // off.
            assert!(!row.variable || (settings.insert(row.name) && row.letters.is_empty()), "{}", row.key);
            assert!(keys.insert(row.key), "{} is there twice", row.key);
            assert_eq!(row.value == Value::Flag, row.unit.is_empty(), "{}", row.key);
            assert!(!row.help.is_empty() && !row.help.ends_with('.'), "{}", row.key);
        }
    }
}
