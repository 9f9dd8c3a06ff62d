//! The committed header is the one that the sources give.

use std::path::Path;

/// Goal: include/tabane.h is current.
/// Method: it is generated anew and compared; with `UPDATE_HEADER=1` in the environment it is written instead.
#[test]
#[allow(clippy::disallowed_methods)] // A test's own switch.
fn header_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml is valid");
    // The sources are named one by one: generating from the crate would ask cargo, and that the registry.
    let sources = [
        "lib.rs",
        "files.rs",
        "names.rs",
        "inodes.rs",
        "extended.rs",
        "locks.rs",
        "directories.rs",
        "find.rs",
        "synchronise.rs",
        "rights.rs",
        "ranges.rs",
    ];
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources {
        builder = builder.with_src(root.join("src").join(source));
    }
    let mut generated = Vec::new();
    builder.generate().expect("the sources have a C interface").write(&mut generated);
    // The heading that Rust wants above what callers have to keep is not one that C knows.
    let generated = String::from_utf8(generated).expect("a header is text").replace(" # Safety\n", "");
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
