"""Settings of Ray and Tune. A file that imports Ray imports this one first."""

from __future__ import annotations

import logging
import os

from vitscale.launch.preflight import has_token

# Ray reads these when it is imported or when a Tuner is made.
SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # the driver handles signals
    # a trial that a search has stopped may still write its checkpoint: the next trial waits for it
    "TUNE_FUNCTION_THREAD_TIMEOUT_S": "600",
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",  # Tune's snapshots are not used
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    # after this time without its head, Ray ends the driver without a message
    "RAY_gcs_rpc_server_reconnect_timeout_s": "300",
    # Ray's default niceness of 15 would starve a study on a busy machine
    "RAY_worker_niceness": "0",
}

# its import in a notebook would ask for widgets, which no output of a study uses
logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)
for name, value in SETTINGS.items():
    os.environ.setdefault(name, value)
# Ray cannot be imported without a home, which a user id without a name may lack
if os.path.expanduser("~") == "~":
    os.environ["HOME"] = "/nonexistent"
# A cluster that starts where a token exists requires it, but Ray does not send the token by itself
# when a driver joins.
if has_token():
    os.environ.setdefault("RAY_AUTH_MODE", "token")
