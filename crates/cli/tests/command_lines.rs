//! What a user meets before a command does anything: its help, and what a shell offers on the way to it.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::{Ground, TABANE};
use std::path::Path;
use std::process::{Command, Stdio};

/// Goal: every command explains itself, in the same words by each way, on standard output and with success, whatever
/// else is on the line. No servers.
#[test]
fn all_commands_explain_themselves() {
    let ground = Ground::new("help");
    let reference = ground.run(&["help", "--markdown"]);
    let chapters: Vec<&str> = reference.split("\n## tabane ").skip(1).collect();
    assert!(chapters.len() > 35, "{}", chapters.len());
    for chapter in chapters {
        let (name, text) = chapter.split_once("\n\n```text\n").unwrap();
        let text = text.split("```").next().unwrap();
        assert_eq!(ground.run(&[name, "--help"]), text);
        assert_eq!(ground.run(&["help", name]), text);
        assert_eq!(ground.run(&[name, "--help", "--nothing-of-that-name"]), text);
        let letter_means_help = text.contains("  -h, --help\n");
        if letter_means_help {
            assert_eq!(ground.run(&[name, "-h"]), text);
        }
        assert!(letter_means_help || ["ls", "du", "df", "getfattr", "setfattr"].contains(&name), "{name}: {text}");
    }
}

/// Goal: --cluster counts before the command as behind it; two that differ are refused, wherever they stand, and so it
/// is by commands that have no cluster.
#[test]
fn cluster_before_the_command() {
    let ground = Ground::new("before");
    ground.run(&["up", "--servers", "1"]);
    ground.run(&["mkdir", "/d"]);
    let run = ground.run_directory();
    let (run, other) = (run.to_str().unwrap(), "/nowhere");
    let elsewhere = |words: &[&str]| ground.command(words).env("TABANE_CLUSTER", "/nowhere").output().unwrap();
    let joined = format!("--cluster={run}");
    for words in [
        &["--cluster", run, "ls", ":/"][..],
        &[&joined, "ls", "/"],
        &["--cluster", run, "find", "-name", "d"],
        &["--cluster", run, "ls", "--cluster", run],
    ] {
        let output = elsewhere(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8(output.stdout).unwrap().contains("d\n"), "{words:?}");
    }
    let flock = elsewhere(&["--cluster", run, "flock", "/d/lock", "echo", "--cluster", "x"]);
    assert_eq!(flock.stdout, b"--cluster x\n");
    let complaint = ground.fail(2, &["--cluster", run, "ls", "--cluster", other]);
    assert!(complaint.contains(&format!("--cluster names {run} and /nowhere; name one")), "{complaint}");
    ground.fail(2, &["ls", "--cluster", run, "--cluster", other]);
    assert!(ground.fail(1, &["--cluster", other, "ls"]).contains("no cluster is up here"));
    assert!(ground.fail(2, &["--cluster", run]).contains("a command is missing"));
    assert!(ground.fail(2, &["--cluster", run, "completions", "bash"]).contains("there is no option --cluster"));
    assert!(ground.run(&["--cluster", run, "--help"]).starts_with("tabane bundles"));
    assert!(ground.run(&["--cluster", run, "help", "ls"]).starts_with("tabane ls"));
}

/// Goal: a bash that reads the script offers words, values, files of this machine and paths inside the cluster, and
/// keeps what stands before the last colon or equals sign.
/// Method: a real bash, asked as the tabulator asks, and a real server.
#[test]
fn bash_offers() {
    let ground = Ground::new("bash");
    ground.run(&["up", "--servers", "1"]);
    ground.run(&["mkdir", "-p", "/x/one", "/x/two", "/x/.hidden", "/with space"]);
    let put = ground.command(&["put", "/x/three"]).stdin(Stdio::null()).status().unwrap();
    assert!(put.success());
    let script = ground.run(&["completions", "bash"]);
    let offered = |line: &str| {
        let ask = "COMP_LINE=$LINE COMP_POINT=${#LINE} COMP_WORDBREAKS=$' \\t\\n\"=:' COMPREPLY=()\n_tabane\n\
                   printf '%s\\n' \"${COMPREPLY[@]}\"";
        let mut bash = Command::new("bash");
        bash.args(["-c", &format!("{script}\ncompopt() {{ :; }}\n{ask}")]).env_clear().env("LINE", line);
        bash.env("TABANE_CLUSTER", ground.run_directory()).current_dir(&ground.path);
        bash.env("PATH", format!("{}:/usr/bin:/bin", Path::new(TABANE).parent().unwrap().display()));
        let output = bash.output().unwrap();
        assert!(output.stderr.is_empty(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(offered("tabane um"), "umount");
    assert_eq!(offered("tabane --cluster x um"), "umount");
    assert_eq!(offered("tabane --cluster /etc/hostnam"), "/etc/hostname");
    assert_eq!(offered("tabane --cluster=/etc/hostnam"), "/etc/hostname");
    assert_eq!(offered("tabane up --plac"), "--placement");
    assert_eq!(offered("tabane up --placement r"), "ring");
    assert_eq!(offered("tabane up --placement=m"), "modular");
    assert_eq!(offered("tabane up --servers "), "");
    assert_eq!(offered("tabane find -mind"), "-mindepth");
    assert_eq!(offered("tabane completions z"), "zsh");
    assert_eq!(offered("tabane help umo"), "umount");
    assert_eq!(offered("tabane ls /x/"), "/x/one/ /x/three /x/two/");
    assert_eq!(offered("tabane ls /x/.h"), "/x/.hidden/");
    assert_eq!(offered("tabane ls -l /x/t"), "/x/three /x/two/");
    assert_eq!(offered("tabane ls /w"), "/with space/");
    // What stands before the last colon is kept by the shell.
    assert_eq!(offered("tabane cp :/x/"), "/x/one/ /x/three /x/two/");
    assert_eq!(offered("tabane cp /etc/passwd tabane:/x/o"), "/x/one/");
    assert_eq!(offered("tabane cp /etc/host"), offered("tabane mount /etc/host"));
    assert!(offered("tabane cp /etc/passw").contains("/etc/passwd"));
    // Of the cluster that the line names.
    let run = ground.run_directory();
    assert_eq!(offered(&format!("tabane --cluster {} ls /x/o", run.display())), "/x/one/");
    assert_eq!(offered(&format!("tabane cp --cluster={} :/x/o", run.display())), "/x/one/");
    assert_eq!(offered("tabane --cluster /nowhere ls /x/"), "");
    assert!(offered("tabane --cluster x run -- tru").split(' ').any(|word| word == "true"));
    assert!(offered("tabane run -- tru").split(' ').any(|word| word == "true"));
    ground.run(&["down"]);
}
