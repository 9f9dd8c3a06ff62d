//! The committed header is the one that the sources give.

use std::path::Path;

/// Goal: include/tabane.h is current.
/// Method: it is generated anew and compared; with `UPDATE_HEADER=1` in the environment it is written instead.
#[test]
#[allow(clippy::disallowed_methods)] // A test's own switch.
fn header_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml is valid");
    // From the root of the sources, which leads to the others: generating from the crate would ask cargo, and that the
    // registry.
    let builder = cbindgen::Builder::new().with_config(config).with_src(root.join("src/lib.rs"));
    let mut generated = Vec::new();
    builder.generate().expect("the sources have a C interface").write(&mut generated);
    // The heading that Rust wants above what callers have to keep is not one that C knows.
    let generated = String::from_utf8(generated).expect("a header is text").replace(" # Safety\n", "");
    let declared = generated
        .lines()
        .filter(|line| line.contains("tabane_") && line.contains('(') && !line.starts_with([' ', '/']));
    let mut declared: Vec<&str> = declared.collect();
    declared.sort_unstable();
    let twice = declared.windows(2).find(|pair| pair[0] == pair[1]);
    assert!(twice.is_none() && declared.len() > 60, "{twice:?} of {}", declared.len());
    let path = root.join("include/tabane.h");
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&path, &generated).expect("the header can be written");
    }
    let committed = std::fs::read_to_string(&path).expect("the header is there");
    assert!(
        committed == generated,
        "include/tabane.h is out of date: run UPDATE_HEADER=1 cargo test -p tabane-capi header"
    );
}
