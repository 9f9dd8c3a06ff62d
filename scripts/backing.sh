#!/bin/sh
# A disk of limited rate, to stand in for a site's file system: an ext4 on a loop device, mounted at DIR. As root.
#
#   sh scripts/backing.sh make DIR [--size 4G] [--rate 100M]   makes it; if it is there, sets its rate anew
#   sh scripts/backing.sh remove DIR                           takes away what `make` made, and nothing else
#
# SIZE and RATE take K, M and G, in powers of 1,024; RATE is bytes per second each way, and `none` sets no limit. The
# bytes are in DIR.backing, a sparse file: with DIR in /dev/shm they are in memory, so that the rate is the limit and
# not the machine's own disk.
#
# The limit is that of the kernel's block layer, for the loop device and the root cgroup of `blkio` (cgroup v1): all
# that is written through the page cache counts there, whoever wrote it, and so do direct writes of processes that are
# in no cgroup of `blkio` below. cgroup v2 limits its children alone, not its root (`io.max`), so that this script can't
# set a limit there: it says so, and with `--rate none` prints the device's number for whoever puts processes into a
# child.
set -eu

fail() {
    echo "backing.sh: $*" >&2
    exit 1
}

usage() {
    fail "usage: backing.sh make DIR [--size 4G] [--rate 100M], or backing.sh remove DIR"
}

# bytes TEXT WHAT
bytes() {
    number=${1%[KMGkmg]}
    case $number in
    '' | *[!0-9]*) fail "$2: \"$1\" is not a size such as 100M" ;;
    esac
    case $1 in
    *[Kk]) echo $((number * 1024)) ;;
    *[Mm]) echo $((number * 1024 * 1024)) ;;
    *[Gg]) echo $((number * 1024 * 1024 * 1024)) ;;
    *) echo "$number" ;;
    esac
}

# The loop device behind DIR, if `make` made it; nothing else.
device_of() {
    losetup --noheadings --output NAME --associated "$1" | head -n 1 | tr -d ' '
}

# set_rate DEVICE RATE
set_rate() {
    number=$(cat "/sys/class/block/${1#/dev/}/dev")
    blkio=$(awk '$3 == "cgroup" && $4 ~ /(^|,)blkio(,|$)/ { print $2; exit }' /proc/mounts)
    if [ "$2" = none ]; then
        [ -z "$blkio" ] || limit "$number" 0
        echo "$1 ($number) has no limit of its rate"
        return
    fi
    rate=$(bytes "$2" --rate)
    [ "$rate" -gt 0 ] || fail "--rate: give a rate such as 100M, or none"
    [ -n "$blkio" ] && [ -w "$blkio/blkio.throttle.write_bps_device" ] ||
        fail "the rate can't be limited here: that takes the blkio controller of cgroup v1 with throttling," \
            "mounted and writable; give --rate none for a disk without a limit"
    own=$(awk -F: '$2 ~ /(^|,)blkio(,|$)/ { print $3 }' /proc/self/cgroup)
    [ "$own" = / ] || echo "backing.sh: direct writes of this shell's children are not limited: they are in the" \
        "cgroup $own of blkio, and the limit is that of the root" >&2
    limit "$number" "$rate"
    echo "$1 ($number) moves $rate bytes a second each way"
}

# limit NUMBER RATE
limit() {
    for way in read write; do
        echo "$1 $2" >"$blkio/blkio.throttle.${way}_bps_device"
    done
}

make() {
    size=4G rate=100M
    while [ $# -gt 0 ]; do
        [ $# -gt 1 ] || usage
        case $1 in
        --size) size=$2 ;;
        --rate) rate=$2 ;;
        *) usage ;;
        esac
        shift 2
    done
    wanted=$(bytes "$size" --size)
    [ "$rate" = none ] || bytes "$rate" --rate >/dev/null
    for program in losetup mkfs.ext4 mount mountpoint truncate; do
        command -v "$program" >/dev/null || fail "there is no $program; install it (util-linux, e2fsprogs, coreutils)"
    done
    device=
    [ ! -e "$file" ] || device=$(device_of "$file")
    if mountpoint -q "$directory" 2>/dev/null; then
        [ -n "$device" ] && [ "$(findmnt -no SOURCE --mountpoint "$directory")" = "$device" ] ||
            fail "$directory: something else is mounted there; name another directory"
        set_rate "$device" "$rate"
        return
    fi
    [ ! -e "$directory" ] || rmdir "$directory" 2>/dev/null ||
        fail "$directory: is there and not empty; name another directory"
    # What an interrupted `make` left.
    [ -z "$device" ] || losetup --detach "$device"
    rm -f "$file"
    trap 'remove >/dev/null 2>&1' EXIT
    truncate -s "$wanted" "$file"
    device=$(losetup --find --show "$file") || fail "there is no free loop device (losetup -a says who has them)"
    mkfs.ext4 -q -F -E nodiscard "$device" || fail "$size is too little for an ext4, or mkfs.ext4 failed"
    mkdir "$directory"
    mount "$device" "$directory"
    chmod 1777 "$directory"
    set_rate "$device" "$rate"
    trap - EXIT
    echo "$directory is there; 'sh scripts/backing.sh remove $directory' takes it away"
}

remove() {
    if [ ! -e "$file" ]; then
        echo "there is nothing of this script at $directory"
        return
    fi
    device=$(device_of "$file")
    if [ -n "$device" ]; then
        if mountpoint -q "$directory" && [ "$(findmnt -no SOURCE --mountpoint "$directory")" = "$device" ]; then
            umount "$directory" || fail "$directory is in use; end what uses it (fuser -vm $directory), then again"
        fi
        # The number may be another disk's next.
        set_rate "$device" none >/dev/null
        losetup --detach "$device"
    fi
    rm -f "$file"
    rmdir "$directory" 2>/dev/null || true
    echo "$directory is gone"
}

[ $# -ge 2 ] || usage
command=$1
case $2 in
-*) usage ;;
esac
directory=$(realpath -m -- "$2")
file=$directory.backing
shift 2
[ "$(id -u)" = 0 ] || fail "loop devices and mounts take root"
case $command in
make) make "$@" ;;
remove) remove ;;
*) usage ;;
esac
