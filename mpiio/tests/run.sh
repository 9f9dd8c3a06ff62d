#!/bin/sh
# Tries libtabane_mpiio: every program here runs over a directory of tmpfs with MPI alone, over tabane: with the
# library, and over tmpfs and a mount of the cluster with it. What they print and the files that they leave have to be
# the same, and over the mount the library has to do it without the mount (but where a directory is missing, `nowhere`).
#
#   run.sh PROGRAMS LIBRARY-DIRECTORY MPICC [TEST...]
#
# `fortran` is examples/mpiio.f90, by MPIF90 (the name of MPICC with mpif90 in place of mpicc).
#
# MPIEXEC: the command that goes before "-n 4" (mpiexec). ALONE=1: over tabane: alone, where nothing is compared, for an
# MPI whose own library is not up to these tests.
set -eu

programs=$(cd "$1" && pwd) libraries=$(cd "$2" && pwd) mpicc=$3
shift 3
sources=$(cd "$(dirname "$0")" && pwd)
: "${MPIEXEC:=mpiexec}" "${PROCESSES:=4}"
# What MPICH's own library does not stand, or does not count right, runs over tabane: alone.
compared="views pointers requests files atomic fortran"
: "${MPIF90:=$(echo "$mpicc" | sed 's/mpicc/mpif90/')}"
alone="large nonblocking random_types external32 collective"

if [ "${TABANE_MPIIO_WORK:-}" = "" ]; then
    # shellcheck disable=SC2154 # set by trap
    work=$(mktemp -d /dev/shm/tabane-mpiio.XXXXXX)
    trap 'rm -rf "$work"' EXIT
    # Not all shells go through the exit when a signal ends them.
    trap 'exit 130' INT TERM HUP
    export TABANE_MPIIO_WORK="$work"
    mkdir "$work/mount"
    "$programs/tabane" run --run-directory "$work/run" --servers 2 --store memory:size=2G --mount "$work/mount" -- \
        sh "$0" "$programs" "$libraries" "$mpicc" "$@"
    exit
fi

work=$TABANE_MPIIO_WORK
library=$libraries/libtabane_mpiio.so
failures=0

# run PLACE OUTPUT TEST [with the library]
run() {
    place=$1
    [ "$3" != fortran ] || place=$1/field
    if [ "${4:-}" ]; then
        # shellcheck disable=SC2086 # MPIEXEC has options
        $MPIEXEC -n "$PROCESSES" env TABANE_MPIIO_EXPLAIN=1 LD_PRELOAD="$library" "$work/$3" "$place" \
            </dev/null >"$2" 2>"$2.errors"
    else
        # shellcheck disable=SC2086
        $MPIEXEC -n "$PROCESSES" "$work/$3" "$place" </dev/null >"$2" 2>"$2.errors"
    fi
}

