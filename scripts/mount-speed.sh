#!/bin/sh
# A mount of Tabane beside another file system in user space, both in memory, measured in turns. Needs root, or user_allow_other.
# Usage: mount-speed.sh DIRECTORY-WITH-PROGRAMS [OPTIONS AND BENCHES OF tabane-bench]
# OTHER=simple (the default): the example of that name of the crate fuser, which passes everything through to a directory on tmpfs. It is
#   built outside the repository, and runs with direct I/O, as ours does, unless EXAMPLE_OPTIONS is set and empty.
# OTHER=memory: crates/fuse/examples/memory.rs, which answers from its own memory: what the kernel's side of FUSE alone allows.
set -eu

programs=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- --repeat 3 --procs 1 --block-size 256MiB --files 2000 ior-easy mdtest-easy
cache=${TABANE_SPEED_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tabane-mount-speed}
threads=${THREADS:-8}
servers=${SERVERS:-1}
options=${EXAMPLE_OPTIONS---direct-io}
kind=${OTHER:-simple}
root=$(cd "$(dirname "$0")/.." && pwd)
version=$(sed -n '/^name = "fuser"/{n;s/^version = "\(.*\)"/\1/p;}' "$root/Cargo.lock")

build_simple() {
    example=$cache/fuser-$version/target/release/examples/simple
    [ ! -x "$example" ] || return 0
    source=$(cargo metadata --format-version 1 --manifest-path "$root/Cargo.toml" |
        grep -o '"manifest_path":"[^"]*/fuser-[^"]*/Cargo.toml"' | head -n 1 | cut -d'"' -f4)
    mkdir -p "$cache"
    cp -r "$(dirname "$source")" "$cache/"
    chmod -R u+w "$cache/fuser-$version"
    # Built with the compiler that is there, not with the one that its developers use.
    rm -f "$cache/fuser-$version"/rust-toolchain*
    (cd "$cache/fuser-$version" && CARGO_TARGET_DIR=$PWD/target cargo build --release --example simple)
}

build_memory() {
    (cd "$root" && cargo build --release -p tabane-fuse --example memory)
    example=${CARGO_TARGET_DIR:-$root/target}/release/examples/memory
}

case $kind in
simple | memory) "build_$kind" ;;
*)
    echo "mount-speed.sh: OTHER is simple or memory" >&2
    exit 2
    ;;
esac

work=$(mktemp -d "${TMPDIR:-/tmp}/tabane-speed-XXXXXX")
data=$(mktemp -d /dev/shm/tabane-speed-XXXXXX)
other=
clean_up() {
    "$programs/tabane" umount --cluster "$work/run" --force "$work/ours" 2>/dev/null || true
    "$programs/tabane" down --run-directory "$work/run" 2>/dev/null || true
    umount -l "$work/theirs" 2>/dev/null || fusermount3 -u -z "$work/theirs" 2>/dev/null || true
    [ -z "$other" ] || kill "$other" 2>/dev/null || true
    rm -rf "$data"
    rmdir "$work/ours" "$work/theirs" "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

mkdir "$work/ours" "$work/theirs"
"$programs/tabane" up --servers "$servers" --run-directory "$work/run" --store "memory:$data,size=${SIZE:-2G}" \
    --mount "$work/ours" --threads "$threads" >/dev/null
if [ "$kind" = memory ]; then
    "$example" "$work/theirs" "$threads" 2>"$work/theirs.log" &
else
    # shellcheck disable=SC2086
    "$example" --data-dir "$data/example" --mount-point "$work/theirs" --n-threads "$threads" $options 2>"$work/theirs.log" &
fi
other=$!
until grep -q " $work/theirs " /proc/mounts; do kill -0 "$other"; done
rm -f "$work/theirs.log"
"$programs/tabane-bench" --target "posix:$work/ours" --compare "posix:$work/theirs" "$@"
