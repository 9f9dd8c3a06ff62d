//! Checkers: pure functions from a history to what is wrong with it.

pub mod appends;
pub mod chunks;
pub mod directories;
pub mod extended;
pub mod failures;
pub mod files;
pub mod listings;
pub mod locks;
pub mod names;
pub mod rights;
pub mod sizes;
pub mod times;

use crate::history::{Finding, Operation};

/// All that is wrong with a history.
pub fn check(operations: &[Operation]) -> Vec<Finding> {
    let mut findings = names::check(operations);
    let files = files::by_file(operations);
    for file in &files {
        if file.has_appends() {
            findings.extend(appends::check(file));
        } else {
            findings.extend(chunks::check(file));
        }
        findings.extend(sizes::check(file));
        findings.extend(times::check(file));
    }
    findings.extend(listings::check(operations));
    findings.extend(extended::check(operations));
    findings.extend(directories::check(operations));
    findings
}
