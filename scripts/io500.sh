#!/bin/sh
# The official IO500 benchmark over libchfs, over a mount, and on a local directory beside them, in one run.
# Usage: io500.sh DIRECTORY-WITH-PROGRAMS --sources DIR [--seconds N] [--procs N] [--servers N] [--size SIZE]
#                 [--beside DIR] [--build DIR] [--keep DIR]
#   --sources  has checkouts of io500 (github.com/IO500/io500), and of ior and pfind, which io500/prepare.sh names;
#              nothing is fetched. Built are copies.
#   --seconds  of each phase that writes (30); the official rules ask for 300
#   --size     of the store of each server (2G): a quarter of all of them is written by each phase of bytes at most
#   --beside   the same on a directory of this machine (/dev/shm); a directory of its own is made there, and removed
#   --build    where IOR, pfind and io500 are built, and kept for the next run (else they are removed)
#   --keep     where the official results go (else they are removed)
# Takes mpich, automake, pkg-config and make. Prints a table, and what the official check says of each run: the exit
# status is 1 where that is more than that the time was short.
set -eu

say() {
    echo "io500.sh: $*" >&2
}

usage() {
    say "$*"
    sed -n 's/^# //p' "$0" | sed -n '2,3p' >&2
    exit 2
}

[ $# -gt 0 ] || usage "the directory with the programs is missing"
for file in tabane tabane-bench libchfs.so libtabane.so; do
    [ -e "$1/$file" ] || usage "$1: there is no $file here; build it with 'make'"
done
programs=$(cd "$1" && pwd)
shift
sources= seconds=30 procs=2 servers=2 size=2G beside=/dev/shm build= keep=
while [ $# -gt 0 ]; do
    [ $# -gt 1 ] || usage "$1: a value is missing, or it is no option"
    case $1 in
    --sources) sources=$2 ;;
    --seconds | --procs | --servers)
        case $2 in '' | 0* | *[!0-9]*) usage "$1 $2: a number from 1 on is wanted" ;; esac
        eval "${1#--}=$2"
        ;;
    --size) size=$2 ;;
    --beside) beside=$2 ;;
    --build) build=$2 ;;
    --keep) keep=$2 ;;
    *) usage "$1: no such option" ;;
    esac
    shift 2
done
case ${size%[MG]} in
'' | 0* | *[!0-9]* | "$size") usage "--size $size: a whole number with M or G is wanted" ;;
esac
case $size in
*G) bytes=$((${size%G} * 1073741824)) ;;
*M) bytes=$((${size%M} * 1048576)) ;;
esac
# What each process may write in a phase, so that everything fits that is there at once.
quarter=$((bytes * servers / 4 / procs))
[ $quarter -ge 2097152 ] || usage "--size $size: too small for $procs processes, which write 2 MiB each at least"
[ -d "$beside" ] || usage "--beside $beside: there is no such directory"
[ "$(df -Pk "$beside" | awk 'NR == 2 { print $4 }')" -ge $((bytes / 1024 * servers)) ] ||
    usage "--beside $beside: has less room than the stores, $servers of $size; ask for less with --size"
[ -n "$sources" ] || usage "--sources is missing: a directory with checkouts of io500, ior and pfind"
for part in io500/src/phase_find.c ior/bootstrap pfind/compile.sh; do
    [ -e "$sources/$part" ] ||
        usage "$sources/$part is missing: clone IO500/io500, hpc/ior and VI4IO/pfind of github.com there"
done
for tool in mpicc mpirun autoreconf pkg-config make awk; do
    command -v "$tool" >/dev/null || usage "$tool is missing: install mpich, automake, pkg-config and make"
done
sources=$(cd "$sources" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)

