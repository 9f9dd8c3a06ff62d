#!/bin/sh
# The live page and the report of a run in a headless browser: numbers, keyboard, light and dark, narrow and wide, no
# error and no request elsewhere; and the live page of 1,000 servers for a minute, or so many MINUTES: what an update
# takes of the page's thread, and how its memory grows. Installs what is missing (Debian: chromium; npm:
# playwright-core, into a directory that goes again). Usage: report-page.sh DIRECTORY-WITH-PROGRAMS. Not part of
# .ci/run, for it measures times.
set -eu

programs=$(cd "$1" && pwd)
scripts=$(cd "$(dirname "$0")" && pwd)
command -v chromium >/dev/null || apt-get install -y -qq --no-install-recommends chromium >/dev/null
work=$(mktemp -d "${TMPDIR:-/tmp}/tabane-page-XXXXXX")
watch=
crowd=
clean_up() {
    [ -z "$crowd" ] || kill "$crowd" 2>/dev/null || true
    [ -z "$watch" ] || kill "$watch" 2>/dev/null || true
    "$programs/tabane" down --run-directory "$work/run" >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap clean_up EXIT
cp "$scripts/report-page.mjs" "$scripts/crowded-page.mjs" "$work"
cd "$work"
npm install --silent --no-fund --no-audit playwright-core

"$programs/tabane" up --servers 3 --store memory:size=64M --run-directory run >/dev/null
TABANE_CLUSTER=$work/run
export TABANE_CLUSTER
"$programs/tabane" watch --web >url &
watch=$!
seq 200000 | "$programs/tabane" put /numbers
served() {
    tries=0
    until grep -q '^http' "$1"; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || { echo "report-page.sh: no page is served" >&2; exit 1; }
        sleep 0.1
    done
}
served url
"$programs/tabane-report" record --cluster "$work/run" --tabane "$programs/tabane" --whole --runs 1 --report report.html
node report-page.mjs "$(command -v chromium)" "$(head -n 1 url)" report.html
kill "$watch"
watch=
"$programs/tabane-report" watch --tabane "$scripts/stand-ins/many-servers" >crowd.url &
crowd=$!
served crowd.url
node crowded-page.mjs "$(command -v chromium)" "$(head -n 1 crowd.url)" "${MINUTES:-1}"
