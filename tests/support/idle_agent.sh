# In place of the agent of Ray's dashboard, of which a study uses nothing (tests/support/forked_worker.py): says that nothing is
# served, as the agent itself does where the dashboard is not installed, and ends with its raylet.
# Arguments: the folder of the session, the id of the node.
for name in metrics_agent_port metrics_export_port dashboard_agent_listen_port; do
    printf %s -1 > "$1/.$name"
    mv "$1/.$name" "$1/${name}_$2"
done
exec setpriv --pdeathsig KILL sleep infinity