work=$(mktemp -d "${TMPDIR:-/tmp}/tabane-io500-XXXXXX")
own=
running=
clean_up() {
    trap '' INT TERM HUP PIPE
    [ -z "$running" ] || { kill "$running" 2>/dev/null && wait "$running" || true; }
    "$programs/tabane" umount --cluster "$work/run" --force "$work/mount" >/dev/null 2>&1 || true
    "$programs/tabane" down --run-directory "$work/run" >/dev/null 2>&1 || true
    [ -z "$own" ] || rm -rf "$own"
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
trap 'exit 141' PIPE
own=$(mktemp -d "$(cd "$beside" && pwd)/tabane-io500-XXXXXX")

if [ -z "$build" ]; then
    build=$work
else
    mkdir -p "$build"
    build=$(cd "$build" && pwd)
fi
# The interface of CHFS as an installation has it, of the programs that are measured.
PREFIX=$build/prefix PROGRAMS=$programs LIBRARIES=$programs VERSION=$(sh "$root/scripts/version.sh") \
    sh "$root/scripts/install.sh" install
build_all() {
    rm -rf "$build/io500"
    cp -r "$sources/io500" "$build/io500"
    mkdir -p "$build/io500/build" "$build/io500/bin"
    cp -r "$sources/ior" "$sources/pfind" "$build/io500/build/"
    cd "$build/io500/build/ior"
    ./bootstrap
    PKG_CONFIG_PATH=$build/prefix/lib/pkgconfig ./configure "--prefix=$build/io500"
    make -C src install
    grep -q 'define USE_CHFS_AIORI' src/config.h || { echo "IOR was built without CHFS" >&2; return 1; }
    cd ../pfind
    sh -c 'bash ./compile.sh'
    cd "$build/io500"
    # A debugging allocator, which need not be there.
    sed -i 's/ -lefence//' Makefile
    make
}
(cd "$sources" && find io500 ior pfind -name .git -prune -o -type f -print | LC_ALL=C sort | xargs -d '\n' cksum) \
    >"$work/sources"
if ! cmp -s "$work/sources" "$build/sources" || [ ! -x "$build/io500/io500" ]; then
    say "building IOR, pfind and io500"
    (build_all) >"$work/build.log" 2>&1 || {
        tail -n 20 "$work/build.log" >&2
        say "building failed; above are the last lines"
        exit 1
    }
    cp "$work/sources" "$build/sources"
fi

# io500 asks a script for the phase find, which says "MATCHED found/all" in its last line. It is given
# DIRECTORY -newer FILE -size 3901c -name "*01*", FILE being one of this machine.
cat >"$work/find" <<EOF
#!/bin/sh
export TABANE_CLUSTER=$work/run
directory=\$1
shift
found=\$("$programs/tabane" find "\$directory" "\$@" -count) || exit 1
all=\$("$programs/tabane" find "\$directory" -count) || exit 1
echo "MATCHED \$found/\$all"
EOF
chmod +x "$work/find"

# Memory that a virtual machine has not touched before is many times slower: before each run nearly as much as the
# stores hold is written to where it will be, and removed, as tabane-bench does. Each run over servers has new ones.
zeros() {
    head -c $((bytes / 16 * 15 * servers)) /dev/zero
}
start() {
    "$programs/tabane" up --servers "$servers" --run-directory "$work/run" --store "memory:size=$size" "$@" \
        >/dev/null 2>"$work/up.log" || {
        cat "$work/up.log" >&2
        exit 1
    }
    zeros | "$programs/tabane" put --cluster "$work/run" :/zeros
    "$programs/tabane" rm --cluster "$work/run" /zeros
}
stop() {
    "$programs/tabane" down --run-directory "$work/run" >/dev/null
}
run() {
    name=$1 api=$2 directory=$3 external=$4
    say "$name"
    cat >"$work/$name.ini" <<EOF
[global]
datadir = $directory
resultdir = $work/results/$name
timestamp-datadir = FALSE
timestamp-resultdir = FALSE
api = $api
[debug]
stonewall-time = $seconds
[ior-easy]
blockSize = $((quarter / 2097152 * 2))m
[ior-hard]
segmentCount = $((quarter / 47008))
[mdtest-easy]
n = 1000000
[mdtest-hard]
n = $((quarter / 8192))
[find]
nproc = 1
$external
EOF
    mkdir -p "$work/results/$name"
    # In the background, because a shell hears of a signal only when what it waits for in the foreground has ended.
    (
        cd "$build/io500"
        export LD_LIBRARY_PATH="$build/prefix/lib" CHFS_SERVER="$work/run" TABANE_CLUSTER="$work/run"
        exec mpirun -np "$procs" ./io500 "$work/$name.ini" </dev/null
    ) >"$work/$name.log" 2>&1 &
    running=$!
    wait "$running" || {
        running=
        tail -n 20 "$work/$name.log" >&2
        say "$name: io500 failed; above are the last lines; if no room is left, give a larger --size"
        exit 1
    }
    running=
}
mkdir "$work/mount"
start
run libchfs CHFS /chfs "external-script = $work/find"
stop
start --mount "$work/mount"
run mount POSIX "$work/mount/data" ""
stop
zeros >"$own/zeros"
rm "$own/zeros"
run beside POSIX "$own/data" ""

# Lines as "[RESULT]       ior-easy-write        1.234567 GiB/s : time 3.000 seconds [INVALID]".
for name in libchfs mount beside; do
    sed -n 's/^\[RESULT\] *\([^ ]*\) *\([0-9.]*\) \([^ ]*\) .*/\1 \2 \3/p' \
        "$work/results/$name/result_summary.txt" >"$work/$name.table"
done
awk -v beside="$beside" '
    FNR == 1 { column++ }
    { value[$1, column] = $2; unit[$1] = $3; if (!($1 in seen)) { seen[$1] = 1; order[++count] = $1 } }
    END {
        head = "%-22s %-8s %12s %12s %12s %10s %10s\n"
        printf head, "phase", "unit", "libchfs", "mount", "beside", "libchfs/", "mount/"
        for (i = 1; i <= count; i++) {
            phase = order[i]
            other = value[phase, 3]
            printf "%-22s %-8s %12s %12s %12s", phase, unit[phase], value[phase, 1], value[phase, 2], other
            for (c = 1; c <= 2; c++)
                if (other > 0) printf " %10.2f", value[phase, c] / other
                else printf " %10s", "-"
            print ""
        }
        print "\nbeside: " beside
    }' "$work/libchfs.table" "$work/mount.table" "$work/beside.table"
# What a result says of itself, phase by phase, without that the time is shorter than the rules ask for.
reasons() {
    awk '
        /^\[/ { phase = $0; gsub(/[][]/, "", phase) }
        sub(/^; ERROR INVALID /, "") && !/^stonewall-time|^Runtime is smaller than/ { print phase ": " $0 }' "$1"
}
more=0
for name in libchfs mount beside; do
    result=$work/results/$name/result.txt
    echo
    echo "$name: $(sed -n 's/^\[SCORE \] *//p' "$work/results/$name/result_summary.txt")"
    "$build/io500/io500-verify" "$work/$name.ini" "$result" >"$work/verified" 2>&1 || true
    reasons "$result" >"$work/reasons"
    # Phases that had written all that they may, for which the check has two complaints each.
    ended=$(sed -n 's/: Runtime of phase .* below stonewall.*//p' "$work/reasons" | tr '\n' ' ')
    grep -v ': Runtime of phase \|: Write phase needed' "$work/reasons" >"$work/others" || true
    grep -q '^\[OK\]' "$work/verified" || cat "$work/verified" >>"$work/others"
    if [ -s "$work/others" ]; then
        more=1
        echo "the official check finds more than that the time is short:"
        sed 's/^/  /' "$work/others"
    elif grep -q '^\[OK\]$' "$work/verified"; then
        echo "the official check finds the run valid"
    else
        echo "the official check finds that the time is short, and nothing else"
    fi
    [ -z "$ended" ] || echo "  all written before $seconds s (a larger --size, or fewer --seconds): $ended"
done
if [ -n "$keep" ]; then
    mkdir -p "$keep"
    for name in libchfs mount beside; do cp -r "$work/results/$name" "$work/$name.ini" "$work/$name.log" "$keep/"; done
fi
exit $more
