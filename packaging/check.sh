#!/bin/sh
# Makes the packages and tries them: the Debian package is installed, used and removed on this machine (as root), the
# tarball is unpacked and used at two places. With TWICE=1 all is built once more, of an archive and in another
# directory, and has to come out the same. Usage: check.sh WORK-DIRECTORY
set -eu
sources=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
work=$(cd "$1" && pwd -P)
cd "$sources"
unset TABANE_CLUSTER CHFS_SERVER

say() {
    printf 'packages: %s\n' "$*"
}

fail() {
    printf 'packages: %s\n' "$*" >&2
    exit 1
}

# What every installation has to be able to do. Usage: use DIRECTORY-OF-PROGRAMS
use() {
    "$1/tabane" --version | grep -q "^tabane $(sh scripts/version.sh) ($(sh scripts/revision.sh))\$" ||
        fail "$1/tabane --version says $("$1/tabane" --version)"
    "$1/tabane" run --servers 2 --store memory:size=64M --run-directory "$work/run" -- sh -ec '
        "$0/tabane" cp -q -r crates/wire :/
        "$0/tabane" checksum -r :/wire >"$1/inside"
        "$0/tabane" checksum -r crates/wire >"$1/outside"
        sed "s| crates/| /|" "$1/outside" | cmp - "$1/inside" ||
            { sed "s| crates/| |" "$1/outside" | cmp - "$1/inside"; }' \
        "$1" "$work" >/dev/null
    "$1/tabane-bench" --version | grep -q '^tabane-bench '
    rm -rf "$work/logs" "$work/site.db"
    python3 -B examples/lustre_logs.py "$work/logs"
    "$1/tabane-report" import "$work/site.db" --jobs "$work/logs/jobs.txt" --lustre "$work"/logs/oss*.log 2>/dev/null
    "$1/tabane-report" job 4711 "$work/site.db" --time-zone UTC | grep -q 'wrote 163.3 GiB'
}

# Compiles both examples as a user would, and runs them. Usage: use_libraries PKG-CONFIG-DIRECTORY LIBRARY-DIRECTORY
# PROGRAMS
use_libraries() {
    PKG_CONFIG_PATH=$1
    export PKG_CONFIG_PATH
    # shellcheck disable=SC2046
    cc examples/checkpoint.c -o "$work/checkpoint" $(pkg-config --cflags --libs tabane)
    # shellcheck disable=SC2046
    cc examples/listing.c -o "$work/listing" $(pkg-config --cflags --libs chfs)
    LD_LIBRARY_PATH=$2 "$3/tabane" run --servers 2 --store memory:size=64M --run-directory "$work/run" -- \
        sh -ec '"$0/checkpoint" 2 && "$0/listing" 20' "$work" >/dev/null
    unset PKG_CONFIG_PATH
}

# MPI-IO of an installation, by MPICH. Usage: use_mpi PROGRAMS
use_mpi() {
    mpicc.mpich examples/mpiio.c -o "$work/mpiio-example"
    "$1/tabane" run --servers 2 --store memory:size=64M --run-directory "$work/run" --mpi mpich -- \
        mpiexec.hydra -n 4 "$work/mpiio-example" tabane:/file >"$work/mpi-output" 2>&1 </dev/null &&
        grep -q '^4 processes: strided, shared and atomic parts are as they were written$' "$work/mpi-output" ||
        fail "MPI-IO of $1: $(cat "$work/mpi-output")"
}

say "building"
sh packaging/build.sh "$work/package" static
mkdir -p "$work/one"
deb=$(sh packaging/deb.sh "$work/package" "$work/one")
tarball=$(sh packaging/tarball.sh "$work/package" "$work/one")
say "$(basename "$deb") $(stat -c %s "$deb") bytes, $(basename "$tarball") $(stat -c %s "$tarball") bytes"

say "the tarball, at two places"
for place in first second; do
    rm -rf "${work:?}/$place"
    mkdir "$work/$place"
    tar xzf "$tarball" -C "$work/$place"
    root=$(echo "$work/$place"/tabane-*)
    use "$root/bin"
    use_libraries "$root/lib/pkgconfig" "$root/lib" "$root/bin"
    words=$("$root/bin/tabane" run --servers 1 --mpi mpich -- true 2>&1) && fail "--mpi knows a kind that is not there"
    case $words in
        *"make -C $root/share/tabane/mpiio MPICC="*) ;;
        *) fail "--mpi does not say where its library's sources are: $words" ;;
    esac
    make --no-print-directory -C "$root/share/tabane/mpiio" MPICC=mpicc.mpich >/dev/null
    use_mpi "$root/bin"
done

say "the Debian package"
if command -v lintian >/dev/null 2>&1; then
    lintian --allow-root --no-cfg --profile debian --fail-on error,warning "$deb" || fail "lintian complains"
else
    say "lintian is not here: not asked"
fi
[ "$(id -u)" -eq 0 ] || fail "installing the Debian package takes root"
! dpkg -s tabane >/dev/null 2>&1 || fail "a package tabane is installed here already; remove it first: dpkg -r tabane"
dpkg -i "$deb" >/dev/null
trap 'dpkg -P tabane >/dev/null 2>&1 || true' EXIT
use /usr/bin
use_libraries "" "" /usr/bin
use_mpi /usr/bin
files=$(dpkg -L tabane)
dpkg -P tabane >/dev/null
trap - EXIT
for file in $files; do
    [ -d "$file" ] || [ ! -e "$file" ] || fail "$file is left behind"
done

[ "${TWICE:-0}" = 1 ] || exit 0
if [ -n "$(git status --porcelain)" ]; then
    say "the sources differ from their commit: two builds are not compared"
    exit 0
fi
say "building again, of an archive and elsewhere"
rm -rf "$work/elsewhere" "$work/again"
mkdir -p "$work/two" "$work/elsewhere"
git archive HEAD | tar x -C "$work/elsewhere"
(
    cd "$work/elsewhere"
    sh packaging/build.sh "$work/again" static
    sh packaging/deb.sh "$work/again" "$work/two" >/dev/null
    sh packaging/tarball.sh "$work/again" "$work/two" >/dev/null
)
for file in "$work"/one/*; do
    cmp "$file" "$work/two/$(basename "$file")" || fail "two builds of $(basename "$file") differ"
done
say "two builds in two directories are the same"
