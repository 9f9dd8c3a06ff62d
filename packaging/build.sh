#!/bin/sh
# Builds what packages hold, so that two builds of one commit give the same bytes wherever they are made: no path of
# this machine gets into a file. Usage: build.sh DIRECTORY [static]. With `static` also the programs that need no
# library.
set -eu
sources=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
directory=$(cd "$1" && pwd)
cd "$sources"

machine=$(rustc -vV | sed -n 's/^host: \([^-]*\)-.*/\1/p')
registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
RUSTFLAGS="--remap-path-prefix=$sources=/tabane --remap-path-prefix=$registry=/crates"
RUSTFLAGS="$RUSTFLAGS --remap-path-prefix=$directory=/target"
export RUSTFLAGS
# What is written in C would else be made for the processor that it is built on.
export CFLAGS="-mtune=generic -ffile-prefix-map=$registry=/crates -U_FORTIFY_SOURCE"
export CARGO_TARGET_DIR="$directory"
export CARGO_PROFILE_RELEASE_STRIP=symbols
TABANE_REVISION=$(sh scripts/revision.sh)
export TABANE_REVISION

# Usage: build TARGET PACKAGE...
build() {
    target=$1
    shift
    packages=
    for package in "$@"; do
        packages="$packages -p $package"
    done
    # shellcheck disable=SC2086
    "${CARGO:-cargo}" build --release --locked --target "$target" $packages
}

build "$machine-unknown-linux-gnu" tabane-cli tabane-bench tabane-report tabane-capi chfs-capi

# MPI-IO for the kinds of MPI that Debian has, as far as their compilers are here.
ln -sf libtabane.so "$directory/$machine-unknown-linux-gnu/release/libtabane.so.0"
for kind in mpich openmpi; do
    command -v mpicc.$kind >/dev/null 2>&1 || {
        echo "packages: without MPI-IO for $kind: mpicc.$kind is missing" >&2
        continue
    }
    make --no-print-directory -B -C mpiio MPICC=mpicc.$kind RUNPATH= INCLUDE="$sources/crates/capi/include" \
        LIBTABANE="$directory/$machine-unknown-linux-gnu/release/libtabane.so.0" OUT="$directory/mpiio/$kind" \
        CFLAGS="-O2 -ffile-prefix-map=$sources=/tabane" LDFLAGS=-s >/dev/null
done
[ "${2:-}" = static ] || exit 0

# musl libc links into the program as a whole, and resolves names without modules to be loaded.
static=$machine-unknown-linux-musl
if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$static" ]; then
    command -v rustup >/dev/null 2>&1 && rustup target add "$static" || {
        echo "tarball: Rust's standard library for $static is missing; install it: rustup target add $static" >&2
        exit 1
    }
fi
# It needs no header but the compiler's own, so that any compiler will do.
export "CC_$(echo "$static" | tr - _)=${CC:-cc}"
# SQLite asks glibc's headers for names such as open64, which musl does not have; on 64 bits both are the same.
export LIBSQLITE3_FLAGS=-DSQLITE_DISABLE_LFS
build "$static" tabane-cli tabane-bench tabane-report
