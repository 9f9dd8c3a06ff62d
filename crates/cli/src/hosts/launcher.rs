//! How a command gets to other hosts: the launcher's words, and the few launchers that are known by name.

use crate::failure::{Failure, Outcome};
use std::path::Path;

/// Launchers that can be named by one word.
const KNOWN: [(&str, &str); 4] = [
    ("ssh", "ssh -o BatchMode=yes -o ConnectTimeout=10 {host} {command}"),
    (
        "srun",
        "srun --nodes={count} --ntasks={count} --ntasks-per-node=1 --nodelist={hosts} --overlap --input=all \
         --unbuffered {command}",
    ),
    ("mpiexec", "mpiexec -hosts {hosts} -n {count} -ppn 1 {command}"),
    ("mpirun", "mpirun -hosts {hosts} -n {count} -ppn 1 {command}"),
];
/// Programs that hand the command to a shell over there, as one text.
const THROUGH_A_SHELL: [&str; 4] = ["ssh", "rsh", "oarsh", "blaunch"];
/// Programs that give standard input to one process only.
const ONE_READER: [&str; 3] = ["mpiexec", "mpirun", "mpiexec.hydra"];

/// A launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launcher {
    words: Vec<String>,
}

impl Launcher {
    /// Reads what --launcher says. Errors: `Usage`.
    pub fn parse(text: &str) -> Outcome<Launcher> {
        let text = KNOWN.iter().find(|(name, _)| *name == text.trim()).map_or(text, |(_, words)| words);
        let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if words.is_empty() {
            return Err(Failure::usage(
                "--launcher: a command is wanted, such as 'ssh {host} {command}', srun or mpiexec",
            ));
        }
        if words.iter().any(|word| word.contains("{command}") && word != "{command}") {
            return Err(Failure::usage(format!("--launcher {text}: {{command}} has to be a word of its own")));
        }
        if !words.iter().any(|word| word == "{command}") {
            words.push("{command}".to_owned());
        }
        Ok(Launcher { words })
    }

    /// As it is written down.
    pub fn text(&self) -> String {
        self.words.join(" ")
    }

    /// Whether it is run once for each host; else once for all of them.
    pub fn is_for_one_host(&self) -> bool {
        self.words.iter().any(|word| word.contains("{host}"))
    }

    fn program(&self) -> &str {
        let path = Path::new(&self.words[0]);
        path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// Whether only one of the processes that it starts gets our standard input.
    pub fn has_one_reader(&self) -> bool {
        !self.is_for_one_host() && ONE_READER.contains(&self.program())
    }

    /// The words that run a command on hosts: on one, or on all at once.
    pub fn words_for(&self, hosts: &[&str], command: &[String]) -> Vec<String> {
        let through_a_shell = THROUGH_A_SHELL.contains(&self.program());
        let mut words = Vec::new();
        for word in &self.words {
            if word == "{command}" {
                words.extend(command.iter().map(|part| if through_a_shell { quoted(part) } else { part.clone() }));
                continue;
            }
            let count = hosts.len().to_string();
            words
                .push(word.replace("{hosts}", &hosts.join(",")).replace("{host}", hosts[0]).replace("{count}", &count));
        }
        words
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = word.bytes().all(|letter| letter.is_ascii_alphanumeric() || b"_-./=:,@%+".contains(&letter));
    if plain && !word.is_empty() { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(launcher: &str, hosts: &[&str], command: &[&str]) -> String {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        Launcher::parse(launcher).unwrap().words_for(hosts, &command).join(" ")
    }

    /// Goal: every form of launcher becomes the command line that is documented.
    #[test]
    fn command_lines() {
        assert_eq!(words("ip netns exec {host}", &["a"], &["/b in", "host"]), "ip netns exec a /b in host");
        assert_eq!(words("rsh {host} {command}", &["a"], &["/b in", "host"]), "rsh a '/b in' host");
        assert!(words("ssh", &["a"], &["t"]).ends_with(" a t"));
        let all = words("srun", &["a", "b"], &["t", "host"]);
        assert!(all.contains("--ntasks=2 ") && all.contains("--nodelist=a,b ") && all.ends_with(" t host"), "{all}");
        assert!(
            !Launcher::parse("srun").unwrap().is_for_one_host() && Launcher::parse("ssh").unwrap().is_for_one_host()
        );
        assert!(Launcher::parse("mpiexec").unwrap().has_one_reader());
        assert!(!Launcher::parse("mpiexec --host {host} -n 1").unwrap().has_one_reader());
        assert!(Launcher::parse(" ").is_err() && Launcher::parse("sh -c '{command}'").is_err());
    }
}
