#!/bin/sh
# Processes of one MPI on four hosts (scripts/namespaces.sh), links held to a rate: a series of files in blocks, one
# process a host, each in turns with the context of the series and without. Prints MiB/s of each file.
#
#   hosts.sh PROGRAMS LIBRARY-DIRECTORY MPICC [BLOCK-SIZE [FILES [CALLS [independent]]]]
#
# RATE: of a link (1gbit). MPICH alone, whose launcher takes another command for ssh.
set -eu

programs=$(cd "$1" && pwd) libraries=$(cd "$2" && pwd) mpicc=$3
sources=$(cd "$(dirname "$0")" && pwd)
block=${4:-16777216} files=${5:-5} calls=${6:-4} alone=${7:-}
tabane=$programs/tabane
STORE_SIZE=2G
. "$sources/../../scripts/namespaces.sh"

for host in 1 2 3 4; do
    ip netns exec $name-s tc qdisc add dev p$host root tbf rate "${RATE:-1gbit}" burst 256kb latency 50ms
    ip netns exec $name-$host tc qdisc add dev net0 root tbf rate "${RATE:-1gbit}" burst 256kb latency 50ms
done
# As ssh, which hydra would start: options, the host, the command.
cat >"$work/ssh" <<END
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
host=\$1
shift
exec $work/enter "\$host" sh -c "\$*"
END
chmod +x "$work/ssh"
$mpicc -std=gnu11 -Wall -Wextra -O2 -o "$work/series" "$sources/series.c"
on 1 "$tabane" up --hosts "$name-[1-4]" >/dev/null

# run DIRECTORY HINTS
run() {
    on 1 "$tabane" mkdir "/$1"
    on 1 env UCX_TLS=tcp,self FI_PROVIDER=tcp FI_TCP_IFACE=net0 \
        TABANE_MPIIO_HINTS="$2" ${EXPLAIN:+TABANE_MPIIO_EXPLAIN=1} \
        LD_PRELOAD="$libraries/libtabane_mpiio.so" \
        ${MPIEXEC:-mpiexec.hydra} -launcher ssh -launcher-exec "$work/ssh" -iface net0 -ppn 1 -n 4 \
        -hosts "$name-1,$name-2,$name-3,$name-4" \
        "$work/series" "tabane:/$1" "$block" "$files" "$calls" $alone </dev/null |
        awk -v bytes=$((block * 4)) '{ printf " %.0f", bytes / $2 / 1048576 } END { print "" }'
}
for round in 1 2 3; do
    say "with context:$(run "with$round" tabane_context=enable)"
    say "without:     $(run "without$round" tabane_context=disable)"
done
