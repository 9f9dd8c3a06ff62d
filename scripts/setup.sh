#!/bin/sh
# Sees to what the build and the tests need: a C compiler, pkg-config, Rust, fusermount3 for mounts, ip and mpiexec for
# tests of several hosts, and the programs of the book's recipes (docs/programs.md). Quick when everything is there.
set -eu

rust_wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

missing=
command -v cc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
command -v pkg-config >/dev/null 2>&1 || missing="$missing pkg-config"
command -v fusermount3 >/dev/null 2>&1 || missing="$missing fuse3"
command -v ip >/dev/null 2>&1 || missing="$missing iproute2"
command -v mpiexec >/dev/null 2>&1 && command -v mpicc >/dev/null 2>&1 || missing="$missing mpich"
command -v h5pcc >/dev/null 2>&1 || missing="$missing libhdf5-mpich-dev"
command -v sqlite3 >/dev/null 2>&1 || missing="$missing sqlite3"
[ -e /usr/lib/python3/dist-packages/h5py ] || missing="$missing python3-h5py"
[ -e /usr/lib/python3/dist-packages/numpy ] || missing="$missing python3-numpy"

if [ -n "$missing" ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "setup: these are missing, and this is no Debian or Ubuntu: install$missing by other means" >&2
        exit 1
    fi
    as_root=
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || {
            echo "setup: as root, run: apt-get install$missing" >&2
            exit 1
        }
        as_root=sudo
    fi
    echo "setup: installing$missing"
    $as_root apt-get update -q
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
fi

if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: there is no Rust toolchain; install Rust $rust_wanted or later from https://rustup.rs" >&2
    exit 1
fi
rust_here=$(rustc --version | cut -d' ' -f2)
oldest=$(printf '%s\n%s\n' "$rust_wanted" "$rust_here" | sort -V | head -n 1)
if [ "$oldest" != "$rust_wanted" ]; then
    echo "setup: Rust $rust_here is too old; $rust_wanted or later is needed (rustup update)" >&2
    exit 1
fi
