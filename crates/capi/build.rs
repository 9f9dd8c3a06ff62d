//! Gives the library its name for the dynamic linker: programs that were linked with one `libtabane.so.0` run with any.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libtabane.so.0");
}
