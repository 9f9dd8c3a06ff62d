//! What a command prints of Lustre's statistics now.

use super::Sink;
use super::hosts::Hosts;
use super::lustre::{Parser, TextLine};
use crate::clock;
use crate::failure::{Failure, Outcome, io_words};
use crate::lines::{Lines, Next};
use std::process::{Command, Stdio};

/// Runs it once by `sh`. The time of its start is when its readings were collected. None, or how it failed.
pub fn run(command: &str, server: Option<&str>, sink: &mut impl Sink) -> Outcome<Option<String>> {
    let failed = |error: std::io::Error| Failure::failed(format!("--command: {}", io_words(&error)));
    let collected = clock::now();
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = shell.spawn().map_err(failed)?;
    let output = child.stdout.take().ok_or_else(|| Failure::failed("--command: it has no output"))?;
    let mut lines = Lines::of("--command", output);
    let mut hosts = Hosts::<Parser>::new(server);
    let read = loop {
        match lines.next() {
            Ok(Next::End) => break Ok(()),
            Ok(Next::TooLong(number)) => sink.skipped(number, "the line is too long")?,
            Ok(Next::Line(line)) => {
                let line = TextLine { number: line.number, text: &line.text, whole: line.whole };
                hosts.line(line, Some(collected), sink)?;
            }
            Err(failure) => break Err(failure),
        }
    };
    drop(lines);
    let status = child.wait().map_err(failed)?;
    read?;
    // A command that fails may have been cut off anywhere.
    hosts.end(status.success(), sink)?;
    if status.success() {
        return Ok(None);
    }
    sink.skipped(0, &format!("the command failed: {status}"))?;
    Ok(Some(status.to_string()))
}
