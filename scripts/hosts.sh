#!/bin/sh
# Four hosts in network namespaces (namespaces.sh): up, connections counted, load, one host killed and restarted, one
# cut off for 20 s, a slow cable, down. Each step has a deadline, `status` has to be true after each, and nothing that
# was acknowledged may be lost.
# Usage: hosts.sh DIRECTORY-WITH-PROGRAMS (as root). Without namespaces it fails, unless TABANE_CI_NO_NETNS=1.
set -eu

programs=$(cd "$1" && pwd)
tabane=$programs/tabane
. "$(dirname "$0")/namespaces.sh"

# The same, within so many seconds.
within() {
    limit=$1
    shift
    timeout --foreground "$limit" "$@" || fail "failed or took more than $limit s: $*"
}

# What a host sees: how many servers are up, and whether that is said by the exit status too.
expect_up() {
    host=$1
    count=$2
    status=0
    timeout 60 "$work/enter" "$name-$host" "$tabane" status --json --timeout-ms 3000 \
        >"$work/status" 2>/dev/null || status=$?
    seen=$(grep -c '"state": "up"' "$work/status" || true)
    [ "$seen" = "$count" ] || fail "host $host sees $seen servers up, not $count"
    [ "$status" = $((count < 4)) ] || fail "exit status $status of status with $count servers up"
}

say "up on four hosts"
within 60 "$work/enter" $name-1 "$tabane" up --hosts "$name-[1-4]"
for host in 1 2 3 4; do expect_up $host 4; done

# Connections over the network that clients hold: processes that put a file and are told to wait in the middle of it.
connections_of_clients() {
    total=0
    for host in 1 2 3 4; do
        for process in $(ip netns pids $name-$host); do
            if { tr '\0' ' ' <"/proc/$process/cmdline"; } 2>/dev/null | grep -q 'put :/held'; then
                own=$(ip netns exec $name-$host ss -tnpH state established | grep -c "pid=$process," || true)
                total=$((total + own))
            fi
        done
    done
    echo $total
}
# The sum of a number over all servers.
counted() {
    "$work/enter" "$name-1" "$tabane" status --json | grep -o "\"$1\": *[0-9]*" |
        sed 's/.*: *//' | awk '{ sum += $1 } END { print sum + 0 }'
}
# Three clients a host: how many connections they hold over the network, and how many tunnels the servers see.
hold() {
    relay=$1
    expected=$2
    rm -f "$work/go"
    clients=
    for number in 1 2 3 4 5 6 7 8 9 10 11 12; do
        { head -c 16777216 /dev/zero; until [ -e "$work/go" ]; do sleep 0.2; done; } |
            on $((number % 4 + 1)) env TABANE_RELAY="$relay" "$tabane" put ":/held-$number" >/dev/null &
        clients="$clients $!"
    done
    limit=$(($(date +%s) + 60))
    until [ "$(connections_of_clients)" = "$expected" ] &&
        { [ "$relay" = off ] || [ "$(counted tunnels_of_clients)" = 12 ]; }; do
        [ "$(date +%s)" -lt $limit ] || fail "12 clients hold $(connections_of_clients) connections, not $expected"
        sleep 0.2
    done
    say "relaying $relay: 12 clients of 4 servers hold $expected connections over the network," \
        "$(counted tunnels_of_clients) tunnels, servers $(counted tunnels_of_servers)"
    [ "$(counted tunnels_of_servers)" -le 12 ] ||
        fail "servers hold $(counted tunnels_of_servers) tunnels, more than 4 x 3"
    touch "$work/go"
    for client in $clients; do wait "$client" || fail "a client failed"; done
    for number in 1 2 3 4 5 6 7 8 9 10 11 12; do on 1 "$tabane" rm ":/held-$number"; done
}
# A server of the own host is reached through shared memory, so that 3 of 4 are left; through it all the others are.
hold off 36
hold always 0

# Requests at the home of a file that everybody on host 1 opens. Each storm has a file of its own: it is repeated until
# the home is on another host.
storm() {
    for attempt in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        line=$(within 60 "$work/enter" $name-1 "$programs/tabane-bench" open-storm --clients 32 --contact "$1")
        case $line in *'"requests_per_server":[32,0,0,0]'*) continue ;; esac
        echo "$line" | sed 's/.*"home_requests":\([0-9]*\).*/\1/'
        return
    done
    fail "the home of $attempt files was on host 1"
}
without=$(storm off)
with=$(storm auto)
# A recorder goes with a cluster that is up already, over kills and cuts.
recorded=$(within 60 "$work/enter" $name-1 "$tabane" up --record "$work/record.db")
job=$(echo "$recorded" | sed -n 's/^recording in .* as job //p')
[ "$job" ] || fail "up --record of a cluster that is up said: $recorded"
say "32 clients of one host open one file: its home answers $without requests without contacts, $with with them"
[ "$without" = 32 ] || fail "the home answered $without requests, not one for each client"
[ "$with" -le 8 ] || fail "the home answered $with requests for one contact"

