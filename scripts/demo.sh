#!/bin/sh
# A first look: four servers, a real tree in and out again, compared, and short benchmarks beside tmpfs. Leaves nothing
# behind.
# Usage: demo.sh DIRECTORY-WITH-PROGRAMS      DEMO_TREE names another tree than the first that fits.
set -eu

programs=$(cd "$1" && pwd)
tabane=$programs/tabane
bench=$programs/tabane-bench
servers=4

work=$(mktemp -d "${TMPDIR:-/tmp}/tabane-demo-XXXXXX")
run=$work/run
table=$work/table
fast=
cleaned=no

clean_up() {
    [ "$cleaned" = no ] || return 0
    cleaned=yes
    [ ! -d "$run" ] || "$tabane" down --run-directory "$run" || true
    [ -z "$fast" ] || rm -rf "$fast"
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

say() {
    printf '%s\n' "$*" >&2
}

row() {
    printf '%-34s %s\n' "$1" "$2" >>"$table"
}

# Runs a command and leaves its seconds in $seconds.
timed() {
    begun=$(date +%s%N)
    "$@"
    ended=$(date +%s%N)
    seconds=$(awk -v ns=$((ended - begun)) 'BEGIN { printf "%.2f s", ns / 1e9 }')
}

free_kib() {
    df -Pk "$1" | awk 'NR == 2 { print $4 }'
}

# The stores and the directory to compare with lie on tmpfs, if there is enough of it.
shelf=/dev/shm
medium=tmpfs
if [ ! -d $shelf ] || [ ! -w $shelf ] || [ "$(free_kib $shelf)" -lt 3000000 ]; then
    shelf=$work
    medium="$(df -P "$work" | awk 'NR == 2 { print $1 }')"
    say "demo: /dev/shm has less than 3 GB free; the stores lie in $work instead"
fi
fast=$(mktemp -d "$shelf/tabane-demo-XXXXXX")
budget=$(($(free_kib "$shelf") / 4))

tree=
for candidate in ${DEMO_TREE:-/usr/share /usr/include /usr/lib/python3 /usr/share/doc}; do
    [ -d "$candidate" ] || continue
    size=$(du -sk "$candidate" 2>/dev/null | cut -f1)
    count=$(find "$candidate" -type f 2>/dev/null | head -n 1000 | wc -l)
    if [ "$size" -le "$budget" ] && { [ "$count" -ge 1000 ] || [ -n "${DEMO_TREE:-}" ]; }; then
        tree=$candidate
        break
    fi
done
if [ -z "$tree" ]; then
    say "demo: no tree of thousands of files that fits was found; name one: make demo DEMO_TREE=/path"
    exit 1
fi
name=$(basename "$tree")

say "demo: starting $servers servers"
export TABANE_JOB=demo
timed "$tabane" up --servers $servers --run-directory "$run" --dir "$fast/stores" --record "$work/record.db" >&2
row "start $servers servers" "$seconds"
export TABANE_CLUSTER="$run"

say "demo: copying $tree in"
partly=
timed "$tabane" cp -r "$tree" :/ || partly=" (some could not be read)"
files=$("$tabane" find "/$name" -type f -count)
row "copy $tree in" "$seconds, $files files$partly"

timed "$tabane" find "/$name" -name '*a*' -type f -count >"$work/found"
row "find names with an a, all servers" "$seconds, $(cat "$work/found") files"

say "demo: copying it out again"
timed "$tabane" cp -r ":/$name" "$fast/back"
row "copy it out again" "$seconds"

say "demo: comparing"
"$tabane" checksum -r ":/$name" >"$work/inside"
(cd "$tree" && "$tabane" checksum -r .) >"$work/original" || true
sed 's|  \./|  |' "$work/original" >"$work/original.plain"
"$tabane" checksum -r "$fast/back" >"$work/back"
if cmp -s "$work/inside" "$work/original.plain" && cmp -s "$work/inside" "$work/back"; then
    row "SHA-256 of all files" "equal: original, inside, copied out"
else
    row "SHA-256 of all files" "DIFFER"
    say "demo: the trees differ; first differences:"
    diff "$work/original.plain" "$work/inside" | head -n 5 >&2 || true
    diff "$work/inside" "$work/back" | head -n 5 >&2 || true
    exit 1
fi
rm -rf "$fast/back"
timed "$tabane" rm -r "/$name"
row "remove it" "$seconds"
row "space used on all servers then" "$("$tabane" df -h | awk '$1 == "all" { print $3 }')"

say "demo: stopping"
timed "$tabane" down --run-directory "$run"
row "stop $servers servers" "$seconds"
unset TABANE_CLUSTER TABANE_JOB
"$programs/tabane-report" advice demo "$work/record.db" >"$work/advice"
row "advice by what the servers counted" "$(sed -n '/^[a-z-]*: /p; /^no/p' "$work/advice" | paste -sd ';' -)"

say "demo: benchmarks, Tabane (2 servers, 2 processes) and $medium in turns"
mkdir "$fast/plain"
"$bench" --servers 2 --procs 2 --store "memory:$fast/bench" --compare "posix:$fast/plain" --block-size 256MiB \
    --files 10000 ior-easy ior-hard mdtest-easy mdtest-hard find >"$work/results" 2>"$work/bench.log" || {
    cat "$work/bench.log" >&2
    exit 1
}

printf '\n%-34s %s\n' step result
printf '%-34s %s\n' ---------------------------------- ------------------------------------
cat "$table"
printf '\n%-14s %-8s %14s %14s %10s\n' benchmark phase Tabane "$medium" ratio
printf '%-14s %-8s %14s %14s %10s\n' -------------- -------- -------------- -------------- ----------
awk '
    function field(name,   rest) {
        rest = $0
        if (!sub(".*\"" name "\":\"?", "", rest)) return ""
        sub("[\",}].*", "", rest)
        return rest
    }
    {
        key = sprintf("%-14s %-8s", field("bench"), field("phase"))
        rate = field("mib_per_s")
        unit = "MiB/s"
        if (rate == "") { rate = field("ops_per_s"); unit = "ops/s" }
        if (!(key in units)) order[++count] = key
        units[key] = unit
        if (field("target") == "tabane") ours[key] = rate; else plain[key] = rate
    }
    END {
        for (i = 1; i <= count; i++) {
            key = order[i]
            printf "%s %8.0f %s %8.0f %s %10.2f\n", key, ours[key], units[key], plain[key], units[key], \
                ours[key] / plain[key]
        }
    }' "$work/results"