fail() {
    failures=$((failures + 1))
    echo "mpiio: $1" >&2
    tail -n 5 "$work"/*.out "$work"/*.errors >&2 2>/dev/null || true
}

same() {
    diff -r "$1" "$2" >"$work/difference" 2>&1 || { fail "$3"; head -n 20 "$work/difference" >&2; }
}

try() {
    test=$1
    rm -rf "$work/plain" "$work/beside" "$work/ours" "$work"/*.out "$work"/*.errors
    mkdir "$work/plain" "$work/beside"
    "$programs/tabane" mkdir "/$test"
    case $test in
    fortran) $MPIF90 -O1 -Wall -o "$work/$test" "$sources/../../examples/mpiio.f90" ;;
    *) $mpicc -std=gnu11 -Wall -Wextra -O1 -o "$work/$test" "$sources/$test.c" ;;
    esac
    run "tabane:/$test" "$work/ours.out" "$test" with || { fail "$test: over tabane:"; return; }
    grep -q '^done$\|read what their neighbours wrote$' "$work/ours.out" ||
        { fail "$test: over tabane: it did not come to its end"; return; }
    "$programs/tabane" cp -r ":/$test" "$work/ours" >/dev/null 2>&1
    ls -A "$work/ours" | grep shared && fail "$test: a hidden file is left"
    mkdir "$work/mount/$test.mounted"
    run "$work/mount/$test.mounted" "$work/mounted.out" "$test" with || { fail "$test: over a mount"; return; }
    grep -q "^tabane: .* is of the cluster: /$test.mounted" "$work/mounted.out.errors" &&
        ! grep "^tabane: .* is MPI's own" "$work/mounted.out.errors" | grep -v /nowhere/ ||
        fail "$test: the library left a mount's file to MPI"
    same "$work/ours.out" "$work/mounted.out" "$test: tabane: and the mount print different lines"
    same "$work/ours" "$work/mount/$test.mounted" "$test: tabane: and the mount leave different files"
    case "${ALONE:+ $test} $alone " in *" $test "*) echo "mpiio: $test: good"; return ;; esac
    run "$work/plain" "$work/plain.out" "$test" || { fail "$test: over tmpfs, with MPI alone"; return; }
    run "$work/beside" "$work/beside.out" "$test" with || { fail "$test: over tmpfs, with the library"; return; }
    same "$work/plain.out" "$work/ours.out" "$test: MPI alone and tabane: print different lines"
    same "$work/plain" "$work/ours" "$test: MPI alone and tabane: leave different files"
    same "$work/plain.out" "$work/beside.out" "$test: over tmpfs the library prints different lines"
    same "$work/plain" "$work/beside" "$test: over tmpfs the library leaves different files"
    [ "$failures" -gt 0 ] || echo "mpiio: $test: good"
}

# Opens that the servers of a cluster of its own were asked for, to whose memory no client has a way.
try_opens() {
    $mpicc -std=gnu11 -Wall -Wextra -O1 -o "$work/opens" "$sources/opens.c"
    cat >"$work/opens.sh" <<'END'
"$1/tabane" mkdir /opens
$MPIEXEC -n "$PROCESSES" env LD_PRELOAD="$2" "$3" tabane:/opens </dev/null >&2
"$1/tabane" status --json | python3 -c '
import json, sys
servers = json.load(sys.stdin)["servers"]
operations = [server["report"]["operations"] for server in servers]
names = "Open", "OpenExisting", "OpenThrough", "Reclaim"
print(sum(row.get(name, {}).get("arrivals", 0) for row in operations for name in names))'
END
    export MPIEXEC PROCESSES
    asked=$("$programs/tabane" run --run-directory "$work/opens-run" --servers 2 --transport tcp \
        --store memory:size=256M -- sh -e "$work/opens.sh" "$programs" "$library" "$work/opens" 2>"$work/opens.errors")
    [ "$(echo "$asked" | tail -n 1)" = 100 ] ||
        { fail "opens: $asked requests for 100 files that $PROCESSES processes open together"; return; }
    echo "mpiio: opens: good"
}

# What the library learns of a series of files, without a cluster and with one.
try_context() {
    library_sources=$(ls "$sources"/../*.c | grep -v /calls.c)
    # shellcheck disable=SC2086 # several files
    $mpicc -std=gnu11 -Wall -Wextra -O1 -g -fsanitize=address,undefined -D_GNU_SOURCE \
        -I"$sources/../../crates/capi/include" -o "$work/context" "$sources/context.c" $library_sources \
        "$libraries/libtabane.so.0" -Wl,-rpath,"$libraries" -ldl -lpthread
    "$work/context" >"$work/context.out" || { fail "context: without a cluster"; return; }
    $mpicc -std=gnu11 -Wall -Wextra -O1 -o "$work/series" "$sources/series.c"
    # 1 MiB of four processes, twice: one chunk at first, the second file is over both servers.
    series_with plain && gives plain out_0001.dat || { fail "context: the second file has no layout"; return; }
    ! gives plain out_0000.dat || { fail "context: the first file has a layout"; return; }
    "$programs/tabane" getfattr -n user.tabane.context :/context.plain | grep -q 'name=out_#.dat' ||
        { fail "context: the directory does not keep it"; return; }
    # Not with a layout of the program's own, and not where it is turned off.
    series_with chosen striping_unit=65536 && ! gives chosen out_0001.dat ||
        { fail "context: a layout that was asked for does not hold"; return; }
    series_with off tabane_context=disable && ! gives off out_0001.dat &&
        ! "$programs/tabane" getfattr -d :/context.off | grep -q tabane.context ||
        { fail "context: it is kept though it is turned off"; return; }
    # What somebody else wrote there is as nothing.
    "$programs/tabane" mkdir /context.foreign
    "$programs/tabane" setfattr -n user.tabane.context -v 'tabane-context 1 files=%n%n' :/context.foreign
    series_with foreign && gives foreign out_0001.dat && ! gives foreign out_0000.dat ||
        { fail "context: an attribute that is no context"; return; }
    for hint in tabane_context=maybe tabane_run=0 tabane_run=much; do
        ! series_with wrong "$hint" && grep -q "the hint ${hint%=*} is " "$work/context.errors" ||
            { fail "context: the hint $hint is taken"; return; }
    done
    echo "mpiio: context: good"
}

# series_with DIRECTORY [HINTS]
series_with() {
    "$programs/tabane" mkdir -p "/context.$1"
    # shellcheck disable=SC2086 # MPIEXEC has options
    $MPIEXEC -n 4 env TABANE_MPIIO_EXPLAIN=1 TABANE_MPIIO_HINTS="${2:-}" LD_PRELOAD="$library" "$work/series" \
        "tabane:/context.$1" 262144 2 1 </dev/null >"$work/context.out" 2>"$work/context.errors"
}

# Whether a file got a layout for its series.
gives() {
    grep -q "^tabane: /context.$1/$2, if it is new, has a layout for its series" "$work/context.errors"
}

for test in ${*:-$compared $alone opens context}; do
    case $test in
    opens) try_opens ;;
    context) try_context ;;
    *) try "$test" ;;
    esac
done
[ "$failures" -eq 0 ] || { echo "mpiio: $failures failures" >&2; exit 1; }
