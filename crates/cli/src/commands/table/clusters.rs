//! Rows of the commands that start, stop, watch and serve clusters.

use super::{CLUSTERS, Command, MANY, joined};
use crate::commands::{check, clean, logs};
use crate::{down, hosts, mount, report, run, salvage, server, status, top, up};

/// What a new cluster is to be like, which `up`, `run` and `config` know alike.
pub const NEW_CLUSTER: [&str; 36] = [
    "servers",
    "hosts",
    "per-host",
    "launcher",
    "interface",
    "binary",
    "launch-timeout-ms",
    "run-directory",
    "dir",
    "store",
    "backing",
    "backing-check",
    "flush",
    "flush-idle-ms",
    "flush-age",
    "flush-rate",
    "flush-writers",
    "flush-atomic",
    "on-conflict",
    "grace-ms",
    "fsync-backing",
    "chunk-size",
    "placement",
    "transport",
    "protect",
    "short-circuit",
    "huge-pages",
    "pin",
    "port",
    "connections-max",
    "checksums",
    "journal-size",
    "metrics-port",
    "timeout-ms",
    "session-grace-ms",
    "start-timeout-ms",
];
/// What a mount beside it is to be like.
const MOUNT: [&str; 9] =
    ["mount", "threads", "io-uring", "keep-entries", "allow-other", "suid", "dev", "cache", "contact"];

static UP_OPTIONS: [&str; 47] = joined(&[&NEW_CLUSTER, &["warm", "record"], &MOUNT]);
static RUN_OPTIONS: [&str; 50] =
    joined(&[&NEW_CLUSTER, &["warm", "stop-timeout-ms", "record", "report", "mpi"], &MOUNT]);

