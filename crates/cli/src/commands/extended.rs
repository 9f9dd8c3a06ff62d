//! `tabane getfattr` and `setfattr`: extended attributes, in the forms of the commands of the same names.

use crate::arguments::Arguments;
use crate::base64;
use crate::failure::{Failure, Outcome, about_path};
use crate::json::{self, Fields, put_name};
use crate::paths::{inside, shown};
use crate::session::Session;
use client::{FileSystem, Result};
use serde_json::Value;
use std::io::Write as _;

/// Names that are shown without --match.
const MATCH_DEFAULT: &str = "^user.";

/// `tabane setfattr`.
pub fn run_setfattr(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    let (set, remove) = (arguments.bytes("attribute-name"), arguments.bytes("attribute-remove"));
    let value = arguments.bytes("attribute-value").map_or(Some(Vec::new()), |text| decode(&text));
    let value =
        value.ok_or_else(|| Failure::usage("--value is neither text, 0x and hexadecimal, nor 0s and base64"))?;
    let follow = !arguments.flag("no-dereference");
    let act = async |path: &[u8]| match (&set, &remove) {
        (Some(name), _) => session.files.set_extended(path, follow, name, &value, 0).await,
        (None, Some(name)) => session.files.remove_extended(path, follow, name).await,
        (None, None) => Ok(()),
    };
    if set.is_some() == remove.is_some() {
        return Err(Failure::usage("one of --name and --remove is wanted"));
    }
    let mut failed = false;
    for path in arguments.operand_bytes() {
        let path = inside(&path);
        if let Err(error) = session.block_on(act(&path)) {
            failed = true;
            eprintln!("tabane: setfattr: {}", about_path(&path, &error));
        }
    }
    if failed { Err(Failure::Said(1)) } else { Ok(()) }
}

/// What of an inode is shown.
struct AttributeRequest {
    name: Option<Vec<u8>>,
    pattern: String,
    values: bool,
    follow: bool,
}

/// An attribute; the value only where it is wanted.
type Found = (Vec<u8>, Option<Vec<u8>>);

/// `tabane getfattr`.
pub fn run_getfattr(arguments: &Arguments) -> Outcome {
    let session = Session::open(arguments)?;
    let name = arguments.bytes("attribute-name");
    let wanted = AttributeRequest {
        values: name.is_some() || arguments.flag("dump"),
        name,
        pattern: arguments.text("match").unwrap_or_else(|| MATCH_DEFAULT.to_owned()),
        follow: !arguments.flag("no-dereference"),
    };
    let as_json = arguments.flag("json");
    let mut failed = false;
    let mut files = Vec::new();
    for path in arguments.operand_bytes() {
        let path = inside(&path);
        match session.block_on(look(&session.files, &path, &wanted)) {
            Ok(found) if as_json => files.push(file_json(&path, &found)),
            Ok(found) => std::io::stdout().write_all(&words(&path, &found)).map_err(Failure::of_output)?,
            Err(error) => {
                failed = true;
                eprintln!("tabane: getfattr: {}", about_path(&path, &error));
            }
        }
    }
    if as_json {
        json::print(&Value::Array(files))?;
    }
    if failed { Err(Failure::Said(1)) } else { Ok(()) }
}

async fn look(files: &FileSystem, path: &[u8], wanted: &AttributeRequest) -> Result<Vec<Found>> {
    if let Some(name) = &wanted.name {
        let value = files.get_extended(path, wanted.follow, name).await?;
        return Ok(vec![(name.clone(), Some(value))]);
    }
    let list = files.list_extended(path, wanted.follow).await?;
    let mut found = Vec::new();
    for name in list.split(|byte| *byte == 0).filter(|name| !name.is_empty() && matches(&wanted.pattern, name)) {
        let value = match wanted.values {
            // One that went since it was listed is not there; one that may not be read is shown by its name.
            true => match files.get_extended(path, wanted.follow, name).await {
                Ok(value) => Some(value),
                Err(error) if error.status == client::Status::NoAttribute => continue,
                Err(error) => return Err(error),
            },
            false => None,
        };
        found.push((name.to_vec(), value));
    }
    Ok(found)
}

