//! The table of commands, and the small commands themselves.

mod check;
mod checksum;
mod conditions;
mod directories;
mod extended;
mod find;
mod flock;
mod list;
mod logs;
mod ranges;
mod remove;
mod rights;
mod settings;
mod space;
mod stat;
mod stream;
mod synchronise;
mod usage;

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome};
use crate::options::OptionRow;
use crate::{completion, copy, doctor, down, help, hosts, manual, mount, run, server, status, top, up};
use std::ffi::{OsStr, OsString};

/// One command.
#[derive(Debug)]
pub struct Command {
    pub name: &'static str,
    /// Heading under which the overview lists it.
    pub group: &'static str,
    pub summary: &'static str,
    /// Operands as the usage line shows them.
    pub operands: &'static str,
    /// Fewest and most of them.
    pub operand_count: (usize, usize),
    pub details: &'static [&'static str],
    pub example: &'static str,
    /// Keys of its options.
    pub options: &'static [&'static str],
    /// Long options have one dash, as those of find(1).
    pub single_dash: bool,
    /// The first operand begins another program's command line, which is left alone.
    pub takes_command_line: bool,
    pub run: fn(&Arguments) -> Outcome,
}

/// What operands stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperandKind {
    None,
    /// Paths of this machine.
    Local,
    /// Paths inside the cluster.
    Inside,
    /// Paths of this machine, and behind a colon those inside the cluster.
    BothSides,
    /// A program with its arguments.
    Program,
    /// A command of ours.
    Command,
    /// One of these, with bars between them.
    Words(&'static str),
}

const MANY: usize = usize::MAX;
const CLUSTERS: &str = "Clusters";
const FILES: &str = "Files (paths are inside the cluster)";
const PROGRAM: &str = "This program";

/// Says how paths of `cp` and `checksum` are written.
const TWO_SIDES: &str = "A path inside the cluster is written with a colon in front, as :/path or tabane:/path; any other \
     path is one of this machine.";

