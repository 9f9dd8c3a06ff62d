//! Compiles a C program against one of our libraries, as it lies beside this test, and runs it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What to build and where its parts are.
pub struct Program<'a> {
    /// Root of the crate whose interface it uses: its `include` and `tests/c` are used.
    pub crate_root: &'a Path,
    /// The source, within `tests/c`.
    pub source: &'a str,
    /// The library, as for `-l`.
    pub library: &'a str,
    /// Where the program goes.
    pub place: &'a Path,
}

impl Program<'_> {
    /// Builds the library, which nothing else makes cargo do for a test, and tells where it lies. Whoever has built
    /// those of the whole workspace says so by TABANE_IS_BUILT=1: to make one alone would build much of it with other
    /// features once more.
    #[expect(clippy::disallowed_methods, reason = "for tests, by whoever has built all that they run")]
    fn library_directory(&self) -> PathBuf {
        static BUILT: std::sync::Once = std::sync::Once::new();
        let own = std::env::current_exe().expect("a test knows its own path");
        let directory = own.ancestors().nth(2).expect("tests lie in a directory below the libraries");
        let target = directory.parent().expect("a profile lies in the target directory");
        BUILT.call_once(|| {
            if std::env::var("TABANE_IS_BUILT").is_ok_and(|value| value == "1") {
                return;
            }
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--quiet", "--lib", "--manifest-path"]).arg(self.crate_root.join("Cargo.toml"));
            cargo.arg("--target-dir").arg(target);
            check(cargo, "building");
        });
        directory.to_owned()
    }

    /// Compiles and runs the program, with the environment given; panics with its output if either fails.
    pub fn run(&self, environment: &[(&str, &str)]) {
        let libraries = self.library_directory();
        let binary = self.place.join(self.source).with_extension("bin");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&binary);
        compiler.arg("-I").arg(self.crate_root.join("include")).arg(self.crate_root.join("tests/c").join(self.source));
        compiler.arg("-L").arg(&libraries).arg(format!("-l{}", self.library));
        // The program asks for the library by its soname, which only an installed one has as a file name.
        let soname = self.place.join(format!("lib{}.so.0", self.library));
        let library = libraries.join(format!("lib{}.so", self.library));
        match std::os::unix::fs::symlink(library, soname) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => panic!("linking the library: {error}"),
            _ => compiler.arg(format!("-Wl,-rpath,{}", self.place.display())),
        };
        check(compiler, "compiling");
        let mut program = Command::new(&binary);
        for name in ["TABANE_CLUSTER", "CHFS_SERVER", "CHFS_CHUNK_SIZE", "CHFS_ASYNC_ACCESS", "CHFS_BUF_SIZE"] {
            program.env_remove(name);
        }
        program.envs(environment.iter().copied());
        check(program, "running");
    }
}

fn check(mut command: Command, what: &str) {
    let output = command.output().unwrap_or_else(|error| panic!("{what} {command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{what} {command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
}

/// A directory of user 65534 with a cluster file in it that leads to servers of ours. As root.
pub fn foreign_copy(cluster: &Path) -> PathBuf {
    const STRANGER: u32 = 65_534;
    let theirs = cluster.join("theirs");
    std::fs::create_dir(&theirs).expect("a directory");
    std::fs::copy(cluster.join("cluster"), theirs.join("cluster")).expect("a copy");
    for path in [&theirs.join("cluster"), &theirs] {
        std::os::unix::fs::chown(path, Some(STRANGER), Some(STRANGER))
            .expect("run this test as root, or set TABANE_CI_NO_ROOT=1 to leave it out");
    }
    theirs
}
