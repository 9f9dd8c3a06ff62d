#!/bin/sh
# What very many names take: memory per name on four servers, what the stores take with them, and the time until all
# answer again after all were killed.
# Usage: names.sh DIRECTORY-WITH-PROGRAMS [FILES]     (a tenth as many directories come on top)
set -eu

programs=$(cd "$1" && pwd)
tabane=$programs/tabane
files=${2:-10000000}
work=$(mktemp -d "${TMPDIR:-/tmp}/tabane-names-XXXXXX")
run=$work/run
stores=/dev/shm/${work##*/}

clean_up() {
    [ ! -d "$run" ] || "$tabane" down --run-directory "$run" || true
    rm -rf "$work" "$stores"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Anonymous memory of all servers: the index, without the mapped stores and journals.
index_bytes() {
    for server in 0 1 2 3; do
        grep RssAnon "/proc/$(cut -d' ' -f1 "$run/server-$server.pid")/status"
    done | awk '{ sum += $2 * 1024 } END { print sum }'
}

seconds() {
    date +%s.%N
}

# Bytes of stores and journals that were ever written to, in MiB.
store_size() {
    du -sm "$stores" | cut -f1
}

"$tabane" up --servers 4 --run-directory "$run" --dir "$stores" --store memory:size=256M
export TABANE_CLUSTER="$run"
before=$(index_bytes)
"$programs/tabane-bench" --procs 2 --no-warm --files $((files / 2)) names
after=$(index_bytes)
names=$((files / 2 * 2 + files / 20 * 2))
echo "$names names: $(((after - before) / names)) bytes of index each, journals and stores aside"
echo "stores and journals: $(store_size) MiB"
for server in 0 1 2 3; do
    pid=$(cut -d' ' -f1 "$run/server-$server.pid")
    kill -9 "$pid"
    while [ -e "/proc/$pid/stat" ] && ! grep -q ') [ZX] ' "/proc/$pid/stat"; do :; done
done
started=$(seconds)
"$tabane" up --run-directory "$run"
echo "all servers answer again after $(echo "$(seconds) $started" | awk '{ printf "%.1f", $1 - $2 }') s"
echo "index after the restart: $((($(index_bytes) - before) / names)) bytes each"
