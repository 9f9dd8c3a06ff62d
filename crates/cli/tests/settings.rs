//! Settings from the command line, the environment and the config file, as a user meets them; and what is made for
//! shells and man(1). No servers.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

mod common;

use common::TABANE;
use std::path::PathBuf;
use std::process::{Command, Output};

struct Home {
    path: PathBuf,
}

impl Home {
    fn new(name: &str, config: &str) -> Home {
        let path = std::env::temp_dir().join(format!("tabane-test-{name}-{}", std::process::id()));
        std::fs::create_dir_all(path.join(".config/tabane")).unwrap();
        std::fs::write(path.join(".config/tabane/config.toml"), config).unwrap();
        Home { path }
    }

    fn run(&self, words: &[&str], variables: &[(&str, &str)]) -> Output {
        let mut command = Command::new(TABANE);
        command.args(words).env_clear().env("HOME", &self.path).envs(variables.iter().copied());
        command.output().unwrap()
    }

    fn printed(&self, words: &[&str], variables: &[(&str, &str)]) -> String {
        let output = self.run(words, variables);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn complaint(&self, words: &[&str], variables: &[(&str, &str)]) -> String {
        let output = self.run(words, variables);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The line of a setting in a table.
fn line(table: &str, setting: &str) -> String {
    let found = table.lines().find(|line| line.split_ascii_whitespace().next() == Some(setting));
    found.unwrap_or_else(|| panic!("{setting} in {table}")).split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

/// Goal: each of the four places is told as such, in their order, also for one command and as JSON.
#[test]
fn sources_are_explained() {
    let home = Home::new("explain", "servers = 3\nchunk-size = \"64K\"\njobs = 4\n\n[cp]\njobs = 64\n");
    let table = home.printed(&["config", "--explain", "--port", "9000"], &[("TABANE_SERVERS", "5")]);
    let file = home.path.join(".config/tabane/config.toml");
    assert!(table.starts_with(&format!("config file: {}\n", file.display())), "{table}");
    assert_eq!(line(&table, "port"), "port 9000 --port on the command line");
    assert_eq!(line(&table, "servers"), "servers 5 TABANE_SERVERS in the environment");
    assert_eq!(line(&table, "chunk-size"), format!("chunk-size 64K {}:2", file.display()));
    assert_eq!(line(&table, "jobs"), format!("jobs 4 {}:3", file.display()));
    assert_eq!(line(&table, "connections-max"), "connections-max 256 default");
    let table = home.printed(&["config", "--explain", "cp"], &[]);
    assert_eq!(line(&table, "jobs"), format!("jobs 64 {}:6", file.display()));
    assert!(!table.contains("placement"), "{table}");
    let json: serde_json::Value = serde_json::from_str(&home.printed(&["config", "--json", "cp"], &[])).unwrap();
    let jobs = json["settings"].as_array().unwrap().iter().find(|setting| setting["setting"] == "jobs").unwrap();
    assert_eq!((jobs["value"].as_str(), jobs["source"].as_str()), (Some("64"), Some("file")));
}

/// Goal: what 'tabane config' prints is a config file that says the same.
#[test]
fn printed_config_says_the_same() {
    let home = Home::new("same", "servers = 3\n");
    let variables = [("TABANE_STORE", "memory:/a \"b\",size=1G"), ("TABANE_CHECKSUMS", "yes")];
    let printed = home.printed(&["config"], &variables);
    std::fs::write(home.path.join("other.toml"), &printed).unwrap();
    let other = home.path.join("other.toml").display().to_string();
    let table = home.printed(&["config", "--explain"], &[("TABANE_CONFIG", &other)]);
    assert!(line(&table, "store").starts_with("store memory:/a \"b\",size=1G"), "{table}");
    assert!(line(&table, "checksums").starts_with("checksums true"), "{table}");
    assert!(line(&table, "servers").starts_with("servers 3"), "{table}");
    assert_eq!(line(&table, "jobs"), "jobs 16 default");
}

/// Goal: a config file that is wrong stops every command that would read it, with file, line and what is meant; help is
/// still given.
#[test]
fn wrong_config_files() {
    let home = Home::new("wrong", "jobs = 4\nserver = 3\n");
    let complaint = home.complaint(&["up"], &[]);
    assert!(complaint.contains("config.toml:2: there is no setting server; did you mean servers?"), "{complaint}");
    assert_eq!(home.run(&["up", "--help"], &[]).status.code(), Some(0));
    let complaint = home.complaint(&["ls"], &[("TABANE_CONFIG", "/nowhere/c.toml")]);
    assert!(
        complaint.contains("config file /nowhere/c.toml: no such file or directory; TABANE_CONFIG names it"),
        "{complaint}"
    );
    home.printed(&["config"], &[("TABANE_CONFIG", "/dev/null")]);
    let complaint = home.complaint(&["config", "cpp"], &[("TABANE_CONFIG", "/dev/null")]);
    assert!(complaint.contains("there is no command \"cpp\"; did you mean cp?"), "{complaint}");
}

/// Goal: completions and manual pages are written; without a cluster no path is offered and nothing is said.
#[test]
fn made_for_shells_and_man() {
    let home = Home::new("made", "");
    for shell in ["bash", "zsh", "fish"] {
        assert!(home.printed(&["completions", shell], &[]).contains("complete-words"), "{shell}");
    }
    let complaint = home.complaint(&["completions", "tcsh"], &[]);
    assert!(complaint.contains("bash, zsh and fish are"), "{complaint}");
    let nowhere = home.path.join("nowhere").display().to_string();
    assert_eq!(home.printed(&["complete-words", "ls", ":/"], &[("TABANE_CLUSTER", &nowhere)]), "");
    let pages = home.path.join("man").display().to_string();
    home.printed(&["man", &pages], &[]);
    assert!(home.path.join("man/man1/tabane-cp.1").is_file() && home.path.join("man/man5/tabane-config.5").is_file());
}
