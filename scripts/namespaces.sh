# Four hosts in network namespaces of this machine, each with files of its own below $place, and a bridge between them.
# Sourced by scripts, as root. Without namespaces they fail, or with TABANE_CI_NO_NETNS=1 end here, and say so. Then
# there are:
#
#   $name-1 .. $name-4      the hosts (10.78.0.1 and on); $name-s: the bridge, with a port p1 .. p4 for each
#   on HOST COMMAND         runs a command on a host, by its number; $work/enter NAME COMMAND does by its name
#   $work                   a directory that goes at the end, with all that runs on the hosts
#
# STORE_SIZE: bytes of a server's store (256M).
name=tbh$$
work=$(mktemp -d "${TMPDIR:-/tmp}/tabane-hosts-XXXXXX")
place=$work/place
started=$(date +%s)

say() {
    printf '%4d s  %s\n' $(($(date +%s) - started)) "$*"
}

fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

clean_up() {
    touch "$work/enough" 2>/dev/null || true
    for host in 1 2 3 4; do
        for process in $(ip netns pids $name-$host 2>/dev/null); do kill -9 "$process" 2>/dev/null || true; done
    done
    wait 2>/dev/null || true
    for host in 1 2 3 4 s; do ip netns del $name-$host 2>/dev/null || true; done
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
# Whoever reads what is printed may end first, and not all shells go through the exit then.
trap 'exit 141' PIPE

if ! { ip netns add $name-s && ip -n $name-s link add br0 type bridge forward_delay 0 &&
    ip -n $name-s link set br0 up; } 2>/dev/null; then
    [ "${TABANE_CI_NO_NETNS:-}" = 1 ] ||
        fail "no network namespaces here (root and ip are needed); TABANE_CI_NO_NETNS=1 leaves this test out"
    say "left out: no network namespaces here"
    exit 0
fi
mkdir "$place"
for host in 1 2 3 4; do
    mkdir -p "$work/roots/$name-$host"
    ip netns add $name-$host
    ip link add net0 netns $name-$host type veth peer name p$host netns $name-s
    ip -n $name-s link set p$host master br0 up
    ip -n $name-$host link set lo up
    ip -n $name-$host addr add 10.78.0.$host/24 dev net0
    ip -n $name-$host link set net0 up
done

# Runs a command on a host, where $place is the host's own.
cat >"$work/enter" <<END
#!/bin/sh
host=\$1
shift
exec ip netns exec "\$host" unshare -m sh -c 'mount --bind "\$0" "\$1" && shift && exec "\$@"' \
    $work/roots/\$host $place "\$@"
END
chmod +x "$work/enter"

export TABANE_RUN_DIRECTORY="$place/run" TABANE_CLUSTER="$place/run"
export TABANE_STORE="memory:$place/stores,size=${STORE_SIZE:-256M}"
export TABANE_LAUNCHER="$work/enter {host} {command}"

on() {
    host=$1
    shift
    "$work/enter" "$name-$host" "$@"
}
