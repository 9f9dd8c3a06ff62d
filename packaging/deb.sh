#!/bin/sh
# Makes tabane_VERSION_ARCHITECTURE.deb of what build.sh left. Usage: deb.sh BUILD-DIRECTORY OUTPUT-DIRECTORY
set -eu
sources=$(cd "$(dirname "$0")/.." && pwd)
built=$(cd "$1" && pwd)
output=$(cd "$2" && pwd)
cd "$sources"

for tool in dpkg-deb dpkg-shlibdeps dpkg-architecture; do
    command -v $tool >/dev/null 2>&1 || {
        echo "deb: $tool is missing; as root: apt-get install dpkg-dev" >&2
        exit 1
    }
done
machine=$(rustc -vV | sed -n 's/^host: \([^-]*\)-.*/\1/p')
release=$built/$machine-unknown-linux-gnu/release
version=$(sh scripts/version.sh)
architecture=$(dpkg-architecture -qDEB_HOST_ARCH)
SOURCE_DATE_EPOCH=$(sh scripts/revision.sh --epoch)
export SOURCE_DATE_EPOCH

# As the tools of Debian take it.
maintainer="${DEBFULLNAME:-The Tabane authors} <${DEBEMAIL:-tabane@localhost.localdomain}>"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
package=$work/package
umask 022
libraries=lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
PREFIX=/usr DESTDIR=$package PROGRAMS=$release LIBRARIES=$release LIBDIR=$libraries VERSION=$version WITHOUT_LIST=1 \
    MPIIO=$built/mpiio sh scripts/install.sh install

texts=$package/usr/share/doc/tabane
mkdir -p "$texts" "$package/DEBIAN" "$package/usr/share/lintian/overrides"
{
    printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: tabane\n\n'
    printf 'Files: *\nCopyright: 2026 The Tabane authors\nLicense: Apache-2.0\n'
    printf ' On Debian systems the text of this licence is in /usr/share/common-licenses/Apache-2.0.\n'
} >"$texts/copyright"
printf 'tabane (%s) unstable; urgency=medium\n\n  * What changed is said in CHANGELOG.md.gz.\n\n -- %s  %s\n' \
    "$version" "$maintainer" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$texts/changelog.gz"
gzip -9n <CHANGELOG.md >"$texts/CHANGELOG.md.gz"
install -m 644 README.md "$texts/README.md"
install -m 644 packaging/lintian-overrides "$package/usr/share/lintian/overrides/tabane"
find "$package/usr/share/man" -type f -exec gzip -9n {} +
# Debian's place for zsh.
mv "$package/usr/share/zsh/site-functions" "$package/usr/share/zsh/vendor-completions"

# dpkg-shlibdeps wants to find a source package.
mkdir "$work/debian"
printf 'Source: tabane\n\nPackage: tabane\nArchitecture: any\n' >"$work/debian/control"
needed=$(cd "$work" && dpkg-shlibdeps -O --ignore-missing-info -l"$package/usr/$libraries" \
    -e"$package/usr/bin/tabane" -e"$package/usr/bin/tabane-bench" -e"$package/usr/bin/tabane-report" \
    -e"$package/usr/$libraries/libtabane.so.0" -e"$package/usr/$libraries/libchfs.so.0" 2>"$work/complaints" |
    sed -n 's/^shlibs:Depends=//p')
[ -n "$needed" ] || {
    cat "$work/complaints" >&2
    exit 1
}
cat >"$package/DEBIAN/control" <<END
Package: tabane
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk --apparent-size "$package/usr" | cut -f1)
Depends: $needed
Recommends: fuse3
Suggests: mpich | openmpi-bin
Section: utils
Priority: optional
Description: parallel file system of node-local storage for the time of a job
 Tabane bundles the memory or the local disks of a job's nodes into one
 file system for as long as the job runs. It keeps POSIX semantics,
 survives the death of its servers, and is gone without a trace when the
 job ends.
 .
 This package holds the command tabane, the benchmark tabane-bench,
 tabane-report for reports on jobs, the libraries libtabane and libchfs
 with their headers, and examples. For programs of MPI it has MPI-IO in
 front of Debian's MPICH and Open MPI, and the sources of that for others.
END
echo 'activate-noawait ldconfig' >"$package/DEBIAN/triggers"
printf 'libtabane 0 tabane (>= %s)\nlibchfs 0 tabane (>= %s)\n' "$version" "$version" >"$package/DEBIAN/shlibs"
(cd "$package" && find usr -type f | LC_ALL=C sort | xargs md5sum) >"$package/DEBIAN/md5sums"
find "$package" -newermt "@$SOURCE_DATE_EPOCH" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group -Zxz --build "$package" "$output/tabane_${version}_$architecture.deb" >/dev/null
echo "$output/tabane_${version}_$architecture.deb"
