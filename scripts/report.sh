#!/bin/sh
# tabane-report with a real PostgreSQL: what is imported, recorded and thinned there is answered as from a file, byte by
# byte; two who write at once, another program's schema and a server that is away are met with words. Installs what is
# missing (Debian: postgresql). Usage: report.sh DIRECTORY-WITH-PROGRAMS. Not part of .ci/run.
set -eu

if [ "${TABANE_PLACE:-}" = "" ]; then
    command -v pg_virtualenv >/dev/null ||
        apt-get install -y -qq --no-install-recommends postgresql postgresql-common >/dev/null
    # It goes with all databases when the script ends. Its server does not run as root.
    exec pg_virtualenv env TABANE_PLACE=given sh "$0" "$(cd "$1" && pwd)"
fi

programs=$1
report=$programs/tabane-report
tabane=$programs/tabane
scripts=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/tabane-report-XXXXXX")
run=$work/run
clean_up() {
    [ ! -d "$run" ] || "$tabane" down --run-directory "$run" >/dev/null 2>&1 || true
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
