#!/bin/sh
# Makes tabane-VERSION-MACHINE-linux.tar.gz of what build.sh left: programs that need no library, the two C libraries,
# which need glibc, and everything else that `make install` installs. It works wherever it is unpacked.
# Usage: tarball.sh BUILD-DIRECTORY OUTPUT-DIRECTORY
set -eu
sources=$(cd "$(dirname "$0")/.." && pwd)
built=$(cd "$1" && pwd)
output=$(cd "$2" && pwd)
cd "$sources"

machine=$(rustc -vV | sed -n 's/^host: \([^-]*\)-.*/\1/p')
version=$(sh scripts/version.sh)
moment=$(sh scripts/revision.sh --epoch)
programs=$built/$machine-unknown-linux-musl/release
libraries=$built/$machine-unknown-linux-gnu/release
for program in tabane tabane-bench tabane-report; do
    if readelf -d "$programs/$program" | grep -q NEEDED; then
        echo "tarball: $programs/$program needs libraries: $(readelf -d "$programs/$program" | grep NEEDED)" >&2
        exit 1
    fi
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022
name=tabane-$version-$machine-linux
PREFIX=/$name DESTDIR=$work PROGRAMS=$programs LIBRARIES=$libraries VERSION=$version WITHOUT_LIST=1 RELOCATABLE=1 \
    sh scripts/install.sh install
install -m 644 LICENSE README.md CHANGELOG.md "$work/$name/"
glibc=$(readelf -V "$libraries/libtabane.so" "$libraries/libchfs.so" |
    sed -n 's/.*Name: GLIBC_\([0-9.]*\).*/\1/p' | sort -V | tail -n 1)
cat >"$work/$name/VERSION" <<END
$version
$(sh scripts/revision.sh)
bin/tabane, bin/tabane-bench and bin/tabane-report need no library. libtabane.so and libchfs.so need \
glibc $glibc or later.
MPI-IO is built for the MPI at hand: make -C share/tabane/mpiio MPICC=mpicc
END
tar --create --directory "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$moment" \
    --format=gnu "$name" |
    gzip -9n >"$output/$name.tar.gz"
echo "$output/$name.tar.gz"
