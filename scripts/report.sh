#!/bin/sh
# tabane-report with a real PostgreSQL: what is imported, recorded and thinned there is answered as from a file, byte by
# byte; two who write at once, another program's schema and a server that is away are met with words. Then logs of
# Darshan: PyDarshan's examples, and one of a program over a mount. Installs what is missing (Debian: postgresql,
# python3-venv; PyPI: darshan). Usage: report.sh DIRECTORY-WITH-PROGRAMS [DARSHAN-SOURCES]; the sources are those of
# Darshan (https://github.com/darshan-hpc/darshan), whose runtime no registry has. Not part of .ci/run.
set -eu

if [ "${TABANE_PLACE:-}" = "" ]; then
    command -v pg_virtualenv >/dev/null ||
        apt-get install -y -qq --no-install-recommends postgresql postgresql-common >/dev/null
    # It goes with all databases when the script ends. Its server does not run as root.
    exec pg_virtualenv env TABANE_PLACE=given sh "$0" "$(cd "$1" && pwd)" ${2:+"$(cd "$2" && pwd)"}
fi

programs=$1
sources=${2:-}
report=$programs/tabane-report
tabane=$programs/tabane
scripts=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/tabane-report-XXXXXX")
run=$work/run
clean_up() {
    [ ! -d "$run" ] || "$tabane" down --run-directory "$run" --discard >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap clean_up EXIT
cd "$work"
export TZ=UTC
place="postgresql:///postgres"

same() {
    what=$1
    shift
    "$report" "$@" >one 2>&1 || { cat one; echo "report.sh: $what: failed" >&2; exit 1; }
    for argument do
        shift
        [ "$argument" != site.db ] || argument=$place
        set -- "$@" "$argument"
    done
    rm -rf made.one
    [ ! -e out ] || mv out made.one
    "$report" "$@" >two 2>&1 || { cat two; echo "report.sh: $what: failed with PostgreSQL" >&2; exit 1; }
    sed "s|$place|site.db|g" two >two.named
    diff one two.named || { echo "report.sh: $what: differs" >&2; exit 1; }
    [ ! -e out ] || diff -r out made.one || { echo "report.sh: $what: what is written differs" >&2; exit 1; }
    rm -rf out made.one
}

refused() {
    wanted=$1
    shift
    if "$report" "$@" >said 2>&1; then
        echo "report.sh: $*: not refused" >&2
        exit 1
    fi
    grep -q -e "$wanted" said || { echo "report.sh: $*: says $(cat said), not $wanted" >&2; exit 1; }
}

refused "nothing was imported into it yet" job 4711 "$place"
python3 -B "$scripts/../examples/lustre_logs.py" logs
head -c 100000 logs/oss1.log >cut.log
same "an import" import site.db --jobs logs/jobs.txt --nodes logs/nodes.csv
same "a log that is cut" import site.db --lustre oss1=cut.log
same "logs" import site.db --lustre logs/oss1.log logs/oss2.log logs/oss3.log logs/oss4.log
same "the same again" import site.db --jobs logs/jobs.txt --lustre logs/oss1.log --clock-offset oss2=3
same "a job" job 4711 site.db --interval 60 --csv out
same "a heat map" job 4711 site.db --congested-from 4 --map machine --heat-map out
same "neighbours" neighbours 4711 site.db --csv out
same "advice" advice 4711 site.db
same "a report" html 4711 site.db --output out
same "two jobs" compare 4711 4712 site.db --csv out
same "runs" history ior site.db --csv out
same "events" events site.db
same "thinning" thin site.db --older 0.001 --every 300 --servers 'oss[12]'
same "thinning some" thin site.db --older 0.001 --every 300 --servers 'oss*'
same "a job of what is left" job 4711 site.db --csv out
refused "there is no job x" job x "$place"

# Two who write at once take turns, and nothing of either is lost.
for number in 5 6 7 8 9 10 11 12; do
    "$report" import "$place" --lustre "logs/oss$number.log" 2>"import.$number" &
    echo $! >>writers
done
while read -r writer; do
    wait "$writer"
done <writers
"$report" import site.db --lustre logs/oss5.log logs/oss6.log logs/oss7.log logs/oss8.log logs/oss9.log logs/oss10.log \
    logs/oss11.log logs/oss12.log 2>/dev/null
same "what several have written" job 4711 site.db --csv out
same "what they have left out" events site.db

# A cluster that is recorded there.
TABANE_JOB=42 "$tabane" up --servers 2 --run-directory "$run" --dir "$work/stores" --record "$place" >up
grep -q "recording in $place as job 42" up
seq 100000 | TABANE_JOB=42 "$tabane" put /numbers --cluster "$run"
"$tabane" down --run-directory "$run" >down
grep -q "recorded in $place" down
"$report" job 42 "$place" >said
grep -q "wrote 575.1 KiB (588,895 bytes)" said || { cat said; echo "report.sh: what was recorded differs" >&2; exit 1; }

# What can't be.
refused "PGPASSWORD" job 42 "postgresql://somebody:secret@localhost/postgres"
refused "is no kind of place" job 42 "mysql://localhost/x"
refused "there is no such\|does not exist" job 42 "postgresql:///another"
refused "refused" job 42 "postgresql://127.0.0.1:1/postgres"
psql -q -d postgres -c "UPDATE tabane_report.schema_version SET version = 99"
refused "its schema is version 99" job 42 "$place"
psql -q -d postgres -c "DROP SCHEMA tabane_report CASCADE; CREATE SCHEMA tabane_report" 2>/dev/null
refused "is another program's" import "$place" --jobs logs/jobs.txt
echo "places in PostgreSQL answer as files do"

# Logs of Darshan. PyDarshan brings some of several versions, and what reads them.
python3 -m venv python
python/bin/pip install --quiet darshan
PATH=$work/python/bin:$PATH
examples=$(python -c 'import darshan, os; print(os.path.dirname(darshan.__file__))')/examples/example_logs
printf 'id,start,end,nodes\n7,2026-11-25T10:00:00Z,2026-11-25T10:10:00Z,n1\n' >jobs.csv
printf 'node,io_server\nn1,oss1\n' >nodes.csv
"$report" import darshan.db --jobs jobs.csv --nodes nodes.csv 2>/dev/null
# What PyDarshan's own sums say of a log, in our words.
cat >sums.py <<'END'
import sys
import darshan

log = darshan.DarshanReport(sys.argv[1], read_all=False)
for module, prefix in ("POSIX", "POSIX"), ("MPI-IO", "MPIIO"), ("STDIO", "STDIO"):
    if module not in log.modules:
        continue
    log.mod_read_all_records(module)
    counters = log.records[module].to_df()["counters"]
    sums = [counters[f"{prefix}_BYTES_{what}"].clip(lower=0).sum() for what in ("READ", "WRITTEN")]
    for value, word in zip(sums, ("read", "wrote")):
        unit = 0
        while value >= 1024 and unit < 5:
            value, unit = value / 1024, unit + 1
        print(f"{module}: {word} " + (f"{value:.1f} {'B KiB MiB GiB TiB PiB'.split()[unit]}" if unit else f"{value} B"))
END
count=0
for log in "$examples"/*.darshan; do
    "$report" job 7 darshan.db --darshan "$log" >said
    python sums.py "$log" >sums 2>warned || { cat warned; echo "report.sh: PyDarshan fails" >&2; exit 1; }
    sed 's/\(: read [^ ]* [^ ]*\) in .*, \(wrote [^ ]* [^ ]*\) in .*/\1, \2/' said >shortened
    while IFS=: read -r module sum; do
        grep -q "  $module:.*$sum" shortened || { cat said; echo "report.sh: $log: not $module:$sum" >&2; exit 1; }
        count=$((count + 1))
    done <sums
done
[ "$count" -ge 20 ] || { echo "report.sh: only $count sums of PyDarshan's examples were compared" >&2; exit 1; }
head -c 400000 "$examples/sample-badost.darshan" >cut.darshan
refused "can't read all of it" job 7 darshan.db --darshan cut.darshan
echo "$count sums of PyDarshan's examples are the same"

if [ "$sources" = "" ]; then
    echo "NOT RUN: Darshan's runtime over a mount, as its sources were not given" >&2
    exit 0
fi
for tool in autoconf automake libtoolize make gcc; do
    command -v $tool >/dev/null || apt-get install -y -qq autoconf automake libtool make gcc zlib1g-dev >/dev/null
done
cp -r "$sources" darshan
(
    cd darshan
    [ -x darshan-runtime/configure ] || ./prepare.sh
    mkdir built
    cd built
    ../darshan-runtime/configure --prefix="$work/runtime" --without-mpi --with-log-path="$work/darshan-logs" \
        --with-jobid-env=TABANE_JOB
    make -j2
    make install
) >runtime.log 2>&1 || { tail -20 runtime.log; echo "report.sh: Darshan's runtime can't be built" >&2; exit 1; }
for day in today tomorrow; do
    mkdir -p "darshan-logs/$(date -d $day +%Y/%-m/%-d)"
done
mkdir mount
TABANE_JOB=43 "$tabane" up --servers 2 --run-directory "$run" --dir "$work/stores" --record mount.db --mount mount >up
cat >program.py <<'END'
import os
import sys

file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)
for _ in range(1000):
    os.write(file, bytes(5000))
os.fsync(file)
os.lseek(file, 0, 0)
for _ in range(500):
    assert len(os.read(file, 4000)) == 4000
os.close(file)
END
TABANE_JOB=43 DARSHAN_ENABLE_NONMPI=1 LD_PRELOAD="$work/runtime/lib/libdarshan.so" python3 program.py mount/out 2>warned
"$tabane" down --run-directory "$run" >down
log=$(find darshan-logs -name '*python3*.darshan' | head -1)
"$report" job 43 mount.db --darshan "$log" >said || { cat warned; exit 1; }
# What the program wrote, by its log and by the servers; the program read it from what its kernel keeps or from them.
for words in "POSIX: read 1.9 MiB in .* wrote 4.8 MiB in " "wrote 4.8 MiB (5,000,000 bytes)"; do
    grep -q "$words" said || { cat said; echo "report.sh: Darshan over a mount: not $words" >&2; exit 1; }
done
! grep -q "by its own words\|another time" said || { cat said; echo "report.sh: it is of this job" >&2; exit 1; }
echo "Darshan's runtime over a mount tells what the servers counted"