/// Whether a name contains the text, `^` and `$` standing for its ends; `-` matches all.
fn matches(pattern: &str, name: &[u8]) -> bool {
    if pattern == "-" {
        return true;
    }
    let pattern = pattern.replace("\\.", ".");
    let (text, starts) = pattern.strip_prefix('^').map_or((pattern.as_str(), false), |text| (text, true));
    let (text, ends) = text.strip_suffix('$').map_or((text, false), |text| (text, true));
    let name = String::from_utf8_lossy(name);
    match (starts, ends) {
        (true, true) => name == text,
        (true, false) => name.starts_with(text),
        (false, true) => name.ends_with(text),
        (false, false) => name.contains(text),
    }
}

fn words(path: &[u8], found: &[Found]) -> Vec<u8> {
    let mut text = Vec::new();
    if found.is_empty() {
        return text;
    }
    text.extend_from_slice(b"# file: ");
    text.extend_from_slice(&shown(path));
    for (name, value) in found {
        text.push(b'\n');
        text.extend_from_slice(name);
        if let Some(value) = value {
            text.push(b'=');
            text.extend_from_slice(encode(value).as_bytes());
        }
    }
    text.extend_from_slice(b"\n\n");
    text
}

fn file_json(path: &[u8], found: &[Found]) -> Value {
    let one = |(name, value): &Found| {
        let mut fields = Fields::new();
        put_name(&mut fields, "name", name);
        match value.as_ref().map(|value| (std::str::from_utf8(value), value)) {
            None => None,
            Some((Ok(text), _)) => fields.insert("text".to_owned(), Value::from(text)),
            Some((Err(_), value)) => fields.insert("base64".to_owned(), Value::from(base64::encode(value))),
        };
        Value::Object(fields)
    };
    let mut fields = Fields::new();
    put_name(&mut fields, "path", &shown(path));
    fields.insert("attributes".to_owned(), found.iter().map(one).collect());
    Value::Object(fields)
}

/// A value as text in quotes, or 0s and base64 when it is no text.
fn encode(value: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(value) else { return format!("0s{}", base64::encode(value)) };
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            _ if letter.is_control() && letter.is_ascii() => quoted += &format!("\\{:03o}", u32::from(letter)),
            _ => quoted.push(letter),
        }
    }
    quoted + "\""
}

/// The value that a text stands for: 0x and hexadecimal, 0s and base64, or text, with or without quotes.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    if let Some(digits) = text.strip_prefix(b"0x").or(text.strip_prefix(b"0X")) {
        let digits: Option<Vec<u8>> =
            digits.iter().map(|digit| (*digit as char).to_digit(16).map(|n| n as u8)).collect();
        let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
        return Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect());
    }
    if let Some(letters) = text.strip_prefix(b"0s").or(text.strip_prefix(b"0S")) {
        return base64::decode(letters);
    }
    let inner = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\""));
    let Some(inner) = inner else { return Some(text.to_vec()) };
    let mut value = Vec::new();
    let mut rest = inner;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let octal = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        (value, rest) = match (first, octal, after.split_first()) {
            (b'\\', Some(byte), _) => (with(value, byte), &after[3..]),
            (b'\\', None, Some((escaped, after))) => (with(value, *escaped), after),
            _ => (with(value, *first), after),
        };
    }
    Some(value)
}

fn with(mut bytes: Vec<u8>, byte: u8) -> Vec<u8> {
    bytes.push(byte);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is shown of a value stands for that value.
    #[test]
    fn values_come_back() {
        let samples: [&[u8]; 7] =
            [b"", b"plain", b"a \"quoted\" \\ text\n", b"\x00\x01", b"\xff", b"\xff\xfe", b"\xff\xfe\xfd"];
        for value in samples {
            assert_eq!(decode(encode(value).as_bytes()).as_deref(), Some(value), "{value:?}");
        }
        assert_eq!(encode(b"\xff\xfe"), "0s//4=");
        assert_eq!(decode(b"0x00fF"), Some(vec![0, 255]));
        assert_eq!(decode(b"0x0"), None);
        assert_eq!(decode(b"0s*"), None);
        assert_eq!(decode(b"plain"), Some(b"plain".to_vec()));
    }

    /// Goal: the forms of --match.
    #[test]
    fn patterns() {
        for (pattern, name, is_match) in [
            ("-", "trusted.a", true),
            ("^user.", "user.a", true),
            ("^user\\.", "security.user.a", false),
            ("er.a$", "user.a", true),
            ("^user.a$", "user.ab", false),
            ("ser", "user.a", true),
        ] {
            assert_eq!(matches(pattern, name.as_bytes()), is_match, "{pattern} {name}");
        }
    }
}
