#!/bin/sh
# Before a node is taken away: its trials save, and Ray ends on it, so that it gets no others. Trials go on elsewhere.
#
#     sh leave.sh                # now
#     sh leave.sh --spot &       # as soon as AWS announces that it takes this spot machine, two minutes before
#
# SIGTERM goes to the workers alone: Ray's own processes must outlive them, and a training that waits for a batch of a
# loader process that is gone, whose title is that of its worker, saves nothing.
set -u
metadata=${VITSCALE_METADATA:-http://169.254.169.254}/latest  # of the machine, as it sees it
own= && [ "$(id -u)" = 0 ] || own="-u $(id -u)"  # processes of other users are theirs
case "${1-}" in
    "") ;;
    --spot) command -v curl > /dev/null || { echo "leave.sh: --spot needs curl" >&2; exit 2; } ;;
    *) echo "usage: leave.sh [--spot]" >&2; exit 2 ;;
esac

announced() {
    token=$(curl -fs -m 2 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$metadata/api/token") \
        && curl -fs -m 2 -o /dev/null -H "X-aws-ec2-metadata-token: $token" "$metadata/meta-data/spot/instance-action"
}
[ "${1-}" != --spot ] || until announced; do sleep 2; done

# shellcheck disable=SC2086  # two words, or none
raylets=$(pgrep $own -d, -x raylet) || exit 0
for raylet in $(echo "$raylets" | tr , ' '); do  # no new trial comes to a node that is drained
    given=$(tr '\0' '\n' < "/proc/$raylet/cmdline")
    token=$(tr '\0' '\n' < "/proc/$raylet/environ" | grep '^RAY_AUTH_')  # as Ray was started with
    # shellcheck disable=SC2086  # several words, or none
    timeout 20 env $token ray drain-node --address "$(echo "$given" | sed -n 's/^--gcs-address=//p')" \
        --node-id "$(echo "$given" | sed -n 's/^--node_id=//p')" \
        --reason DRAIN_NODE_REASON_PREEMPTION --reason-message "the node is taken away" \
        || echo "not drained: Ray may begin trials here again"
done
told=$(pgrep -d, -P "$raylets" -f '^ray::(ImplicitFunc|RayTrainWorker)') || told=
echo "$(date) trials on this node are told to save: ${told:-none}"
[ -z "$told" ] || echo "$told" | tr , '\n' | xargs kill -TERM
seconds=30
while [ -n "$told" ] && [ $seconds -gt 0 ] && ps -o stat= -p "$told" | grep -qv '^Z'; do
    sleep 1
    seconds=$((seconds - 1))
done
ray stop
