#!/bin/sh
# Five minutes in one script: a cluster around some work, which is gone afterwards.
#
#     sh quick.sh          (tabane has to be in PATH)
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What a job would bring along.
mkdir "$work/input"
for number in 1 2 3; do
    seq "$number" 1000 >"$work/input/part.$number"
done

# Everything behind -- runs with a cluster in its environment; the cluster ends with it.
tabane run --servers 3 -- sh -eu -c '
    tabane cp -r "$1/input" :/
    for part in 1 2 3; do
        tabane cat ":/input/part.$part" | awk "{ sum += \$1 } END { print sum }" | tabane put ":/sum.$part"
    done
    tabane find / -name "sum.*"
    tabane cp ":/sum.1" "$1/"
' sh "$work"

echo "the sum of the first part is $(cat "$work/sum.1")"
