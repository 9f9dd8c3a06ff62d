//! What tests of real clusters share.

#![allow(clippy::unwrap_used)] // What fails here fails the test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Store of each server; small, so that the tests fit on small machines.
pub const STORE: &str = "memory,size=64M";

/// The `tabane` program of the same build, made if it is not there or not current. Where the whole workspace is tested
/// it is there, and to make it alone would build much of it with other features once more: TABANE_IS_BUILT=1 says so.
#[expect(clippy::disallowed_methods, reason = "what is built already is for whoever runs the tests to say")]
pub fn tabane() -> PathBuf {
    let bench = Path::new(env!("CARGO_BIN_EXE_tabane-bench"));
    let profile = bench.parent().unwrap();
    if std::env::var("TABANE_IS_BUILT").is_ok_and(|value| value == "1") {
        return profile.join("tabane");
    }
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "--package", "tabane-cli", "--manifest-path"]);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"));
    command.arg("--target-dir").arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        command.arg("--release");
    }
    assert!(command.status().unwrap().success());
    profile.join("tabane")
}