/// In the order of the overview.
pub static ROWS: &[Command] = &[
    Command {
        name: "up",
        group: CLUSTERS,
        summary: "start a cluster on this machine or on several hosts, or start it again",
        operands: "",
        operand_count: (0, 0),
        details: &[
            "Makes a run directory that only you can read (cluster file with key, logs, process numbers), starts the \
             servers in the background and waits until all of them answer. If one fails, all are taken down again \
             and the reasons are printed.",
            "On a run directory whose servers have died, or were stopped with 'down --keep', the servers that are \
             missing start again over their stores, and the data is there as before.",
            "--warm has the memory of the stores touched before 'up' returns, which shows how far it is; without it \
             the first use of each page takes that time, many times longer where a virtual machine has not used the \
             memory before. Ctrl-C ends it and leaves the cluster up.",
            "--backing has the cluster show a directory of the site's file system, and cache it: files are fetched \
             when they are read, and what is changed here stays here (docs/cache.md).",
            "With --hosts the servers start on other hosts, all at once, through the launcher; either all of it is up \
             then, or nothing is left and the message says what went wrong where (docs/hosts.md). --mount mounts on \
             each of them and on this machine; the directory has to be there on all.",
            "--record has tabane-report beside it keep what the servers count, until 'down', which has it ask once \
             more (docs/report.md). Started again after 'down --keep', the cluster is recorded on where it was.",
        ],
        example: "tabane up --servers 4\n\
                  tabane up --record job.db\n\
                  tabane up --hosts 'node[01-04]' --per-host 2\n\
                  tabane up --mount /mnt/job\n\
                  tabane up --servers 2 --store memory:/dev/shm/me,size=4G --chunk-size 64K",
        options: &UP_OPTIONS,
        single_dash: false,
        takes_command_line: false,
        run: up::run,
    },
    Command {
        name: "down",
        group: CLUSTERS,
        summary: "stop a cluster and remove what it stored",
        operands: "",
        operand_count: (0, 0),
        details: &[
            "Asks all servers to stop, waits for them, and removes the stores and the run directory. A server that \
             does not stop in time gets SIGTERM, then SIGKILL.",
            "What was made, changed, moved or removed over a backing directory is carried back to it first, as by \
             'tabane flush --wait'. What could not go is listed with the reason, exit status 3; then nothing is \
             stopped, and 'down' again tries again. --keep stops the servers and keeps what is theirs, --discard \
             loses it. With --verify servers then compare all that they have of files with what is there; what is \
             not the same is listed, exit status 3, and nothing is stopped.",
            "Of several hosts those that can't be reached are listed with the reason, exit status 3; then the run \
             directory stays, so that 'down' again finishes when they are back, unless --forget gives them up.",
        ],
        example: "tabane down\ntabane down --report job.html\ntabane down --keep && tabane up",
        options: &[
            "keep",
            "discard",
            "verify",
            "forget",
            "report",
            "run-directory",
            "cluster",
            "stop-timeout-ms",
            "launch-timeout-ms",
        ],
        single_dash: false,
        takes_command_line: false,
        run: down::run,
    },
    Command {
        name: "clean",
        group: CLUSTERS,
        summary: "remove from a directory what flushes of dead clusters have left there",
        operands: "DIR",
        operand_count: (1, 1),
        details: &[
            "A flush writes each file under a hidden name (.tabane-CLUSTER-ID) and then gives it its own. Where a \
             cluster was killed, such files stay; they are removed from DIR and all directories below it, on DIR's \
             file system, and listed. Symbolic links are not followed.",
            "Those of the cluster whose run directory is named, or is found by default, are never touched, also if it \
             is stopped. Nobody can say of others whether they are alive somewhere, so theirs are removed only if \
             nothing has happened to them for a day; --force takes all of them. A cluster that loses one all the same \
             writes that file again with its next flush, and lists it until then.",
            "A hidden name that ends in -parked has a whole file or directory that was about to be renamed, of which \
             there may be no other. It is listed, and stays: look at it, then rename or remove it.",
            "Exit status 3 where something could not be looked at or removed.",
        ],
        example: "tabane clean --dry-run /scratch/project\ntabane clean --force /scratch/project",
        options: &["dry-run", "clean-force", "jobs", "run-directory", "cluster"],
        single_dash: false,
        takes_command_line: false,
        run: clean::run,
    },
    Command {
        name: "restart",
        group: CLUSTERS,
        summary: "stop one server, if it runs, and start it again over its store",
        operands: "SERVER",
        operand_count: (1, 1),
        details: &[
            "The server is on whichever host 'up' started it. Clients go on by themselves when it is back; its data \
             is there as before, as far as its store keeps it.",
        ],
        example: "tabane restart 3",
        options: &["run-directory", "cluster", "stop-timeout-ms", "start-timeout-ms", "launch-timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: hosts::run_restart,
    },
    Command {
        name: "host",
        group: CLUSTERS,
        summary: "do one host's part of 'up --hosts', 'down' and 'restart', which start it there",
        operands: "",
        operand_count: (0, 0),
        details: &[
            "Reads orders from standard input, the key of the cluster among them, and reports on standard output. \
             When the orders end before all hosts have agreed, it takes back what it made.",
        ],
        example: "tabane host --number=0 < orders",
        options: &["host-number", "host-numbers", "host-orders"],
        single_dash: false,
        takes_command_line: false,
        run: hosts::run_agent,
    },
    Command {
        name: "status",
        group: CLUSTERS,
        summary: "say how the servers are, or what of files is here",
        operands: "[PATH...]",
        operand_count: (0, MANY),
        details: &[
            "For each server: whether it is up, its process, space, requests so far, requests waiting (qdepth) and \
             being worked on (active), their mean time from arrival to start (wait), and memory now beside what it \
             may use at most.",
            "Below come the mounts of this machine; where 'up --hosts' has mounted, those of all hosts, which are \
             asked through the launcher, no longer than either of the two time-outs.",
            "Exit status 1 if a server does not answer.",
            "With --lost it lists instead what can't be had without the servers that are down, as the others know it: \
             names whose inode is there, files with chunks there, what had its name there, and what is left of files \
             that were there. With --json one object a line, the last one with the sums.",
            "With --files it lists the files and directories to which clients did most since the servers were started: \
             requests, bytes, and the time that servers had with them, with what was asked of names counted to their \
             directory. Each server keeps count of 64; whatever has had more than a 64th of its work has a place. What \
             clients of its machine read by themselves is not in it. Names are found by a walk through the \
             tree, which ends once all have been found. With --json one object a line.",
            "With --metrics all servers' counters come as Prometheus wants them, each with its server's number; \
             'tabane-report serve' has them on a port.",
            "With paths, of a cluster with a backing directory, it says how many bytes of the files below each are \
             changed here and not there yet (dirty), here and there (clean), and there alone (absent), in whole \
             chunks.",
        ],
        example: "tabane status\n\
                  tabane status --json\n\
                  tabane status --lost\n\
                  tabane status --files\n\
                  tabane status --metrics\n\
                  tabane status :/dataset",
        options: &[
            "json",
            "samples",
            "sample-count",
            "metrics",
            "no-mounts",
            "lost",
            "files",
            "cluster",
            "run-directory",
            "timeout-ms",
            "launch-timeout-ms",
        ],
        single_dash: false,
        takes_command_line: false,
        run: status::run,
    },
    Command {
        name: "top",
        group: CLUSTERS,
        summary: "show what the servers do, live",
        operands: "",
        operand_count: (0, 0),
        details: &[
            "For each server and the whole cluster: operations, bytes read and written each second, requests that \
             wait (queue), their mean time from arrival to start (wait), those being worked on (active), the share of \
             the time in which the server works (busy), the share of its space that is used, and operations over the \
             last minute; below, the operations that are asked for most. A server that does not answer is shown as \
             silent, one whose process has ended as down.",
            "Keys: q quits, s sorts by the next column, r turns the order, space pauses, + and - change the interval, \
             the arrows select a server whose operations are shown, escape shows those of all. No colours with \
             NO_COLOR in the environment.",
            "With --once one table over one interval is printed, with --json a line of JSON each interval, or one \
             with both. Exit status with --once: 1 if a server does not answer.",
        ],
        example: "tabane top\ntabane top --sort busy\ntabane top --once --json",
        options: &["once", "json", "sort", "reverse", "interval-ms", "color", "cluster"],
        single_dash: false,
        takes_command_line: false,
        run: top::run,
    },
    Command {
        name: "watch",
        group: CLUSTERS,
        summary: "show what the servers do on a live page, by tabane-report",
        operands: "[ADDRESS]",
        operand_count: (0, 1),
        details: &[
            "With --web a page is served at 127.0.0.1, or at ADDRESS, as 127.0.0.1:8080: servers by time, jobs, a \
             table, events and advice. Its URL, which has a token, is printed, with the line of ssh that brings it to \
             your own machine. It goes on until Ctrl-C. The program is tabane-report, beside this one or on the PATH.",
        ],
        example: "tabane watch --web\ntabane watch --web 127.0.0.1:8080\ntabane watch --web --from site.db",
        options: &["web", "from", "cluster"],
        single_dash: false,
        takes_command_line: false,
        run: report::watch,
    },
    Command {
        name: "logs",
        group: CLUSTERS,
        summary: "print what the servers have logged",
        operands: "[SERVER]",
        operand_count: (0, 1),
        details: &[
            "The logs of all servers of a run directory in order of time, or that of one server: a line for each \
             event that an operator would act on, with time (UTC), level, server, the name of the event, facts and a \
             message. Of one event a server writes at most 10 lines a minute; held_back tells how many more there \
             were.",
            "Each server keeps at most 8 MiB of log in the run directory.",
        ],
        example: "tabane logs --level warning\ntabane logs 2 -f\ntabane logs --json -n 100",
        options: &["follow", "level", "lines", "json", "color", "cluster"],
        single_dash: false,
        takes_command_line: false,
        run: logs::run,
    },
    Command {
        name: "check",
        group: CLUSTERS,
        summary: "say whether what the servers hold fits together, and repair it",
        operands: "",
        operand_count: (0, 0),
        details: &[
            "Puts the tables of all servers side by side: each name leads to an inode of its kind, each inode has as \
             many names as it says, each directory one below the root, each chunk a file that knows of it, and no \
             file ends before its last byte. It may run while others work; what changes meanwhile is looked at again, \
             and only what is wrong and stands still is reported.",
            "With --repair, inodes without a name are moved to /lost+found under their numbers, names of nothing are \
             removed, link counts and sizes set, chunks of nothing freed. With --dry-run it only says what it would \
             do.",
            "Exit status: 0 all is well, 1 faults were repaired, 4 faults are left, 8 the check could not be made.",
        ],
        example: "tabane check\ntabane check --repair --dry-run",
        options: &["repair", "dry-run", "data", "json", "progress", "quiet", "cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: check::run,
    },
    Command {
        name: "salvage",
        group: CLUSTERS,
        summary: "say what is wrong with a store that no server can open, and mend it",
        operands: "DIR",
        operand_count: (1, 1),
        details: &[
            "DIR is the store that a server calls damaged: what 'tabane up' says names it. It is looked at on the \
             machine that it is on, while no server uses it, and without a change unless --mend is there. What a \
             start reads lies under checksums, journal, checkpoint and super. Where one bit has flipped under one of \
             them, the checksum tells which: --mend puts it right, and nothing is lost.",
            "Where more has changed, it is said and stays: what was there can't be known. Bytes of files are not \
             looked at; in a cluster with --checksums 'tabane check --data' does that.",
            "Exit status: 0 nothing is wrong, or all of it was mended; 1 something is wrong, or stays so; 2 nothing \
             could be looked at.",
        ],
        example: "tabane salvage /dev/shm/job/server-0\ntabane salvage --mend /dev/shm/job/server-0",
        options: &["mend", "json"],
        single_dash: false,
        takes_command_line: false,
        run: salvage::run,
    },
    Command {
        name: "run",
        group: CLUSTERS,
        summary: "run a program with a cluster of its own",
        operands: "-- COMMAND...",
        operand_count: (1, MANY),
        details: &[
            "Starts a cluster as 'up' does, runs the command with TABANE_CLUSTER and CHFS_SERVER in its environment, \
             and takes the cluster down again when the command has ended or a signal asks to stop. Exit status: that \
             of the command; 128 and the number of the signal if one ended it.",
            "What was changed over a backing directory is carried back to it at the end. What could not go, or was \
             not done when a second signal came, is listed, exit status 3 where the command had 0; then the servers \
             are stopped, and all that they store stays for 'up' and 'down' with the run directory that is named.",
            "With --report a page says at the end what the servers did meanwhile, and what should be changed; --record \
             keeps what they counted, from which tabane-report tells more.",
            "With --hosts the servers are on other hosts, as those of 'up'; the command runs here, and --mount mounts \
             here and on all of them.",
            "With --mpi the command and what it starts have libtabane_mpiio.so for that MPI before them (LD_PRELOAD), \
             so that calls of MPI-IO on tabane:/PATH and below a mount go to the servers by themselves.",
        ],
        example: "tabane run --servers 4 -- sh -c 'tabane cp -r input :/ && ./simulate'\n\
                  tabane run --hosts auto -- srun ./simulate",
        options: &RUN_OPTIONS,
        single_dash: false,
        takes_command_line: true,
        run: run::run,
    },
    Command {
        name: "mount",
        group: CLUSTERS,
        summary: "make a cluster part of the tree of this machine",
        operands: "DIR",
        operand_count: (1, 1),
        details: &[
            "Every program finds the cluster's files below DIR then. Works without root where fusermount3 (package \
             fuse3) is installed; then only you may use the mount, unless --allow-other. What one mount, command or \
             library changes all others see at once. Returns when the mount is there; a process in the background \
             serves it, and writes what goes wrong to a log in the run directory.",
            "Set-user bits and device nodes mean nothing on a mount, unless root asks for them by --suid and --dev.",
            "A DIR of /dev/fd/N is a descriptor of /dev/fuse that was inherited and is mounted already, as container \
             runtimes hand it over (apptainer --fusemount): it is served, with the mount's options left to who \
             mounted it, until that one takes it out of the tree.",
        ],
        example: "tabane mount /mnt/job\nls -l /mnt/job\ntabane umount /mnt/job",
        options: &[
            "cluster",
            "foreground",
            "announce",
            "threads",
            "io-uring",
            "keep-entries",
            "allow-other",
            "suid",
            "dev",
            "cache",
            "timeout-ms",
            "contact",
        ],
        single_dash: false,
        takes_command_line: false,
        run: mount::run,
    },
    Command {
        name: "umount",
        group: CLUSTERS,
        summary: "take a mount out of the tree",
        operands: "DIR",
        operand_count: (1, 1),
        details: &[
            "Also clears a mount whose process was killed. One that is in use stays, unless --force: then it goes \
             from the tree, the process that serves it ends, and programs that use it still get errors.",
        ],
        example: "tabane umount /mnt/job",
        options: &["umount-force", "cluster"],
        single_dash: false,
        takes_command_line: false,
        run: mount::unmount,
    },
    Command {
        name: "server",
        group: CLUSTERS,
        summary: "be one server, in the foreground",
        operands: "",
        operand_count: (0, 0),
        details: &[
            "What 'up' starts, for those who start servers by other means. The store in the directory is created, or \
             recovered if there is one. Prints the most memory that it may use, with the reason of each part. \
             SIGTERM and SIGINT stop it cleanly.",
        ],
        example: "tabane server --cluster run/cluster --index 0 --directory /dev/shm/store-0 --size 2G",
        options: &[
            "cluster",
            "index",
            "directory",
            "device",
            "buffer",
            "store-size",
            "journal-size",
            "checksums",
            "transport",
            "short-circuit",
            "huge-pages",
            "pin",
            "connections-max",
            "metrics-port",
            "timeout-ms",
            "session-grace-ms",
            "backing",
            "backing-check",
            "flush",
            "flush-idle-ms",
            "flush-age",
            "flush-rate",
            "flush-writers",
            "flush-atomic",
            "on-conflict",
            "grace-ms",
            "fsync-backing",
            "log",
        ],
        single_dash: false,
        takes_command_line: false,
        run: server::run,
    },
];
