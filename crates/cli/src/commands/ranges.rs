//! `tabane truncate` and `fallocate`.

use crate::arguments::Arguments;
use crate::failure::{Failure, Outcome, about_path, path_failure};
use crate::paths::inside;
use crate::session::Session;
use crate::text::parse_size;
use client::{Allocation, OpenHow, Status};

const FILE_MODE: u32 = 0o666;

/// A size as truncate(1) takes it: absolute, or told from the size that the file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    Exactly(u64),
    More(u64),
    Less(u64),
    AtMost(u64),
    AtLeast(u64),
    DownTo(u64),
    UpTo(u64),
}

impl Size {
    fn parse(text: &str) -> Option<Size> {
        let make = match text.chars().next()? {
            '+' => Size::More,
            '-' => Size::Less,
            '<' => Size::AtMost,
            '>' => Size::AtLeast,
            '/' => Size::DownTo,
            '%' => Size::UpTo,
            _ => return parse_size(text).map(Size::Exactly),
        };
        let size = parse_size(&text[1..])?;
        let divides = matches!(make(size), Size::DownTo(_) | Size::UpTo(_));
        (!divides || size > 0).then(|| make(size))
    }

    /// What the size becomes; nothing when that is beyond all numbers.
    fn of(self, size: u64) -> Option<u64> {
        match self {
            Size::Exactly(exact) => Some(exact),
            Size::More(more) => size.checked_add(more),
            Size::Less(less) => Some(size.saturating_sub(less)),
            Size::AtMost(most) => Some(size.min(most)),
            Size::AtLeast(least) => Some(size.max(least)),
            Size::DownTo(unit) => Some(size - size % unit),
            Size::UpTo(unit) => size.checked_next_multiple_of(unit),
        }
    }
}

/// `tabane truncate`.
pub fn run_truncate(arguments: &Arguments) -> Outcome {
    let text = arguments.text("truncate-size").ok_or_else(|| Failure::usage("--size is missing"))?;
    let size = Size::parse(&text).ok_or_else(|| {
        Failure::usage(format!(
            "--size {text}: a size is wanted, such as 47008 or 2G, with +, -, <, >, / or % in front"
        ))
    })?;
    let session = Session::open(arguments)?;
    let create = !arguments.flag("no-create");
    let mut failed = false;
    for path in arguments.operand_bytes() {
        let path = inside(&path);
        let how = OpenHow { create, mode: FILE_MODE, write: true, ..OpenHow::default() };
        let cut = async {
            let file = match session.files.open(&path, &how).await {
                Err(error) if error.status == Status::NotFound && !create => return Ok(()),
                opened => opened?,
            };
            let before = match size {
                Size::Exactly(_) => 0,
                _ => session.files.stat_file(&file).await?.size,
            };
            // A size that no number holds is refused like any other that is too large.
            let cut = session.files.truncate_file(&file, size.of(before).unwrap_or(u64::MAX)).await;
            session.files.close(&file).await;
            cut.map(drop)
        };
        if let Err(error) = session.block_on(cut) {
            failed = true;
            eprintln!("tabane: {}: {}", arguments.command.name, about_path(&path, &error));
        }
    }
    if failed { Err(Failure::Said(1)) } else { Ok(()) }
}

/// `tabane fallocate`.
pub fn run_fallocate(arguments: &Arguments) -> Outcome {
    let kind = match (arguments.flag("punch-hole"), arguments.flag("zero-range")) {
        (true, true) => return Err(Failure::usage("--punch-hole and --zero-range exclude each other")),
        (true, false) => Allocation::Punch,
        (false, true) => Allocation::Zero,
        (false, false) => Allocation::Reserve,
    };
    let size = arguments.number_given("length").ok_or_else(|| Failure::usage("--length is missing"))?;
    let offset = arguments.number_given("offset").unwrap_or(0);
    let session = Session::open(arguments)?;
    let path = inside(&arguments.operand_bytes()[0]);
    let how = OpenHow { create: kind == Allocation::Reserve, mode: FILE_MODE, write: true, ..OpenHow::default() };
    let keep_size = arguments.flag("keep-size");
    let done = session.block_on(async {
        let file = session.files.open(&path, &how).await?;
        let done = session.files.allocate(&file, kind, keep_size, offset, size).await;
        session.files.close(&file).await;
        done
    });
    done.map_err(|error| path_failure(&path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: all forms of sizes mean what truncate(1) says.
    #[test]
    fn sizes() {
        let of = |text: &str, size| Size::parse(text).and_then(|wanted| wanted.of(size));
        assert_eq!(of("5K", 7), Some(5120));
        assert_eq!((of("+3", 7), of("-3", 7), of("-9", 7)), (Some(10), Some(4), Some(0)));
        assert_eq!((of("<5", 7), of("<9", 7), of(">5", 7), of(">9", 7)), (Some(5), Some(7), Some(7), Some(9)));
        assert_eq!((of("/5", 7), of("%5", 7), of("%5", 10)), (Some(5), Some(10), Some(10)));
        assert_eq!((of("/0", 7), of("many", 7), of("+", 7), of("+1", u64::MAX)), (None, None, None, None));
    }
}
