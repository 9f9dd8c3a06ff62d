#!/bin/sh
# A cluster over GlusterFS: sh scripts/gluster.sh PROGRAMS
#
# Makes a volume of two bricks in memory, mounts it, and works over it: stages, compares, changes what is there on a
# mount (bytes, names, directories that are moved, extended attributes), carries that back, lets somebody else change
# something, and compares both sides. As root, on Debian or Ubuntu; glusterfs-server is installed if it is missing.
# Ends the daemon that it starts, and nothing else. Takes half a minute. Exit status 1: something was not as it ought
# to be.
set -eu

fail() {
    echo "gluster.sh: $*" >&2
    exit 1
}

[ $# -eq 1 ] && [ -x "$1/tabane" ] || fail "usage: sh scripts/gluster.sh PROGRAMS, a directory with tabane in it"
[ "$(id -u)" = 0 ] || fail "a volume is mounted, which takes root"
tabane=$(realpath "$1")/tabane
cd "$(dirname "$0")/.."
command -v glusterd >/dev/null || {
    echo "installs glusterfs-server"
    apt-get install -y -qq glusterfs-server >/dev/null 2>&1 || {
        apt-get update -qq && apt-get install -y -qq glusterfs-server >/dev/null
    }
}

work=$(mktemp -d /dev/shm/tabane-gluster-XXXXXX)
volume=${work##*/}
site=$work/site here=$work/here
export TABANE_CLUSTER="$work/run"
daemon=

clean() {
    "$tabane" down --discard >/dev/null 2>&1 || true
    # Servers close what they have open there as they end.
    for try in 1 2 3 4 5; do
        ! mountpoint -q "$site" || umount "$site" 2>/dev/null || sleep 1
    done
    gluster --mode=script volume stop "$volume" force >/dev/null 2>&1 || true
    gluster --mode=script volume delete "$volume" >/dev/null 2>&1 || true
    # What it runs when a volume is deleted asks it.
    [ -z "$daemon" ] || { sleep 2 && kill "$daemon" 2>/dev/null; } || true
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 1' INT TERM

if ! timeout 10 gluster --mode=script volume list >/dev/null 2>&1; then
    glusterd --pid-file="$work/glusterd.pid"
    daemon=$(cat "$work/glusterd.pid")
fi
mkdir "$work/one" "$work/two" "$work/stores" "$site" "$here"
host=$(hostname)
for try in 1 2 3 4 5; do
    gluster --mode=script volume create "$volume" "$host:$work/one" "$host:$work/two" force >/dev/null 2>&1 && break
    [ "$try" -lt 5 ] || fail "the volume can't be made: $(gluster volume info 2>&1 | head -n 1)"
    sleep 1
done
gluster --mode=script volume start "$volume" >/dev/null
mount -t glusterfs "$host:/$volume" "$site"

root=$site/tree
mkdir -p "$root/moved/deep" "$root/many"
for number in $(seq 200); do
    echo "file $number" >"$root/many/$number"
done
head -c 20000000 /dev/urandom >"$root/moved/deep/large"
cp -r docs "$root/docs"
setfattr -n user.key -v value "$root/many/1" 2>/dev/null || python3 -c '
import os, sys
os.setxattr(sys.argv[1], "user.key", b"value")' "$root/many/1"

"$tabane" up --servers 2 --store "memory:$work/stores,size=256M" --backing "$root" --flush manual --backing-check 1 \
    --run-directory "$TABANE_CLUSTER" --mount "$here" >/dev/null
"$tabane" stage :/
diff -r "$here" "$root" || fail "both sides are not the same at the beginning"
[ "$(python3 -c 'import os, sys; print(os.getxattr(sys.argv[1], "user.key"))' "$here/many/1")" = "b'value'" ] ||
    fail "an extended attribute is not shown"
"$tabane" df

cp -r crates/wire "$here/new"
mv "$here/moved" "$here/docs/there"
mv "$here/docs" "$here/manual"
mv "$here/many/2" "$here/renamed"
rm "$here/many/3"
echo more >>"$here/many/4"
truncate -s 7 "$here/many/5"
rm -r "$here/manual/pictures"
python3 -c 'import os, sys; os.setxattr(sys.argv[1], "user.new", b"here")' "$here/many/1"
"$tabane" flush --wait --verify
diff -r "$here" "$root" || fail "both sides are not the same after a flush"
cmp crates/wire/src/lib.rs "$root/new/src/lib.rs"
[ "$(python3 -c 'import os, sys; print(os.getxattr(sys.argv[1], "user.new"))' "$root/many/1")" = "b'here'" ] ||
    fail "an extended attribute was not carried back"

echo theirs >"$root/many/6"
sleep 3
[ "$(cat "$here/many/6")" = theirs ] || fail "what somebody else has changed is not seen"
"$tabane" down --verify
echo "gluster.sh: both sides are the same"
