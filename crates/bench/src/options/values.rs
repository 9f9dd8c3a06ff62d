//! From the texts of options to what they mean.

use super::bench::{LOAD_KINDS, LoadKind};
use super::table::TABLE;
use client::Contact;
use std::collections::BTreeMap;

/// Most processes of a kind of `--load`.
const LOAD_COUNT_MAX: u32 = 1_024;

/// Texts by name, with defaults from the table.
pub struct Values<'a>(pub &'a BTreeMap<&'static str, String>);

impl Values<'_> {
    pub fn load(&self) -> Result<Vec<(LoadKind, u32)>, String> {
        let Some(text) = self.text("load") else { return Ok(Vec::new()) };
        let read = |part: &str| {
            let (name, count) = part.trim().split_once(':')?;
            let (kind, _) = LOAD_KINDS.iter().find(|(_, known)| *known == name)?;
            let count = count.parse().ok().filter(|count| (1..=LOAD_COUNT_MAX).contains(count))?;
            Some((*kind, count))
        };
        let wrong = |part: &str| {
            format!(
                "--load: \"{part}\" is not a kind and a number of processes up to {LOAD_COUNT_MAX}, such as compute:2, \
                 spin:2 or yield:2"
            )
        };
        text.split(',').map(|part| read(part).ok_or_else(|| wrong(part))).collect()
    }

    /// A time that [`check`] has looked at.
    pub fn seconds(&self, name: &str) -> f64 {
        self.text(name).and_then(|text| text.parse().ok()).unwrap_or(0.0)
    }

    pub fn contacts(&self) -> Result<Vec<Contact>, String> {
        let wrong = |word: &str| format!("--contact {word} is none of auto, always and off");
        let words = self.text("contact").unwrap_or_default();
        words.split(',').map(|word| Contact::from_word(word.trim()).ok_or_else(|| wrong(word))).collect()
    }

    /// What the words of a list stand for.
    pub fn words<T: Copy>(&self, name: &str, table: &[(T, &str)]) -> Result<Vec<T>, String> {
        let known = || table.iter().map(|(_, word)| *word).collect::<Vec<&str>>().join(", ");
        let read = |word: &str| match table.iter().find(|(_, known)| *known == word.trim()) {
            Some((value, _)) => Ok(*value),
            None => Err(format!("--{name}: \"{word}\" is none of {}", known())),
        };
        self.text(name).unwrap_or_default().split(',').map(read).collect()
    }

    /// `None` when neither given nor a default exists.
    pub fn text(&self, name: &str) -> Option<String> {
        let default = || TABLE.iter().find(|spec| spec.name == name).map(|spec| spec.default.to_string());
        self.0.get(name).cloned().or_else(default).filter(|text| !text.is_empty())
    }

    pub fn count(&self, name: &str, least: u64, most: u64) -> Result<u64, String> {
        let value = self.text(name).unwrap_or_default().parse().map_err(|_| format!("--{name}: not a number"))?;
        in_range(name, value, least, most)
    }

    pub fn counts(&self, name: &str, most: u32) -> Result<Vec<u32>, String> {
        let read = |text: &str| text.trim().parse().ok();
        let values =
            parse_list(&self.text(name).unwrap_or_default(), read).ok_or_else(|| format!("--{name}: not counts"))?;
        values.into_iter().map(|value| Ok(in_range(name, value, 1, u64::from(most))? as u32)).collect()
    }

    pub fn chunk_sizes(&self) -> Result<Vec<u32>, String> {
        let (least, most) = (u64::from(wire::limits::CHUNK_SIZE_MIN), u64::from(wire::limits::CHUNK_SIZE_MAX));
        Ok(self.sizes("chunk-sizes", least, most)?.into_iter().map(|size| size as u32).collect())
    }

    pub fn sizes(&self, name: &str, least: u64, most: u64) -> Result<Vec<u64>, String> {
        let text = self.text(name).unwrap_or_default();
        let values = parse_list(&text, parse_size).ok_or_else(|| format!("--{name}: not sizes"))?;
        values.into_iter().map(|value| in_range(name, value, least, most)).collect()
    }

    pub fn size(&self, name: &str, least: u64, most: u64) -> Result<Option<u64>, String> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let value = parse_size(&text).ok_or_else(|| format!("--{name}: not a size"))?;
        in_range(name, value, least, most).map(Some)
    }
}

fn in_range(name: &str, value: u64, least: u64, most: u64) -> Result<u64, String> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(format!("--{name}: {value} is out of range ({least} to {most})"))
}

/// Numbers with commas between them, or two with `..` between: then the first, each doubling of it, and the last.
pub fn parse_list(text: &str, read: impl Fn(&str) -> Option<u64>) -> Option<Vec<u64>> {
    let Some((first, last)) = text.split_once("..") else { return text.split(',').map(read).collect() };
    let (first, last) = (read(first)?, read(last)?);
    if first == 0 || first > last {
        return None;
    }
    let mut values: Vec<u64> =
        std::iter::successors(Some(first), |value| value.checked_mul(2)).take_while(|value| *value < last).collect();
    values.push(last);
    Some(values)
}

/// Bytes, with an optional suffix: K, M, G, T, also written KiB or kib (powers of 1,024).
pub fn parse_size(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number: u64 = text[..digits].parse().ok()?;
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}
