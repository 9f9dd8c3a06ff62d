#!/bin/sh
# Sees to the programs that judge a mount: public test suites, and ordinary programs that the tests use.
# Usage: tools.sh DIRECTORY      pjdfstest and fsx are built into DIRECTORY/bin once, and found there afterwards.
set -eu

place=$1
pjdfstest_version=0.2.2
fsx_version=0.3.2

missing=
for pair in fio:fio stress-ng:stress-ng sqlite3:sqlite3 git:git rsync:rsync make:make cc:gcc tar:tar python3:python3 \
    fusermount3:fuse3 setfattr:attr flock:util-linux; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair##*:}"
done
if [ -n "$missing" ]; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "suites: these are missing, and this is no Debian or Ubuntu: install$missing by other means" >&2
        exit 1
    fi
    as_root=
    [ "$(id -u)" -eq 0 ] || as_root=sudo
    echo "suites: installing$missing"
    $as_root apt-get update -q
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
fi

# They only make system calls: light optimisation halves the time of the build and costs them nothing.
install_program() {
    if [ "$("$place/bin/$1" --version 2>/dev/null)" != "$1 $2" ]; then
        echo "suites: building $1 $2"
        env -u RUSTFLAGS CARGO_TARGET_DIR="$place/build" CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
            CARGO_PROFILE_RELEASE_LTO=off cargo install --quiet --locked --force --root "$place" --version "$2" "$1"
    fi
}
mkdir -p "$place"
place=$(cd "$place" && pwd)
PATH=$place/bin:$PATH
install_program pjdfstest $pjdfstest_version
install_program fsx $fsx_version
rm -rf "$place/build"
