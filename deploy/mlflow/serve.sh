#!/usr/bin/env bash
# An MLflow server for several users: a database, users with passwords, reports stored by the server.
#
#     pip install 'mlflow[auth]' psycopg2-binary boto3  # boto3: for ARTIFACTS=s3://
#     MLFLOW_AUTH_ADMIN_PASSWORD=... DATABASE=postgresql://user:password@host/mlflow deploy/mlflow/serve.sh FOLDER
#
# FOLDER keeps the users, the key of the sessions and the reports. ARTIFACTS=s3://bucket/mlflow stores the reports elsewhere: the
# bucket must exist, and only the server needs the AWS_* variables (MLFLOW_S3_ENDPOINT_URL for a server that is not Amazon's).
# Without DATABASE, runs are in FOLDER/mlflow.db: enough for one study at a time. The server listens on 127.0.0.1; with
# HOST=0.0.0.0 it is reached by others, and ALLOWED_HOSTS must then name it as they do, such as mlflow.example.org:5000.
# DEFAULT_PERMISSION=NO_PERMISSIONS or READ keeps users out of each other's experiments (default: EDIT).
# Passwords travel in clear text: put TLS in front.
set -euo pipefail
folder=$(realpath "${1:?usage: serve.sh FOLDER}")
umask 077
mkdir -p "$folder/artifacts"
[ -f "$folder/session.key" ] || python -c "import secrets; print(secrets.token_hex(32))" > "$folder/session.key"
cat > "$folder/basic_auth.ini" <<END
[mlflow]
default_permission = ${DEFAULT_PERMISSION:-EDIT}
database_uri = sqlite:///$folder/users.db
admin_username = admin
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
END
MLFLOW_FLASK_SERVER_SECRET_KEY=$(cat "$folder/session.key")
export MLFLOW_FLASK_SERVER_SECRET_KEY MLFLOW_AUTH_CONFIG_PATH="$folder/basic_auth.ini"
export MLFLOW_SERVER_ENABLE_JOB_EXECUTION="${MLFLOW_SERVER_ENABLE_JOB_EXECUTION:-false}"  # seven processes, of no use here
# not an argument, since `ps` shows the password in one; SQLAlchemy 2.1 takes postgresql: for psycopg 3
database=${DATABASE:-sqlite:///$folder/mlflow.db}
export MLFLOW_BACKEND_STORE_URI="${database/#postgresql:/postgresql+psycopg2:}"
case "${ARTIFACTS:-}" in s3://*) python -c "import boto3" ;; esac  # without it each report would be refused
arguments=(--host "${HOST:-127.0.0.1}" --port "${PORT:-5000}")
[ -z "${ALLOWED_HOSTS:-}" ] || arguments+=(--allowed-hosts "$ALLOWED_HOSTS")
exec mlflow server --app-name basic-auth "${arguments[@]}" --workers "${WORKERS:-2}" \
    --serve-artifacts --artifacts-destination "${ARTIFACTS:-$folder/artifacts}"
