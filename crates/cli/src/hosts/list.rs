//! Which hosts: `--hosts` in all its forms, and how many servers each of them gets.

use crate::arguments::{Arguments, environment};
use crate::failure::{Failure, Outcome, io_words};
use std::collections::HashSet;
use std::path::Path;
use wire::limits::SERVER_COUNT_MAX;

/// Longest name of a host (RFC 1035 allows 255).
const NAME_SIZE_MAX: usize = 255;

/// One host as it was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub name: String,
    /// Servers that it was said to take.
    pub slots: Option<u32>,
}

/// The hosts that the command line names. Errors: `Usage`.
pub fn wanted(arguments: &Arguments) -> Outcome<Vec<Named>> {
    let text = arguments.text("hosts").unwrap_or_default();
    let about = |reason: String| Failure::usage(format!("--hosts {text}: {reason}"));
    let hosts = if text == "auto" {
        of_batch_system().map_err(about)?
    } else if text.contains('/') || (!text.is_empty() && Path::new(&text).is_file()) {
        let content = std::fs::read_to_string(&text).map_err(|error| about(io_words(&error)))?;
        parse_file(&content).map_err(about)?
    } else {
        parse_list(&text).map_err(about)?
    };
    if hosts.is_empty() {
        return Err(about(
            "names no host; a,b,c, node[01-04], a file with one host a line, or auto is wanted".to_owned(),
        ));
    }
    let mut seen = HashSet::new();
    if let Some(twice) = hosts.iter().find(|host| !seen.insert(&host.name)) {
        let name = &twice.name;
        return Err(about(format!(
            "{name} is there twice; for two servers on it write {name}:2, or --per-host 2 for all"
        )));
    }
    Ok(hosts)
}

/// What a batch system gave to this job; each host counts once.
fn of_batch_system() -> Result<Vec<Named>, String> {
    let text = |name: &str| environment(name).map(|value| value.to_string_lossy().into_owned());
    let names = if let Some(list) = text("SLURM_JOB_NODELIST").or_else(|| text("SLURM_NODELIST")) {
        split_list(&list)?.iter().map(|item| expand(item)).collect::<Result<Vec<_>, _>>()?.concat()
    } else if let Some(path) = text("PBS_NODEFILE").or_else(|| text("OAR_NODEFILE")) {
        let content = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {}", io_words(&error)))?;
        content.split_whitespace().map(str::to_owned).collect()
    } else if let Some(list) = text("LSB_HOSTS") {
        list.split_whitespace().map(str::to_owned).collect()
    } else {
        return Err(
            "no batch job is around: neither SLURM_JOB_NODELIST nor PBS_NODEFILE, OAR_NODEFILE or LSB_HOSTS is set; \
                    name the hosts"
                .to_owned(),
        );
    };
    let mut seen = HashSet::new();
    Ok(names.into_iter().filter(|name| seen.insert(name.clone())).map(|name| Named { name, slots: None }).collect())
}

fn parse_list(text: &str) -> Result<Vec<Named>, String> {
    let items = split_list(text)?;
    let named: Result<Vec<Vec<Named>>, String> = items.iter().map(|item| parse_item(item)).collect();
    Ok(named?.concat())
}

/// Lines `name`, `name:2` or `name slots=2`, with comments.
fn parse_file(content: &str) -> Result<Vec<Named>, String> {
    let mut hosts = Vec::new();
    for (index, line) in content.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let about = |reason: String| format!("line {}: {reason}", index + 1);
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        let mut named = parse_list(first).map_err(about)?;
        for word in words {
            let slots = word.strip_prefix("slots=").and_then(parse_slots);
            let slots = slots.ok_or_else(|| about(format!("\"{word}\" is not understood; slots=COUNT is")))?;
            named.iter_mut().for_each(|host| host.slots = Some(slots));
        }
        hosts.append(&mut named);
    }
    Ok(hosts)
}

