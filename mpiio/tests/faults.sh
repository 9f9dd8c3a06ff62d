#!/bin/sh
# Faults within collective calls of libtabane_mpiio: servers that are killed and started again, one that stays away, a
# store that is too small, and a process that is killed while it has a permit. No call may hang, or be told otherwise at
# one process than at another.
#
#   faults.sh PROGRAMS LIBRARY-DIRECTORY MPICC [MODE...]
#
# MPIEXEC: the command that goes before "-n 4" (mpiexec). TRANSPORT: of the servers (tcp, where permits are given by
# messages).
set -eu

programs=$(cd "$1" && pwd) library=$(cd "$2" && pwd)/libtabane_mpiio.so mpicc=$3
shift 3
sources=$(cd "$(dirname "$0")" && pwd)
: "${MPIEXEC:=mpiexec}" "${PROCESSES:=4}" "${TRANSPORT:=tcp}"
tabane=$programs/tabane
work=$(mktemp -d /dev/shm/tabane-faults.XXXXXX)
run=$work/run
export FAULTS_STOP="$work/stop" TABANE_TIMEOUT_MS=8000
job=

clean_up() {
    [ -z "$job" ] || kill "$job" 2>/dev/null || true
    [ ! -d "$run" ] || "$tabane" down --run-directory "$run" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

fail() {
    echo "faults: $1" >&2
    tail -n 20 "$work/out" "$work/errors" >&2 2>/dev/null || true
    exit 1
}

# begin KIND MODE: a job of all processes, in the background.
begin() {
    rm -f "$FAULTS_STOP"
    : >"$work/out"
    "$tabane" mkdir "/$1-$2"
    # shellcheck disable=SC2086 # MPIEXEC has options
    timeout 180 $MPIEXEC -n "$PROCESSES" env LD_PRELOAD="$library" "$work/faults" "$1" "tabane:/$1-$2" "$2" \
        </dev/null >"$work/out" 2>"$work/errors" &
    job=$!
}

rounds() {
    grep -c '^round' "$work/out" || true
}

# Waits for so many more rounds, for a minute.
wait_for_rounds() {
    wanted=$(($(rounds) + $1)) tries=600
    until [ "$(rounds)" -ge "$wanted" ]; do
        kill -0 "$job" 2>/dev/null || fail "$2: the job ended"
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "$2: no round ended for a minute"
        sleep 0.1
    done
}

# end WHAT: the job comes to its end, in which nothing went wrong.
end() {
    wait "$job" || fail "$1: the job failed ($?)"
    job=
    grep -q '^done$' "$work/out" || fail "$1: the job did not come to its end"
}

kill_server() {
    pid=$(cut -d' ' -f1 "$run/server-$1.pid")
    kill -9 "$pid"
    while [ -e "/proc/$pid/stat" ] && ! grep -q ') [ZX] ' "/proc/$pid/stat"; do :; done
}

$mpicc -std=gnu11 -Wall -Wextra -O1 -o "$work/faults" "$sources/faults.c" -lpthread
"$tabane" up --servers 2 --run-directory "$run" --store memory:size=256M --transport "$TRANSPORT" \
    --timeout-ms 4000 >/dev/null
export TABANE_CLUSTER="$run"

for mode in ${*:-list node stripe view}; do
    begin endure "$mode"
    wait_for_rounds 2 "$mode"
    for victim in 0 1 0; do
        kill_server "$victim"
        "$tabane" up --run-directory "$run" >/dev/null 2>&1
        wait_for_rounds 2 "$mode, server $victim killed"
    done
    touch "$FAULTS_STOP"
    end "$mode, servers killed"
    echo "faults: $mode: $(rounds) rounds, 3 kills"

    # One that is killed may have a permit at that moment: it goes back.
    begin die "$mode"
    ! wait "$job" || fail "$mode: the job of a killed process went on"
    job=
    "$tabane" rm -r "/endure-$mode" "/die-$mode"
    begin endure "$mode"
    wait_for_rounds 3 "$mode, after a process was killed"
    touch "$FAULTS_STOP"
    end "$mode, after a process was killed"
    "$tabane" rm -r "/endure-$mode"

    begin fail "$mode"
    end "$mode, a full store"
    grep -q '^write_at_all: no space: tabane: ' "$work/out" || fail "$mode: a full store is not told so"
    "$tabane" rm -r "/fail-$mode"
    echo "faults: $mode: a killed process, a full store"
done

mode=${1:-stripe}
begin fail "$mode"
wait_for_rounds 2 "$mode"
kill_server 1
end "$mode, a server that is gone"
grep -q ': failed: tabane: .*server 1' "$work/out" || fail "$mode: the server that is gone is not named"
told=$(grep -o '^[a-z_]*: failed\|after .* s' "$work/out" | xargs)
echo "faults: $mode: a server that is gone: $told: $(grep -o "file .*" "$work/out" | cut -c1-90)"
