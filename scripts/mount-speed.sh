#!/bin/sh
# A mount of Tabane beside another file system in user space, both in memory, measured in turns. Needs root, or
# user_allow_other.
# Usage: mount-speed.sh DIRECTORY-WITH-PROGRAMS [OPTIONS AND BENCHES OF tabane-bench]
# OTHER=passthrough (the default): libfuse's example passthrough_hp with nothing kept, over tmpfs. PASSTHROUGH_HP names
#   the program; without that it is built from the directory FUSE_SOURCES, which "apt-get source fuse3" makes, with g++
#   and the package libfuse3-dev.
# OTHER=memory: crates/fuse/examples/memory.rs, which answers from its own memory: what the kernel's side of FUSE alone
#   allows, read from the device.
# IO_URING=auto, on or off: how our mount gets its requests. SERVERS, THREADS, SIZE: of the cluster, 1, 8 and 2G.
set -eu

programs=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- --repeat 7 --procs 1 --block-size 64MiB --files 2000 mdtest-easy mdtest-hard ior-easy ior-hard
threads=${THREADS:-8}
kind=${OTHER:-passthrough}
root=$(cd "$(dirname "$0")/.." && pwd)

work=$(mktemp -d "${TMPDIR:-/tmp}/tabane-speed-XXXXXX")
data=$(mktemp -d /dev/shm/tabane-speed-XXXXXX)
other=
clean_up() {
    "$programs/tabane" umount --cluster "$work/run" --force "$work/ours" 2>/dev/null || true
    "$programs/tabane" down --run-directory "$work/run" 2>/dev/null || true
    umount -l "$work/theirs" 2>/dev/null || fusermount3 -u -z "$work/theirs" 2>/dev/null || true
    [ -z "$other" ] || kill "$other" 2>/dev/null || true
    rm -rf "$data"
    rm -f "$work/passthrough_hp" "$work/theirs.log"
    rmdir "$work/ours" "$work/theirs" "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
trap 'exit 141' PIPE
mkdir "$work/ours" "$work/theirs"

case $kind in
passthrough)
    program=${PASSTHROUGH_HP:-}
    if [ -z "$program" ]; then
        source=${FUSE_SOURCES:-}/example/passthrough_hp.cc
        if [ ! -f "$source" ]; then
            echo "mount-speed.sh: PASSTHROUGH_HP names no program, and FUSE_SOURCES no sources to build it from" \
                "(apt-get source fuse3)" >&2
            exit 2
        fi
        program=$work/passthrough_hp
        # shellcheck disable=SC2046
        g++ -O2 -std=c++17 "$source" -o "$program" $(pkg-config --cflags --libs fuse3) -lpthread
    fi
    mkdir "$data/theirs"
    other_command="$program --nocache --foreground --num-threads=10 $data/theirs $work/theirs"
    ;;
memory)
    (cd "$root" && cargo build --release -p tabane-fuse --example memory)
    other_command="${CARGO_TARGET_DIR:-$root/target}/release/examples/memory $work/theirs $threads"
    ;;
*)
    echo "mount-speed.sh: OTHER is passthrough or memory" >&2
    exit 2
    ;;
esac

"$programs/tabane" up --servers "${SERVERS:-1}" --run-directory "$work/run" --store "memory:$data,size=${SIZE:-2G}" \
    --mount "$work/ours" --threads "$threads" --io-uring "${IO_URING:-auto}" >/dev/null
# shellcheck disable=SC2086
$other_command >"$work/theirs.log" 2>&1 &
other=$!
until grep -q " $work/theirs " /proc/mounts; do kill -0 "$other"; done
"$programs/tabane-bench" --target "posix:$work/ours" --compare "posix:$work/theirs" "$@"