/// Parts between commas that are not within brackets.
fn split_list(text: &str) -> Result<Vec<&str>, String> {
    let (mut items, mut depth, mut start) = (Vec::new(), 0, 0);
    for (position, letter) in text.char_indices() {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                items.push(text[start..position].trim());
                start = position + 1;
            }
            _ => {}
        }
        if !(0..=1).contains(&depth) {
            return Err("has brackets that do not fit; name[01-04,07] is meant".to_owned());
        }
    }
    if depth != 0 {
        return Err("has a bracket that is not closed".to_owned());
    }
    items.push(text[start..].trim());
    Ok(items.into_iter().filter(|item| !item.is_empty()).collect())
}

fn parse_slots(text: &str) -> Option<u32> {
    text.parse().ok().filter(|slots| (1..=SERVER_COUNT_MAX).contains(slots))
}

/// One part: a name or names in brackets, with a count or without. An IPv6 address has several colons, and no count.
fn parse_item(item: &str) -> Result<Vec<Named>, String> {
    let (names, slots) = match item.rsplit_once(':') {
        Some((names, count)) if !names.contains(':') => {
            let slots = parse_slots(count);
            (names, Some(slots.ok_or_else(|| format!("\"{item}\": a count from 1 is wanted behind the colon"))?))
        }
        _ => (item, None),
    };
    Ok(expand(names)?.into_iter().map(|name| Named { name, slots }).collect())
}

/// `node[01-03,7]x` as names.
fn expand(item: &str) -> Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let mut rest = item;
    while let Some((before, behind)) = rest.split_once('[') {
        let (inside, after) =
            behind.split_once(']').ok_or_else(|| format!("\"{item}\" has a bracket that is not closed"))?;
        let mut numbers = Vec::new();
        for range in inside.split(',') {
            numbers.append(
                &mut expand_range(range).ok_or_else(|| format!("\"{range}\" in \"{item}\" is no range of numbers"))?,
            );
        }
        if names.len() * numbers.len() > SERVER_COUNT_MAX as usize {
            return Err(format!("\"{item}\" stands for more than {SERVER_COUNT_MAX} hosts"));
        }
        names =
            names.iter().flat_map(|name| numbers.iter().map(move |number| format!("{name}{before}{number}"))).collect();
        rest = after;
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    // A name goes to the launcher as a word of its own: one that begins with a dash would be an option there.
    let sound = |name: &String| {
        let letters = name.bytes().all(|letter| letter.is_ascii_alphanumeric() || b"-._:@%".contains(&letter));
        !name.is_empty() && name.len() <= NAME_SIZE_MAX && !name.starts_with('-') && letters
    };
    match names.iter().find(|name| !sound(name)) {
        Some(name) => Err(format!("\"{name}\" is no name of a host")),
        None => Ok(names),
    }
}

/// `07` or `01-04`; numbers keep the width of the first.
fn expand_range(range: &str) -> Option<Vec<String>> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let digits = |text: &str| !text.is_empty() && text.len() <= 9 && text.bytes().all(|letter| letter.is_ascii_digit());
    if !digits(first) || !digits(last) {
        return None;
    }
    let (least, most): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
    let width = first.len();
    (least <= most && most - least < SERVER_COUNT_MAX)
        .then(|| (least..=most).map(|number| format!("{number:0width$}")).collect())
}