/// All commands, in the order of the overview.
pub static COMMANDS: &[Command] = &[
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
            "With --hosts the servers start on other hosts, all at once, through the launcher; either all of it is up \
             then, or nothing is left and the message says what went wrong where (docs/hosts.md).",
        ],
        example: "tabane up --servers 4\ntabane up --hosts 'node[01-04]' --per-host 2\ntabane up --mount /mnt/job\ntabane up --servers 2 --store memory:/dev/shm/me,size=4G --chunk-size 64K",
        options: &[
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
            "chunk-size",
            "placement",
            "transport",
            "short-circuit",
            "pin",
            "port",
            "connections-max",
            "checksums",
            "journal-size",
            "metrics-port",
            "timeout-ms",
            "session-grace-ms",
            "start-timeout-ms",
            "mount",
            "threads",
            "allow-other",
            "cache",
        ],
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
            "Asks all servers to stop, waits for them, and removes the stores and the run directory. A server that does \
             not stop in time gets SIGTERM, then SIGKILL.",
            "Of several hosts those that can't be reached are listed with the reason, exit status 3; then the run directory \
             stays, so that 'down' again finishes when they are back, unless --forget gives them up.",
        ],
        example: "tabane down\ntabane down --keep && tabane up",
        options: &["keep", "forget", "run-directory", "cluster", "stop-timeout-ms", "launch-timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: down::run,
    },
    Command {
        name: "restart",
        group: CLUSTERS,
        summary: "stop one server, if it runs, and start it again over its store",
        operands: "SERVER",
        operand_count: (1, 1),
        details: &[
            "The server is on whichever host 'up' started it. Clients go on by themselves when it is back; its data is there \
             as before, as far as its store keeps it.",
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
            "Reads orders from standard input, the key of the cluster among them, and reports on standard output. When the \
             orders end before all hosts have agreed, it takes back what it made.",
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
        summary: "say how the servers are",
        operands: "",
        operand_count: (0, 0),
        details: &[
            "For each server: whether it is up, its process, space, requests so far, requests waiting (qdepth) and being \
             worked on (active), their mean time from arrival to start (wait), and memory now beside what it may use at most.",
            "Exit status 1 if a server does not answer.",
            "With --lost it lists instead what can't be had without the servers that are down, as the others know it: names \
             whose inode is there, files with chunks there, what had its name there, and what is left of files that were \
             there. With --json one object a line, the last one with the sums.",
        ],
        example: "tabane status\ntabane status --json\ntabane status --lost",
        options: &["json", "lost", "cluster", "run-directory", "timeout-ms"],
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
            "For each server and the whole cluster: operations, bytes read and written each second, requests that wait (queue), \
             their mean time from arrival to start (wait), those being worked on (active), the share of the time in which the \
             server works (busy), the share of its space that is used, and operations over the last minute; below, the \
             operations that are asked for most. A server that does not answer is shown as silent, one whose process has \
             ended as down.",
            "Keys: q quits, s sorts by the next column, r turns the order, space pauses, + and - change the interval, the arrows \
             select a server whose operations are shown, escape shows those of all. No colours with NO_COLOR in the environment.",
            "With --once one table over one interval is printed, with --json a line of JSON each interval, or one with both. \
             Exit status with --once: 1 if a server does not answer.",
        ],
        example: "tabane top\ntabane top --sort busy\ntabane top --once --json",
        options: &["once", "json", "sort", "reverse", "interval-ms", "color", "cluster"],
        single_dash: false,
        takes_command_line: false,
        run: top::run,
    },
    Command {
        name: "logs",
        group: CLUSTERS,
        summary: "print what the servers have logged",
        operands: "[SERVER]",
        operand_count: (0, 1),
        details: &[
            "The logs of all servers of a run directory in order of time, or that of one server: a line for each event that an \
             operator would act on, with time (UTC), level, server, the name of the event, facts and a message. Of one event \
             a server writes at most 10 lines a minute; held_back tells how many more there were.",
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
            "Puts the tables of all servers side by side: each name leads to an inode of its kind, each inode has as many \
             names as it says, each directory one below the root, each chunk a file that knows of it, and no file ends \
             before its last byte. It may run while others work; what changes meanwhile is looked at again, and only what \
             is wrong and stands still is reported.",
            "With --repair, inodes without a name are moved to /lost+found under their numbers, names of nothing are \
             removed, link counts and sizes set, chunks of nothing freed. With --dry-run it only says what it would do.",
            "Exit status: 0 all is well, 1 faults were repaired, 4 faults are left, 8 the check could not be made.",
        ],
        example: "tabane check\ntabane check --repair --dry-run",
        options: &["repair", "dry-run", "data", "json", "quiet", "cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: check::run,
    },
    Command {
        name: "run",
        group: CLUSTERS,
        summary: "run a program with a cluster of its own",
        operands: "-- COMMAND...",
        operand_count: (1, MANY),
        details: &[
            "Starts a cluster as 'up' does, runs the command with TABANE_CLUSTER and CHFS_SERVER in its environment, and \
             takes the cluster down again when the command has ended or a signal asks to stop. Exit status: that of the \
             command; 128 and the number of the signal if one ended it.",
        ],
        example: "tabane run --servers 4 -- sh -c 'tabane cp -r input :/ && ./simulate'",
        options: &[
            "servers",
            "run-directory",
            "dir",
            "store",
            "chunk-size",
            "placement",
            "transport",
            "short-circuit",
            "pin",
            "port",
            "connections-max",
            "checksums",
            "journal-size",
            "metrics-port",
            "timeout-ms",
            "session-grace-ms",
            "start-timeout-ms",
            "stop-timeout-ms",
            "mount",
            "threads",
            "allow-other",
            "cache",
        ],
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
            "Every program finds the cluster's files below DIR then. Works without root where fusermount3 (package fuse3) is \
             installed; then only you may use the mount, unless --allow-other. What one mount, command or library changes \
             all others see at once. Returns when the mount is there; a process in the background serves it, and writes what \
             goes wrong to a log in the run directory.",
        ],
        example: "tabane mount /mnt/job\nls -l /mnt/job\ntabane umount /mnt/job",
        options: &["cluster", "foreground", "threads", "allow-other", "cache", "timeout-ms"],
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
            "Also clears a mount whose process was killed. One that is in use stays, unless --force: then it goes from the \
             tree, and programs that have files of it open keep these until they end.",
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
            "store-size",
            "journal-size",
            "checksums",
            "transport",
            "short-circuit",
            "pin",
            "connections-max",
            "metrics-port",
            "timeout-ms",
            "session-grace-ms",
            "log",
        ],
        single_dash: false,
        takes_command_line: false,
        run: server::run,
    },
    Command {
        name: "ls",
        group: FILES,
        summary: "list directories",
        operands: "[PATH...]",
        operand_count: (0, MANY),
        details: &[
            "One name a line, sorted. Without a path the root is listed.",
            "Here and in other commands that take paths inside the cluster, a path may be a pattern: *, ? and [...] match within a \
             name, \\ takes their meaning away. Quote it, or the shell will look among the files of this machine. What exists \
             as it is written stands for itself.",
        ],
        example: "tabane ls -l /share\ntabane ls ':/results/*.dat'",
        options: &["long", "all", "recursive", "human", "cluster", "timeout-ms", "jobs"],
        single_dash: false,
        takes_command_line: false,
        run: list::run,
    },
    Command {
        name: "cp",
        group: FILES,
        summary: "copy files and trees in and out, in parallel",
        operands: "SOURCE... TARGET",
        operand_count: (2, MANY),
        details: &[
            TWO_SIDES,
            "Times and modes are kept, for the superuser also owners. As with cp(1), a target that is a directory gets the \
             sources into it. Many files are under way at once, large ones in several pieces. With -r, symbolic links are \
             copied as such; without, what they lead to.",
            "On Ctrl-C small files under way are completed, large ones that are not whole are removed, and it says how far it \
             came; a second Ctrl-C ends it at once.",
        ],
        example: "tabane cp -r /usr/share :/\ntabane cp :/share/doc/README README",
        options: &["recursive", "preserve", "quiet", "jobs", "cluster", "timeout-ms", "chunk-size"],
        single_dash: false,
        takes_command_line: false,
        run: copy::run,
    },
    Command {
        name: "cat",
        group: FILES,
        summary: "print files",
        operands: "PATH...",
        operand_count: (1, MANY),
        details: &["The files' bytes, one after the other, on standard output."],
        example: "tabane cat /share/doc/README",
        options: &["cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: stream::run_cat,
    },
    Command {
        name: "put",
        group: FILES,
        summary: "write standard input to a file",
        operands: "PATH",
        operand_count: (1, 1),
        details: &["The file is made, or emptied first if it exists."],
        example: "tabane put /archive.tar < archive.tar\ntar c directory | tabane put /directory.tar",
        options: &["mode", "chunk-size", "cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: stream::run_put,
    },
    Command {
        name: "get",
        group: FILES,
        summary: "write a file to standard output",
        operands: "PATH",
        operand_count: (1, 1),
        details: &["The counterpart of put."],
        example: "tabane get /directory.tar | tar x",
        options: &["cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: stream::run_cat,
    },
    Command {
        name: "chmod",
        group: FILES,
        summary: "change permission bits",
        operands: "MODE PATH...",
        operand_count: (2, MANY),
        details: &[
            "MODE is octal, or symbolic as for chmod(1): u=rwx,go-w,a+X. A MODE that begins with - stands behind --. Symbolic \
             links that are found on the way are left alone.",
        ],
        example: "tabane chmod -R u=rwX,go= /private\ntabane chmod 2775 /share",
        options: &["recursive", "cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: rights::run_chmod,
    },
    Command {
        name: "chown",
        group: FILES,
        summary: "change owner and group",
        operands: "[USER][:GROUP] PATH...",
        operand_count: (2, MANY),
        details: &[
            "By name or number. Only root changes owners; owners change the group to one of their own. With -R, of symbolic \
             links their own.",
        ],
        example: "tabane chown -R alice:physics /results",
        options: &["recursive", "cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: rights::run_chown,
    },
    Command {
        name: "chgrp",
        group: FILES,
        summary: "change the group",
        operands: "GROUP PATH...",
        operand_count: (2, MANY),
        details: &["By name or number, as chown does."],
        example: "tabane chgrp -R physics /results",
        options: &["recursive", "cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: rights::run_chgrp,
    },
    Command {
        name: "stat",
        group: FILES,
        summary: "print all attributes",
        operands: "PATH...",
        operand_count: (1, MANY),
        details: &["Of a symbolic link its own. Also shows where the file lives: its id, home server and layout."],
        example: "tabane stat /share",
        options: &["cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: stat::run,
    },
    Command {
        name: "find",
        group: FILES,
        summary: "print the paths of a tree that match",
        operands: "[PATH...]",
        operand_count: (0, MANY),
        details: &[
            "All servers are searched at once, so paths come in no order. Conditions must all hold; there are no operators \
             and no actions but those below. Options are written with one dash, as those of find(1), or with two.",
            "The servers apply the conditions to the names they hold and send what matches; -count has them send numbers \
             only. On a terminal, control characters in names are quoted as ls(1) does.",
        ],
        example: "tabane find /share -name '*.html' -size +10k -count",
        options: &[
            "name",
            "iname",
            "find-path",
            "type",
            "find-size",
            "mtime",
            "mmin",
            "ctime",
            "cmin",
            "newer",
            "user",
            "find-uid",
            "group",
            "find-gid",
            "perm",
            "links",
            "empty",
            "maxdepth",
            "mindepth",
            "find-server",
            "print0",
            "count",
            "json",
            "cluster",
            "timeout-ms",
            "jobs",
        ],
        single_dash: true,
        takes_command_line: false,
        run: find::run,
    },
    Command {
        name: "du",
        group: FILES,
        summary: "say what the files of a tree take on the servers",
        operands: "[PATH...]",
        operand_count: (0, MANY),
        details: &[
            "One line for each directory, in units of 1,024 bytes: whole pages of what was written, and what was \
             reserved; holes, directories and links take nothing. With --apparent-size or -b, sizes count instead. A file with \
             several names is counted once.",
        ],
        example: "tabane du -sh /results\ntabane du -d 1 -b /",
        options: &["summarize", "human", "du-all", "max-depth", "du-bytes", "apparent-size", "cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: usage::run,
    },
    Command {
        name: "rm",
        group: FILES,
        summary: "remove files, and trees with -r",
        operands: "PATH...",
        operand_count: (1, MANY),
        details: &[
            "Symbolic links are removed, not followed. On Ctrl-C it ends what it has begun, says how many entries are gone, and \
             leaves the others as they are.",
        ],
        example: "tabane rm -r /share\ntabane rm '/results/*.tmp'",
        options: &["recursive", "force", "progress", "cluster", "timeout-ms", "jobs"],
        single_dash: false,
        takes_command_line: false,
        run: remove::run,
    },
    Command {
        name: "mkdir",
        group: FILES,
        summary: "make directories",
        operands: "PATH...",
        operand_count: (1, MANY),
        details: &[],
        example: "tabane mkdir -p /results/today",
        options: &["parents", "mode", "cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: directories::run_mkdir,
    },
    Command {
        name: "rmdir",
        group: FILES,
        summary: "remove empty directories",
        operands: "PATH...",
        operand_count: (1, MANY),
        details: &[],
        example: "tabane rmdir /results/today",
        options: &["cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: directories::run_rmdir,
    },
    Command {
        name: "ln",
        group: FILES,
        summary: "give a file one more name, or make a symbolic link with -s",
        operands: "TARGET PATH",
        operand_count: (2, 2),
        details: &["With -s the target is kept as it is written, whether or not it exists."],
        example: "tabane ln -s share/doc /documents",
        options: &["symbolic", "cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: directories::run_ln,
    },
    Command {
        name: "mv",
        group: FILES,
        summary: "rename files and directories",
        operands: "PATH... NEW-PATH",
        operand_count: (2, MANY),
        details: &[
            "A directory at the new path takes in what is renamed; anything else there is replaced. A directory is renamed \
             with all that is in it, and can't be moved into itself.",
        ],
        example: "tabane mv /results/part /results/whole",
        options: &["no-replace", "exchange", "cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: directories::run_mv,
    },
    Command {
        name: "getfattr",
        group: FILES,
        summary: "print extended attributes",
        operands: "PATH...",
        operand_count: (1, MANY),
        details: &[
            "Names of those in user.; with -d also their values, with -n one value, with -m - all names. Values are shown as \
             text in quotes, or as 0s and base64 when they are no text.",
        ],
        example: "tabane getfattr -d /results/whole",
        options: &["attribute-name", "dump", "match", "no-dereference", "json", "cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: extended::run_getfattr,
    },
    Command {
        name: "setfattr",
        group: FILES,
        summary: "set or remove an extended attribute",
        operands: "PATH...",
        operand_count: (1, MANY),
        details: &[
            "Names begin with user., or, for the superuser, with trusted. or security. A value is text, with or without \
             quotes, 0x and hexadecimal digits, or 0s and base64; at most 64 KiB.",
        ],
        example: "tabane setfattr -n user.step -v 12 /results/whole",
        options: &["attribute-name", "attribute-value", "attribute-remove", "no-dereference", "cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: extended::run_setfattr,
    },
    Command {
        name: "flock",
        group: FILES,
        summary: "run a program while a file is locked",
        operands: "PATH COMMAND...",
        operand_count: (2, MANY),
        details: &[
            "Locks a file of the cluster, which is made when it does not exist, waits for the lock if somebody else has it, \
             on whichever machine, and runs the command. The lock ends with the command, or with this program. Exit \
             status: that of the command; 1 when the lock was not to be had with --nonblock.",
        ],
        example: "tabane flock /lock make -j8\ntabane flock -n /lock sh -c 'date > stamp' || echo busy",
        options: &["shared", "nonblock", "cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: true,
        run: flock::run,
    },
    Command {
        name: "truncate",
        group: FILES,
        summary: "cut or extend files",
        operands: "PATH...",
        operand_count: (1, MANY),
        details: &[
            "Sizes as those of truncate(1): a number of bytes, with K, M, G or T, and in front + or - (more or less than \
             now), < or > (at most, at least), / or % (rounded down or up to a multiple). What is added reads as zeros.",
        ],
        example: "tabane truncate -s 1G /results/whole\ntabane truncate -s %4K /results/*",
        options: &["truncate-size", "no-create", "cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: ranges::run_truncate,
    },
    Command {
        name: "fallocate",
        group: FILES,
        summary: "take space for a range of a file, or give it back",
        operands: "PATH",
        operand_count: (1, 1),
        details: &[
            "Takes room on the servers of the range, so that writing there does not fail for want of it; the file is made if \
             it does not exist. Options as those of fallocate(1).",
        ],
        example: "tabane fallocate -l 10G /results/whole\ntabane fallocate -p -o 1M -l 64M /results/whole",
        options: &["length", "offset", "keep-size", "punch-hole", "zero-range", "cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: ranges::run_fallocate,
    },
    Command {
        name: "df",
        group: FILES,
        summary: "print space used and free on each server",
        operands: "",
        operand_count: (0, 0),
        details: &[],
        example: "tabane df -h",
        options: &["human", "cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: space::run,
    },
    Command {
        name: "sync",
        group: FILES,
        summary: "make files, or everything, survive power loss",
        operands: "[PATH...]",
        operand_count: (0, MANY),
        details: &[
            "Does what the servers' media can: on a disk file system or DAX what was synced survives power loss, on tmpfs \
             nothing does. Without a path, everything on all servers.",
        ],
        example: "tabane sync /results/whole",
        options: &["cluster", "timeout-ms"],
        single_dash: false,
        takes_command_line: false,
        run: synchronise::run,
    },
    Command {
        name: "checksum",
        group: FILES,
        summary: "print the SHA-256 of files, sorted by path",
        operands: "PATH...",
        operand_count: (1, MANY),
        details: &[
            TWO_SIDES,
            "With -r, of all files below the paths, named relative to them, in the form of sha256sum(1): two trees are \
             equal if their lists are, and 'sha256sum -c' can check one side.",
        ],
        example: "tabane checksum -r :/share > list && (cd /usr/share && sha256sum -c --quiet) < list",
        options: &["recursive", "cluster", "timeout-ms", "jobs"],
        single_dash: false,
        takes_command_line: false,
        run: checksum::run,
    },
    Command {
        name: "doctor",
        group: PROGRAM,
        summary: "say what this machine lacks and how to mend it",
        operands: "",
        operand_count: (0, 0),
        details: &[
            "Looks at the kernel, io_uring, limits, shared memory, huge pages, control groups, FUSE, the network, the clock and \
             the scheduler. Each line says ok, warning (it works, but worse than it could, or something that not everybody \
             needs is not there) or missing (nothing works without it), and then what to do.",
            "Exit status: 1 if something is missing.",
        ],
        example: "tabane doctor\ntabane doctor --json",
        options: &["json", "color"],
        single_dash: false,
        takes_command_line: false,
        run: doctor::run,
    },
    Command {
        name: "config",
        group: PROGRAM,
        summary: "print the settings and where they come from",
        operands: "[COMMAND]",
        operand_count: (0, 1),
        details: &[
            "A setting is looked for on the command line, in the environment, in the config file and in the defaults, in this \
             order. The config file is TOML: the one that TABANE_CONFIG names, else tabane/config.toml in $XDG_CONFIG_HOME or \
             ~/.config. Its keys are the settings below without the dashes; those in a table named after a command, such as \
             [cp], hold for that command alone. Unknown keys are refused.",
            "Prints a config file that says what holds now, with the defaults as comments; with --explain a table with the \
             source of each value. With COMMAND, the settings of that command, its own table of the file counted in. Flags \
             behind it count as those of the command would.",
        ],
        example: "tabane config --explain\ntabane config --explain cp --jobs 64\ntabane config > ~/.config/tabane/config.toml",
        options: &[
            "explain",
            "json",
            "cluster",
            "run-directory",
            "timeout-ms",
            "servers",
            "hosts",
            "per-host",
            "launcher",
            "interface",
            "binary",
            "launch-timeout-ms",
            "dir",
            "store",
            "chunk-size",
            "placement",
            "transport",
            "short-circuit",
            "pin",
            "port",
            "connections-max",
            "checksums",
            "journal-size",
            "metrics-port",
            "session-grace-ms",
            "start-timeout-ms",
            "stop-timeout-ms",
            "jobs",
            "threads",
            "interval-ms",
            "color",
        ],
        single_dash: false,
        takes_command_line: false,
        run: settings::run,
    },
    Command {
        name: "completions",
        group: PROGRAM,
        summary: "print what a shell needs to complete command lines",
        operands: "bash|zsh|fish",
        operand_count: (1, 1),
        details: &[
            "Completes commands, options, their values, and paths inside the cluster, which are asked from the servers. \
             'make install' puts them where the shells look.",
        ],
        example: "tabane completions bash > ~/.local/share/bash-completion/completions/tabane\n\
                  tabane completions zsh > ~/.zfunc/_tabane\n\
                  tabane completions fish > ~/.config/fish/completions/tabane.fish",
        options: &[],
        single_dash: false,
        takes_command_line: false,
        run: completion::run,
    },
    Command {
        name: "man",
        group: PROGRAM,
        summary: "write the manual pages",
        operands: "DIR",
        operand_count: (1, 1),
        details: &[
            "Writes man1/tabane.1, man1/tabane-COMMAND.1 for each command and man5/tabane-config.5 below DIR. 'make install' \
             puts them where man(1) looks.",
        ],
        example: "tabane man ~/.local/share/man && man tabane-cp",
        options: &[],
        single_dash: false,
        takes_command_line: false,
        run: manual::run,
    },
];

/// The command of a name.
pub fn find(name: &str) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| command.name == name)
}

impl Command {
    fn rows(&self) -> impl Iterator<Item = &'static OptionRow> + '_ {
        self.options.iter().map(|key| OptionRow::of(key))
    }

    /// Its option with this long name.
    pub fn find_option(&self, name: &str) -> Option<&'static OptionRow> {
        self.rows().find(|row| row.name == name)
    }

    /// Its option with this letter.
    pub fn find_letter(&self, letter: char) -> Option<&'static OptionRow> {
        self.rows().find(|row| row.letters.contains(letter))
    }

    /// A word of the command line, with the second dash where this command does not ask for it.
    pub fn spelled_out(&self, word: &OsStr) -> OsString {
        let name = word.to_str().and_then(|word| word.strip_prefix('-')).filter(|_| self.single_dash);
        // A value may begin with a dash too, but then goes on with a digit.
        let is_option = |name: &&str| name.len() > 1 && name.starts_with(|letter: char| letter.is_ascii_alphabetic());
        match name.filter(is_option) {
            Some(name) => OsString::from(format!("--{name}")),
            None => word.to_owned(),
        }
    }

    /// What the shell may complete as an operand.
    pub fn operand_kind(&self) -> OperandKind {
        match self.operands {
            "DIR" => OperandKind::Local,
            _ if self.details.contains(&TWO_SIDES) => OperandKind::BothSides,
            _ if self.group == FILES && self.operands.contains("PATH") => OperandKind::Inside,
            _ if self.takes_command_line => OperandKind::Program,
            "[COMMAND]" => OperandKind::Command,
            operands if operands.contains('|') => OperandKind::Words(operands),
            _ => OperandKind::None,
        }
    }

    /// From which operand on patterns are replaced by what they match, and whether only behind a colon. Not for commands that
    /// make what they are told.
    pub fn expands(&self) -> Option<(usize, bool)> {
        let makes = matches!(self.name, "mkdir" | "put" | "ln" | "fallocate") || self.takes_command_line;
        match self.operand_kind() {
            _ if makes => None,
            OperandKind::Inside => Some((usize::from(matches!(self.name, "chmod" | "chown" | "chgrp")), false)),
            OperandKind::BothSides => Some((0, true)),
            _ => None,
        }
    }

    /// What the operands are, for people.
    pub fn operands_words(&self) -> &'static str {
        if self.operands.is_empty() { "nothing" } else { self.operands }
    }

    /// The failure of an option that this command does not have.
    pub fn unknown_option(&self, word: &str) -> Failure {
        let near = help::nearest(word.trim_start_matches('-'), self.rows().map(|row| row.name));
        let hint = near
            .map(|near| format!("; did you mean {}{near}?", if self.single_dash { "-" } else { "--" }))
            .unwrap_or_default();
        let word = if self.single_dash { word.replacen("--", "-", 1) } else { word.to_owned() };
        Failure::usage(format!("there is no option {word}{hint}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Goal: within a command no flag and no letter means two things, and all keys are in the table of options.
    #[test]
    fn commands_are_sound() {
        for command in COMMANDS {
            let mut names = HashSet::new();
            for row in command.rows() {
                assert!(names.insert(row.name.to_owned()), "{}: --{}", command.name, row.name);
                for letter in row.letters.chars() {
                    assert!(names.insert(letter.to_string()), "{}: -{letter}", command.name);
                }
            }
            assert!(command.example.starts_with("tabane "), "{}", command.name);
        }
    }

    /// Goal: 'tabane config' knows every setting, so that none is missing in what it explains.
    #[test]
    fn config_has_all_settings() {
        let config = find("config").unwrap();
        for row in crate::options::TABLE.iter().filter(|row| row.variable) {
            assert!(config.options.contains(&row.key), "add \"{}\" to the options of config", row.key);
        }
    }
}
