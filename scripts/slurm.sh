#!/bin/sh
# A cluster through Slurm: three nodes that are this machine, each with mounts of its own. In jobs: up with --hosts auto
# and srun, a restart, down; the same with a mount on each node; then the job script of examples/, as users submit it.
# And a job that is recorded, from sbatch over Slurm's accounting (slurmdbd, MariaDB) to its table and report.
# Usage: slurm.sh DIRECTORY-WITH-PROGRAMS (as root; Debian: slurmctld slurmd slurm-client munge slurmdbd
# mariadb-server). Not part of .ci/run.
set -eu

tabane=$(cd "$1" && pwd)/tabane
examples=$(cd "$(dirname "$0")/../examples" && pwd)
for program in munged slurmctld slurmd slurmdbd mariadbd salloc srun sacct; do
    command -v $program >/dev/null 2>&1 || [ -x /usr/sbin/$program ] ||
        { echo "slurm.sh: $program is missing" >&2; exit 1; }
done
work=$(mktemp -d "${TMPDIR:-/tmp}/tabane-slurm-XXXXXX")
chmod 755 "$work"

clean_up() {
    processes=$(cat "$work"/*.pid)
    for process in $processes; do kill "$process" 2>/dev/null || true; done
    for process in $processes; do timeout 20 tail --pid="$process" -f /dev/null || true; done
    # What Slurm left of the job's steps, which go on trying to report to a controller that has gone.
    for environment in /proc/[0-9]*/environ; do
        process=${environment#/proc/}
        process=${process%/environ}
        [ "$process" = $$ ] || ! grep -qs "$work" "$environment" || kill -9 "$process" 2>/dev/null || true
    done
    rm -rf "$work"
}
trap clean_up EXIT

head -c 64 /dev/urandom >"$work/key"
chmod 400 "$work/key"
host=$(hostname)
# By control groups, as sites usually have it, where the old hierarchy of them is here.
tracking=linuxproc
[ ! -d /sys/fs/cgroup/freezer ] || tracking=cgroup
printf 'CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n' >"$work/cgroup.conf"
cat >"$work/slurm.conf" <<END
ClusterName=tabane
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=26817
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=26821
AccountingStoragePass=$work/munge.sock
JobAcctGatherType=jobacct_gather/none
AuthType=auth/munge
AuthInfo=socket=$work/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
SlurmctldPidFile=$work/ctld.pid
SlurmdPidFile=$work/d-%n.pid
SlurmctldLogFile=$work/ctld.log
SlurmdLogFile=$work/d-%n.log
ProctrackType=proctrack/$tracking
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=26818 CPUs=1
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=26819 CPUs=1
NodeName=n3 NodeHostname=$host NodeAddr=127.0.0.1 Port=26820 CPUs=1
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE
END
export SLURM_CONF="$work/slurm.conf"
/usr/sbin/munged --force --key-file="$work/key" --socket="$work/munge.sock" --pid-file="$work/munge.pid" \
    --log-file="$work/munge.log" --seed-file="$work/seed" 2>/dev/null
install -d -o mysql "$work/database"
mariadb-install-db --datadir="$work/database" --user=mysql --auth-root-authentication-method=normal --skip-test-db \
    >"$work/mariadb.log" 2>&1
/usr/sbin/mariadbd --no-defaults --datadir="$work/database" --user=mysql --bind-address=127.0.0.1 --port=26822 \
    --socket="$work/database/socket" --pid-file="$work/database/mariadb.pid" >>"$work/mariadb.log" 2>&1 &
echo $! >"$work/mariadb.pid"
until mariadb --no-defaults --socket="$work/database/socket" -e "CREATE USER slurm@'%' IDENTIFIED BY 'word';
    CREATE USER slurm@localhost IDENTIFIED BY 'word'; GRANT ALL ON *.* TO slurm@'%';
    GRANT ALL ON *.* TO slurm@localhost" 2>/dev/null; do
    sleep 0.2
done
cat >"$work/slurmdbd.conf" <<END
AuthType=auth/munge
AuthInfo=socket=$work/munge.sock
DbdHost=localhost
DbdPort=26821
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=26822
StorageUser=slurm
StoragePass=word
LogFile=$work/dbd.log
PidFile=$work/dbd.pid
END
chmod 600 "$work/slurmdbd.conf"
/usr/sbin/slurmdbd
tries=0
until sacctmgr -i -Q add cluster tabane >"$work/sacctmgr.log" 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || { cat "$work/sacctmgr.log" >&2; exit 1; }
    sleep 0.2
done
mkdir "$work/state" "$work/spool-n1" "$work/spool-n2" "$work/spool-n3"
/usr/sbin/slurmctld -f "$work/slurm.conf"
for node in n1 n2 n3; do unshare --mount --propagation private /usr/sbin/slurmd -f "$work/slurm.conf" -N $node; done
until [ "$(sinfo -h -t idle -o %D)" = 3 ]; do sleep 0.2; done

export TABANE_CLUSTER="$work/run" TABANE_RUN_DIRECTORY="$work/run" TABANE_STORE="memory:$work/stores,size=64M"
cat >"$work/job" <<'END'
set -eux
"$0" up --hosts auto --launcher srun
"$0" status
"$0" mkdir /there
"$0" restart 1
[ "$("$0" ls)" = there ]
# Servers live as long as the launcher that started them, which is in the background.
ps ax | grep -q "[s]run .*tabane.* host "
"$0" down
[ ! -e "$TABANE_CLUSTER" ]
END
timeout 120 salloc -Q -N3 sh -c "$(cat "$work/job")" "$tabane" || { tail -n 20 "$work/ctld.log" >&2; exit 1; }
until [ "$(sinfo -h -t idle -o %D)" = 3 ]; do sleep 0.2; done

# What one node writes to its mount the others find in theirs, and nothing is left of any.
export MOUNT="$work/mount"
mkdir "$MOUNT"
cat >"$work/mounted" <<'END'
set -eux
"$0" up --hosts auto --launcher srun --mount "$MOUNT"
srun --ntasks-per-node=1 sh -c '
    grep -q " $MOUNT " /proc/self/mountinfo && echo "$SLURM_PROCID" >"$MOUNT/$SLURMD_NODENAME"'
seen=$(srun --ntasks-per-node=1 sh -c 'cat "$MOUNT"/n1 "$MOUNT"/n2 "$MOUNT"/n3 | sort | tr -d "\n"; echo')
[ "$seen" = "$(yes 012 | head -n 3)" ]
[ "$("$0" ls | tr '\n' ' ')" = "n1 n2 n3 " ]
# Mounts outlive the steps that use them, and a restart of a server.
"$0" restart 2
srun --ntasks-per-node=1 sh -c 'ls "$MOUNT" | wc -l' | sort -u | grep -qx 3
"$0" down
srun --ntasks-per-node=1 sh -c '! grep " $MOUNT " /proc/self/mountinfo'
END
timeout 180 salloc -Q -N3 sh -c "$(cat "$work/mounted")" "$tabane" || { tail -n 20 "$work/ctld.log" >&2; exit 1; }
[ -z "$(ls "$MOUNT")" ]
until [ "$(sinfo -h -t idle -o %D)" = 3 ]; do sleep 0.2; done

# The other way, of which docs/cluster.md warns: a mount that a step makes ends with the step.
cat >"$work/lost" <<'END'
set -eux
"$0" up --hosts auto --launcher srun
srun -N1 -n1 -w n1 "$0" mount "$MOUNT"
srun -N1 -n1 -w n1 sh -c '! ls "$MOUNT"'
"$0" down
END
if [ "$tracking" = cgroup ]; then
    timeout 180 salloc -Q -N3 sh -c "$(cat "$work/lost")" "$tabane" || { tail -n 20 "$work/ctld.log" >&2; exit 1; }
fi
until [ "$(sinfo -h -t idle -o %D)" = 3 ]; do sleep 0.2; done

# Fewer and smaller nodes than the script asks for, which the command line says.
mkdir -p "$work/submitted/input"
seq 10 >"$work/submitted/input/numbers"
cat >"$work/submitted/simulate" <<'END'
#!/bin/sh
set -eu
tabane mkdir -p /output
tabane cat /input/numbers | tabane put "/output/result.$SLURM_PROCID"
END
chmod +x "$work/submitted/simulate"
unset TABANE_CLUSTER TABANE_RUN_DIRECTORY
PATH=$(dirname "$tabane"):$PATH
export PATH
cd "$work/submitted"
timeout 120 sbatch --quiet --wait --nodes=3 --ntasks-per-node=1 "$examples/job.slurm" ||
    { cat slurm-*.out >&2; exit 1; }
cat slurm-*.out
for rank in 0 1 2; do cmp input/numbers output-*/result.$rank; done
[ -z "$(find . -name 'tabane-*')" ]
until [ "$(sinfo -h -t idle -o %D)" = 3 ]; do sleep 0.2; done

# A job that records itself, and what Slurm's accounting knows of it besides.
cat >"$work/recorded" <<'END'
#!/bin/sh
#SBATCH --job-name=fluid
set -eux
tabane up --hosts auto --launcher srun --record "$PLACE"
srun --ntasks-per-node=1 sh -c 'head -c 1000000 /dev/zero | tabane put "/part.$SLURM_PROCID"'
tabane down
END
export PLACE="$work/site.db" TABANE_RUN_DIRECTORY="$work/run" TABANE_CLUSTER="$work/run"
number=$(timeout 180 sbatch --parsable --wait --nodes=3 --ntasks-per-node=1 "$work/recorded") || {
    cat slurm-*.out >&2
    exit 1
}
columns=jobid,jobidraw,jobname,user,state,start,end,nodelist
until sacct -aXn -j "$number" -o state | grep -q COMPLETED; do sleep 0.5; done
sacct -aX --parsable2 -o $columns | tabane-report import "$PLACE" --jobs -
sacct -a --json -j "$number" | tabane-report import "$PLACE" --jobs - --format sacct-json
tabane-report job "$number" "$PLACE" --csv "$work/profiles" | tee "$work/said"
grep -q "^job $number (fluid) by root, COMPLETED" "$work/said"
grep -q "wrote 2.9 MiB (3,000,000 bytes)" "$work/said"
grep -q "servers: 3" "$work/said"
[ "$(ls "$work/profiles" | wc -l)" = 3 ]
tabane-report html "$number" "$PLACE" --output "$work/report.html"
grep -q "fluid" "$work/report.html"
echo "passed, with processes tracked by $tracking"