/// The servers of each host: server i is on the next host that has a slot left, in turns. Errors: `Usage`.
pub fn share_out(hosts: &[Named], per_host: Option<u32>, servers: Option<u32>) -> Outcome<Vec<Vec<u32>>> {
    let slots: Vec<Option<u32>> = hosts.iter().map(|host| host.slots.or(per_host)).collect();
    let all: u64 = slots.iter().map(|slots| u64::from(slots.unwrap_or(1))).sum();
    let bounded = slots.iter().all(Option::is_some);
    let count = servers.map_or(all, u64::from);
    if bounded && count > all {
        return Err(Failure::usage(format!(
            "--servers {count} are more than the slots of the hosts ({all}); ask for fewer, or give the hosts more \
             (host:COUNT or --per-host)"
        )));
    }
    if count > u64::from(SERVER_COUNT_MAX) {
        return Err(Failure::usage(format!("{count} servers are more than a cluster may have ({SERVER_COUNT_MAX})")));
    }
    if count < hosts.len() as u64 {
        return Err(Failure::usage(format!(
            "--servers {count} are fewer than the {} hosts; name fewer hosts",
            hosts.len()
        )));
    }
    let mut given: Vec<Vec<u32>> = vec![Vec::new(); hosts.len()];
    let mut index = 0;
    while u64::from(index) < count {
        for (own, slots) in given.iter_mut().zip(&slots) {
            let has_room = slots.is_none_or(|slots| (own.len() as u32) < slots);
            if has_room && u64::from(index) < count {
                own.push(index);
                index += 1;
            }
        }
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        parse_list(text).unwrap().into_iter().map(|host| host.name).collect()
    }

    /// Goal: lists, ranges and counts mean what is documented.
    #[test]
    fn forms() {
        assert_eq!(names("a,b, c"), ["a", "b", "c"]);
        assert_eq!(names("node[01-03,7],login"), ["node01", "node02", "node03", "node7", "login"]);
        assert_eq!(
            names("r[1-2]n[08-10]-ib"),
            ["r1n08-ib", "r1n09-ib", "r1n10-ib", "r2n08-ib", "r2n09-ib", "r2n10-ib"]
        );
        assert_eq!(names("fd00::1,user@host"), ["fd00::1", "user@host"]);
        let counted = parse_list("a:4,b[1-2]:2,c").unwrap();
        let slots: Vec<Option<u32>> = counted.iter().map(|host| host.slots).collect();
        assert_eq!(slots, [Some(4), Some(2), Some(2), None]);
        let file = parse_file("# mine\n\n a:2 # two\nb slots=3\nc[1-2]\n").unwrap();
        let read: Vec<(&str, Option<u32>)> = file.iter().map(|host| (host.name.as_str(), host.slots)).collect();
        assert_eq!(read, [("a", Some(2)), ("b", Some(3)), ("c1", None), ("c2", None)]);
    }

    /// Goal: what can't be a list of hosts is refused, above all what a launcher would take for an option.
    #[test]
    fn mistakes() {
        for text in
            ["a[1-", "a]1[", "a[3-1]", "a[x]", "a:0", "a:b", "-oProxyCommand=x", "a b", "a;b", "n[1-999999]", "a[[1]]"]
        {
            assert!(parse_list(text).is_err(), "{text}");
        }
        assert!(parse_file("a\nb cpus=3\n").unwrap_err().starts_with("line 2"));
        assert!(parse_list("").unwrap().is_empty() && parse_file("# nothing\n").unwrap().is_empty());
    }

    /// Goal: servers are dealt out in turns, within the slots; too many are refused.
    #[test]
    fn dealing() {
        let hosts = parse_list("a:1,b:3").unwrap();
        assert_eq!(share_out(&hosts, None, None).unwrap(), [vec![0], vec![1, 2, 3]]);
        assert_eq!(share_out(&hosts, None, Some(3)).unwrap(), [vec![0], vec![1, 2]]);
        assert!(matches!(share_out(&hosts, None, Some(5)), Err(Failure::Usage(words)) if words.contains("slots")));
        let plain = parse_list("a,b,c").unwrap();
        assert_eq!(share_out(&plain, None, None).unwrap(), [[0], [1], [2]]);
        assert_eq!(share_out(&plain, Some(2), None).unwrap(), [[0, 3], [1, 4], [2, 5]]);
        assert_eq!(share_out(&plain, None, Some(4)).unwrap(), [vec![0, 3], vec![1], vec![2]]);
        assert!(share_out(&plain, None, Some(2)).is_err());
    }
}
