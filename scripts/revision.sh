#!/bin/sh
# Prints which state of the sources this is: "COMMIT DATE", with "-dirty" behind the commit if files differ from it.
# From the repository, else from .revision as `git archive` has filled it in. Without either only the day of
# SOURCE_DATE_EPOCH, or nothing. With --epoch it prints the same moment as seconds, as packages date their files by it.
set -eu
cd "$(dirname "$0")/.."

if [ -e .git ] && commit=$(git rev-parse HEAD 2>/dev/null); then
    seconds=$(git log -1 --format=%ct)
    [ -z "$(git status --porcelain 2>/dev/null)" ] || dirty=-dirty
else
    read -r commit seconds <.revision || true
    case $commit in
    *Format*) commit='' seconds='' ;;
    esac
fi
seconds=${SOURCE_DATE_EPOCH:-$seconds}
if [ "${1:-}" = --epoch ]; then
    echo "${seconds:-0}"
    exit
fi
short=$(printf '%.12s' "$commit")
words="$short${dirty:-}"
[ -z "$seconds" ] || words="$words${words:+ }$(date -u -d "@$seconds" +%Y-%m-%d)"
printf '%s\n' "$words"