# Files that were acknowledged are written down; the same numbers make the same contents.
content() {
    seq "$1" $(($1 + 3000 + $1 % 7 * 30000))
}
acknowledge() {
    number=0
    until [ -e "$work/enough" ]; do
        number=$((number + 1))
        content $number >"$work/file"
        if on 1 "$tabane" cp -q "$work/file" ":/kept/$number" 2>>"$work/refused"; then echo $number >>"$work/kept"; fi
    done
}
load() {
    until [ -e "$work/enough" ]; do
        on 2 "$programs/tabane-bench" --procs 2 --block-size 16MiB --files 200 --no-warm --verify \
            ior-easy ior-hard mdtest-easy >>"$work/bench" 2>"$work/bench-errors" ||
            { touch "$work/load-failed"; return; }
        echo round >>"$work/rounds"
    done
}
on 1 "$tabane" mkdir /kept
acknowledge &
load &
count() { wc -l 2>/dev/null <"$work/$1" || echo 0; }
# Waits until this many more files were acknowledged, and the load has come through one more round. What waits for one
# outage is not to wait for the next one as well: both together are longer than the time-out.
until_more() {
    files=$(($(count kept) + $1))
    round=$(($(count rounds) + 1))
    limit=$(($(date +%s) + 120))
    until [ "$(count kept)" -ge $files ] && [ "$(count rounds)" -ge $round ]; do
        [ ! -e "$work/load-failed" ] || { tail "$work/bench-errors" >&2; fail "the load did not live through it"; }
        [ "$(date +%s)" -lt $limit ] || fail "no file was acknowledged for too long, or the load stands still"
        sleep 0.2
    done
}
until_more 3

say "host 3 dies with everything on it, and its cable with it"
ip -n $name-s link set p3 down
for process in $(ip netns pids $name-3); do kill -9 "$process"; done
expect_up 1 3
expect_up 4 3
on 1 "$tabane" status --lost --json --timeout-ms 5000 >"$work/lost" 2>"$work/lost-errors" &&
    fail "status --lost says that all is well"
tail -n 1 "$work/lost" | grep -q '"down":\[2\]' ||
    { cat "$work/lost-errors" >&2; fail "status --lost did not come to its end"; }
say "$(($(wc -l <"$work/lost") - 1)) names and files are out of reach"
ip -n $name-s link set p3 up
within 60 "$work/enter" $name-1 "$tabane" restart 2
say "host 3 is back"
expect_up 1 4
until_more 3

say "host 4 is cut off for 20 s, under load"
ip -n $name-s link set p4 down
cut=$(date +%s)
expect_up 1 3
expect_up 4 1
rest=$((20 - $(date +%s) + cut))
[ $rest -le 0 ] || sleep $rest
ip -n $name-s link set p4 up
say "host 4 is connected again"
limit=$(($(date +%s) + 60))
until [ "$(on 1 "$tabane" status --json --timeout-ms 3000 2>/dev/null | grep -c '"state": "up"')" = 4 ]; do
    [ "$(date +%s)" -lt $limit ] || fail "host 4 is not seen again"
done
expect_up 4 4
until_more 3

if ip netns exec $name-s tc qdisc add dev p2 root tbf rate 40mbit burst 32kb latency 200ms 2>/dev/null; then
    say "the cable of host 2 is slow"
    until_more 5
    expect_up 2 4
    ip netns exec $name-s tc qdisc del dev p2 root
fi

touch "$work/enough"
wait
[ ! -e "$work/load-failed" ] || { tail "$work/bench-errors" >&2; fail "the load did not live through it"; }
say "$(wc -l <"$work/rounds") rounds of load went through, all contents verified"
[ ! -s "$work/refused" ] || say "refused in between: $(sort <"$work/refused" | uniq -c | head -3)"

say "$(count kept) files were acknowledged; all of them have to be there"
mkdir "$work/back"
within 120 "$work/enter" $name-3 "$tabane" cp -q -r :/kept "$work/back"
while read -r number; do
    content "$number" | cmp -s - "$work/back/kept/$number" ||
        fail "file $number was acknowledged, and is not what was written"
done <"$work/kept"
within 60 "$work/enter" $name-1 "$tabane" check

say "down"
within 60 "$work/enter" $name-1 "$tabane" down
"$programs/tabane-report" job "$job" "$work/record.db" >"$work/told" || fail "there is no record"
grep -q 'servers: 4' "$work/told" && [ "$(grep -c 'req_qdepth [0-9].* requests/s' "$work/told")" = 4 ] ||
    { cat "$work/told" >&2; fail "the record does not tell what four servers did"; }
say "recorded: $(sed -n 2p "$work/told")"
for host in 1 2 3 4; do
    [ -z "$(ip netns pids $name-$host)" ] || fail "processes are left on host $host"
    [ -z "$(ls -A "$work/roots/$name-$host")" ] || fail "files are left on host $host"
done
say "passed"
