#!/bin/sh
# A real crash: servers are killed with SIGKILL while a tree is copied in, start again, and everything that was copied
# is there.
# Usage: crash.sh DIRECTORY-WITH-PROGRAMS [TREE [STORE]]
set -eu

tabane=$(cd "$1" && pwd)/tabane
tree=${2:-/usr/include}
store=${3:-memory:size=1G}
work=$(mktemp -d "${TMPDIR:-/tmp}/tabane-crash-XXXXXX")
run=$work/run
copying=

clean_up() {
    [ -z "$copying" ] || kill "$copying" 2>/dev/null || true
    [ ! -d "$run" ] || "$tabane" down --run-directory "$run" || true
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

"$tabane" up --servers 3 --run-directory "$run" --store "$store"
export TABANE_CLUSTER="$run"
"$tabane" cp -q -r "$tree" :/tree 2>"$work/errors" &
copying=$!
for victim in 0 1 2; do
    # As soon as this much has arrived, the next server dies.
    until [ "$("$tabane" find / -count 2>/dev/null || echo 0)" -gt $((20 + victim * 50)) ] ||
        ! kill -0 $copying 2>/dev/null; do :; done
    pid=$(cut -d' ' -f1 "$run/server-$victim.pid")
    kill -9 "$pid"
    while [ -e "/proc/$pid/stat" ] && ! grep -q ') [ZX] ' "/proc/$pid/stat"; do :; done
    echo "server $victim killed"
    "$tabane" up --run-directory "$run"
done
if ! wait $copying; then
    echo "the copy did not go on after the crashes:" >&2
    head "$work/errors" >&2
    exit 1
fi
copying=
"$tabane" checksum -r :/tree >"$work/inside"
"$tabane" checksum -r "$tree" >"$work/original"
cmp "$work/inside" "$work/original"
"$tabane" down --run-directory "$run"
echo "crash test passed: $(wc -l <"$work/original") files equal after three crashes"
