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

# The node is not drained before: a drained raylet ends as soon as its workers say that they end, and kills those that
# still save. So Ray may begin a trial here again in the second before it ends, which costs that trial one more retry.
# shellcheck disable=SC2086  # two words, or none
raylets=$(pgrep $own -d, -x raylet) || exit 0
told=$(pgrep -d, -P "$raylets" -f '^ray::(ImplicitFunc|RayTrainWorker)') || told=
echo "$(date) trials on this node are told to save: ${told:-none}"
[ -z "$told" ] || echo "$told" | tr , '\n' | xargs kill -TERM
times=150
while [ -n "$told" ] && [ $times -gt 0 ] && ps -o stat= -p "$told" | grep -qv '^Z'; do
    sleep 0.2
    times=$((times - 1))
done
ray stop
