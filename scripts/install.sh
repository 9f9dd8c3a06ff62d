#!/bin/sh
# Installs what `make build` made, or takes it away again.
#
#   install.sh install      PREFIX, DESTDIR as usual; PROGRAMS and LIBRARIES: the directories that cargo left them in;
#                           LIBDIR: PREFIX/lib unless set; VERSION. MPIIO: where libtabane_mpiio.so of kinds of MPI are,
#                           if any. RELOCATABLE=1: pkg-config files that find their own place.
#   install.sh uninstall    what the list in PREFIX/share/tabane/installed names, and directories that were made for it
set -eu

case ${PREFIX:-} in
/*) ;;
*)
    echo "install: PREFIX=${PREFIX:-} is no absolute path; say where to, for instance PREFIX=$HOME/.local" >&2
    exit 2
    ;;
esac
root=${DESTDIR:-}$PREFIX
list=$root/share/tabane/installed
sources=$(cd "$(dirname "$0")/.." && pwd)

# Makes a directory below the prefix, and notes those of its parents that were not there.
directory() {
    [ "$1" != . ] && [ ! -d "$root/$1" ] || return 0
    directory "$(dirname "$1")"
    mkdir -p "$root/$1"
    echo "$1/" >>"$noted"
}

# place MODE FILE TARGET
place() {
    directory "$(dirname "$3")"
    install -m "$1" "$2" "$root/$3"
    echo "$3" >>"$noted"
}

point() {
    directory "$(dirname "$2")"
    ln -sf "$1" "$root/$2"
    echo "$2" >>"$noted"
}

# What a command of the program itself prints: completions and manual pages, installed as a file.
printed() {
    target=$1
    shift
    "$@" >"$work/printed"
    place 644 "$work/printed" "$target"
}

install_all() {
    work=$(mktemp -d)
    noted=$work/noted
    trap 'rm -rf "$work"' EXIT
    : >"$noted"
    libraries=${LIBDIR:-lib}
    place 755 "$PROGRAMS/tabane" bin/tabane
    place 755 "$PROGRAMS/tabane-bench" bin/tabane-bench
    place 755 "$PROGRAMS/tabane-report" bin/tabane-report
    for name in tabane chfs; do
        place 644 "$LIBRARIES/lib$name.so" "$libraries/lib$name.so.$VERSION"
        point "lib$name.so.$VERSION" "$libraries/lib$name.so.0"
        point "lib$name.so.0" "$libraries/lib$name.so"
    done
    # Those that have been built, each for a kind of MPI.
    for file in "${MPIIO:-/nonexistent}"/*/libtabane_mpiio.so; do
        [ -f "$file" ] || continue
        kind=${file%/*}
        place 644 "$file" "lib/tabane/${kind##*/}/libtabane_mpiio.so"
    done
    # And what it is built of for any other.
    for file in "$sources"/mpiio/Makefile "$sources"/mpiio/*.[ch]; do
        place 644 "$file" "share/tabane/mpiio/${file##*/}"
    done
    place 644 "$sources/crates/capi/include/tabane.h" include/tabane.h
    place 644 "$sources/crates/chfs/include/chfs.h" include/chfs.h
    prefix=$PREFIX
    # Two directories up from lib/pkgconfig.
    [ -z "${RELOCATABLE:-}" ] || prefix='${pcfiledir}/../..'
    for file in capi/tabane.pc chfs/chfs.pc; do
        sed -e "s|@prefix@|$prefix|" -e "s|@libdir@|\${prefix}/$libraries|" -e 's|@includedir@|${prefix}/include|' \
            -e "s|@version@|$VERSION|" "$sources/crates/$file.in" >"$work/pc"
        place 644 "$work/pc" "$libraries/pkgconfig/${file##*/}"
    done
    install_examples
    install_texts
    [ -z "${WITHOUT_LIST:-}" ] || return 0
    directory share/tabane
    rm -f "$work/gone"
    [ ! -f "$list" ] || sort "$list" | sed '/\/$/d' >"$work/before"
    [ ! -f "$work/before" ] || sort "$noted" | comm -23 "$work/before" - >"$work/gone"
    # Directories that an older installation made stay noted.
    [ ! -f "$list" ] || grep '/$' "$list" >>"$noted" || true
    [ ! -s "$work/gone" ] || (cd "$root" && xargs -d '\n' rm -f) <"$work/gone"
    echo share/tabane/installed >>"$noted"
    sort -u "$noted" >"$list"
}

install_examples() {
    for file in "$sources"/examples/*; do
        [ -f "$file" ] || continue
        place 644 "$file" "share/doc/tabane/examples/${file##*/}"
    done
}

# Manual pages and completions, which the program prints itself.
install_texts() {
    tabane=$root/bin/tabane
    printed share/bash-completion/completions/tabane "$tabane" completions bash
    printed share/zsh/site-functions/_tabane "$tabane" completions zsh
    printed share/fish/vendor_completions.d/tabane.fish "$tabane" completions fish
    "$tabane" man "$work/man" >/dev/null
    help_page tabane-bench 'measure a Tabane cluster or a local directory' '[OPTIONS] BENCH...' \
        >"$work/man/man1/tabane-bench.1"
    help_page tabane-report 'what a job did, and how its I/O servers were' 'import|job|events [OPTIONS]...' \
        import job events >"$work/man/man1/tabane-report.1"
    (cd "$work/man" && find . -type f) | LC_ALL=C sort | while read -r page; do
        place 644 "$work/man/$page" "share/man/${page#./}"
    done
}

# The manual page of a program beside tabane: what its --help says, as it is, and that of its commands.
# Usage: help_page PROGRAM WHAT-IT-IS SYNOPSIS [COMMAND...]
help_page() {
    program=$1
    printf '.TH %s 1 "" "Tabane %s"\n.SH NAME\n' "$(echo "$program" | tr '[:lower:]' '[:upper:]')" "$VERSION"
    printf '%s \\- %s\n.SH SYNOPSIS\n.B %s\n%s\n' "$program" "$2" "$program" "$3"
    shift 3
    printf '.SH DESCRIPTION\n.nf\n'
    help_text "$program"
    for command in "$@"; do
        printf '.fi\n.SH %s\n.nf\n' "$(echo "$command" | tr '[:lower:]' '[:upper:]')"
        help_text "$program" "$command"
    done
    printf '.fi\n.SH SEE ALSO\n.BR tabane (1)\n'
}

help_text() {
    program=$1
    shift
    "$root/bin/$program" "$@" --help | sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^[.']/\\\\\&&/"
}

uninstall_all() {
    [ -f "$list" ] || {
        echo "uninstall: nothing is installed under $root: $list is not there." \
            "Name the PREFIX of the installation: make uninstall PREFIX=..." >&2
        exit 1
    }
    copy=$(mktemp)
    trap 'rm -f "$copy"' EXIT
    cp "$list" "$copy"
    cd "$root"
    grep -v '/$' "$copy" | while read -r file; do
        rm -f "./$file"
    done
    # The deepest first; what others have put something into stays.
    { grep '/$' "$copy" || true; } | sort -r | while read -r directory; do
        rmdir "./$directory" 2>/dev/null || true
    done
}

case ${1:-} in
install) install_all ;;
uninstall) uninstall_all ;;
*)
    echo "usage: install.sh install|uninstall" >&2
    exit 2
    ;;
esac
