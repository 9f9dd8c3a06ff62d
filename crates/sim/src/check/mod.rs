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

use crate::history::Finding;
use crate::losses::Losses;

/// All that is wrong with a history.
pub fn check(losses: &Losses) -> Vec<Finding> {
    let mut findings = names::check(losses);
    for file in &files::by_file(losses.operations) {
        if !file.has_appends() {
            findings.extend(chunks::check(file, losses));
        }
    }
    findings.extend(extended::check(losses));
    for view in losses.views() {
        for file in &files::by_file(&view) {
            if file.has_appends() {
                findings.extend(appends::check(file));
            }
            findings.extend(sizes::check(file));
            findings.extend(times::check(file));
        }
        findings.extend(listings::check(&view));
        findings.extend(directories::check(&view, losses.unrest));
    }
    findings
}
