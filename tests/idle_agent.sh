# In place of an agent of Ray of which a study uses nothing (tests/forked_worker.py): writes down the ports that the raylet
# waits for, and ends with it. Arguments: the folder of the session, the id of the node, and PORT=NUMBER; the agent of the
# dashboard writes -1 where it serves nothing.
session=$1 node=$2
shift 2
for port in "$@"; do
    printf %s "${port#*=}" > "$session/.${port%=*}"
    mv "$session/.${port%=*}" "$session/${port%=*}_$node"
done
exec setpriv --pdeathsig KILL sleep infinity
