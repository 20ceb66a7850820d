#!/usr/bin/env bash
# Two nodes of a real SLURM in namespaces of their own (network, processes, /tmp), so that Ray on one does not see the
# other but by its address: lab.sh FOLDER NODE, with NODE 1 for the controller, which starts node 2, says "ready" and stays.
# FOLDER is what they share, and not in /tmp.
set -eu
folder=$1 node=$2
mount -t tmpfs none /tmp
mount --bind "$folder/hosts" /etc/hosts
hostname "n$node"
ip link set lo up
[ "$node" = 1 ] && ip link add v1 type veth peer name v2
for _ in $(seq 100); do ip link show "v$node" > /dev/null 2>&1 && break; sleep 0.1; done
ip addr add "10.77.0.$node/24" dev "v$node"
ip link set "v$node" up
if [ "$node" = 2 ]; then exec slurmd -D -N n2; fi

munged -S "$folder/munge.sock" --key-file="$folder/munge.key" --pid-file="$folder/munged.pid" \
    --seed-file="$folder/munge.seed" --log-file="$folder/munged.log" --force
unshare --mount --pid --net --ipc --uts --fork --mount-proc --kill-child bash "$0" "$folder" 2 > "$folder/n2.out" 2>&1 &
sleep 0.5
ip link set v2 netns "$(pgrep -P $!)"
slurmctld -D > "$folder/ctld.out" 2>&1 &
# processes of its own also for node 1: `ray stop` looks for Ray among all that it sees
unshare --mount --pid --fork --mount-proc --kill-child slurmd -D -N n1 > "$folder/n1.out" 2>&1 &
for _ in $(seq 120); do [ "$(sinfo -h -p all -t idle -o %D 2> /dev/null)" = 2 ] && break; sleep 0.5; done
[ "$(sinfo -h -p all -t idle -o %D)" = 2 ] || exit 1
echo ready
exec sleep infinity
