//! Rows of the commands that are about this program and the machine that it is on.

use super::clusters::NEW_CLUSTER;
use super::{Command, PROGRAM, joined};
use crate::commands::settings;
use crate::{completion, doctor, manual};

static CONFIG_OPTIONS: [&str; 48] = joined(&[
    &["explain", "json", "cluster"],
    &NEW_CLUSTER,
    &["warm", "stop-timeout-ms", "jobs", "threads", "io-uring", "keep-entries", "interval-ms", "color", "contact"],
]);

/// In the order of the overview.
pub static ROWS: &[Command] = &[
    Command {
        name: "doctor",
        group: PROGRAM,
        summary: "say what this machine lacks and how to mend it",
        operands: "",
        operand_count: (0, 0),
        details: &[
            "Looks at the kernel, io_uring, limits, shared memory, huge pages, control groups, FUSE, the network, the \
             clock and the scheduler. Each line says ok, warning (it works, but worse than it could, or something that \
             not everybody needs is not there) or missing (nothing works without it), and then what to do.",
            "Where a cluster is found, the clocks of its servers are compared with this machine's: any difference is \
             tolerated, beyond a minute times of files surprise, and it warns.",
            "Exit status: 1 if something is missing.",
        ],
        example: "tabane doctor\ntabane doctor --json",
        options: &["json", "color", "cluster", "timeout-ms"],
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
            "A setting is looked for on the command line, in the environment, in the config file and in the defaults, \
             in this order. The config file is TOML: the one that TABANE_CONFIG names, else tabane/config.toml in \
             $XDG_CONFIG_HOME or ~/.config. Its keys are the settings below without the dashes; those in a table named \
             after a command, such as [cp], hold for that command alone. Unknown keys are refused.",
            "Prints a config file that says what holds now, with the defaults as comments; with --explain a table with \
             the source of each value. With COMMAND, the settings of that command, its own table of the file counted \
             in. Flags behind it count as those of the command would.",
        ],
        example: "tabane config --explain\ntabane config --explain cp --jobs 64\n\
                  tabane config > ~/.config/tabane/config.toml",
        options: &CONFIG_OPTIONS,
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
            "Completes commands, options, their values, and paths inside the cluster, which are asked from the \
             servers. 'make install' puts them where the shells look.",
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
        details: &["Writes man1/tabane.1, man1/tabane-COMMAND.1 for each command and man5/tabane-config.5 below DIR. \
             'make install' puts them where man(1) looks."],
        example: "tabane man ~/.local/share/man && man tabane-cp",
        options: &[],
        single_dash: false,
        takes_command_line: false,
        run: manual::run,
    },
];
