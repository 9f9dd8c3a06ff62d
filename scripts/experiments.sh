#!/bin/sh
# Draws the pictures of docs/experiments.md: sh scripts/experiments.sh PROGRAMS [simulated|real|both] [OUTPUT [NAME]]
# NAME is one picture alone, such as find: it takes less than a minute.
# PROGRAMS holds tabane and tabane-bench. Nothing else should run beside the real ones, which take some seven minutes on
# two cores; the simulated ones take five, and come out the same on any machine. JSON lines go to standard output.
set -eu
programs=$1
which=${2:-both}
output=${3:-docs/pictures}
only=${4:-}
mkdir -p "$output"

# draw NAME ARGUMENTS...
draw() {
    name=$1
    shift
    [ -z "$only" ] || [ "$only" = "$name" ] || return 0
    echo "$name: tabane-bench $*" >&2
    "$programs/tabane-bench" "$@" --plot "$output/$name.svg"
}

if [ "$which" != real ]; then
    draw find-simulated find --simulate --servers 16..1024
    draw async-simulated async --simulate
    draw placement-simulated placement --simulate --servers 16,24,32
    draw open-storm-simulated open-storm --simulate --clients 8..1024
    draw congestion-simulated congestion --simulate --servers 3..96 --pieces 32
    draw rdbench-simulated rdbench --simulate --servers 1..128 --length 256 --layout chunk
fi
if [ "$which" != simulated ]; then
    export TABANE_BENCH_STORE=memory,size=512M
    draw find find --servers 1..8 --files 10000 --repeat 3
    # As for clients of other users and machines: the writes of others do not wait, so that there is nothing to overlap.
    export TABANE_SHORT_CIRCUIT=reads
    draw async async --block-size 256MiB --repeat 3
    draw async-serial async --serial --block-size 32MiB --repeat 3
    unset TABANE_SHORT_CIRCUIT
    draw placement placement --servers 2,4,8 --block-size 64MiB --files 2000 --repeat 3
    draw open-storm open-storm --servers 8 --clients 8..512 --repeat 5
    draw uring uring --interfaces sync,io_uring --seconds 0.2 --repeat 5
    if [ -z "$only" ] || [ "$only" = rdbench ]; then
        # As root, and with room for the disk and the stores in memory.
        disk=/dev/shm/tabane-rdbench
        trap 'sh scripts/backing.sh remove "$disk" >&2' EXIT
        sh scripts/backing.sh make "$disk" --size 4G --rate 100M >&2
        draw rdbench rdbench --backing "$disk" --servers 2,4 --length 2048 --repeat 7 --store memory,size=1G
    fi
    if [ -z "$only" ] || [ "$only" = stage ]; then
        # Room for the trees, the copies and the stores in memory.
        site=/dev/shm/tabane-stage
        mkdir "$site"
        draw stage stage --backing "$site" --servers 1,2,4 --repeat 7 --store memory,size=2G
        rmdir "$site"
    fi
    draw profile profile --servers 2 --procs 2 --files 30000 --block-size 512MiB --repeat 7 --store memory,size=2G
fi
