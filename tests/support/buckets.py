"""A server with a bucket on loopback, and stores in it."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator

import pytest
from conftest import Driver, Script, wait_for
from support import azurite, google_storage
from support.faulty_proxy import Proxy, proxy_to

from vitscale.record import object_store
from vitscale.record.store import Store

SECRET = "hunter2hunter2"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": SECRET}
numbers = itertools.count()
# moto speaks S3; azurite, another implementation, Azure's protocol (`make test-azure`); Google's
# testbench, a third one, that of Google (`make test-google`)
SERVER = os.environ.get("VITSCALE_TEST_SERVER", "moto")
SCHEME = {"moto": "s3", "azurite": "az", "google": "gs"}[SERVER]


def fresh() -> str:
    """The address of a store that nobody has used."""
    return f"{SCHEME}://studies/{next(numbers)}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server with the bucket `studies`."""
    if SERVER == "azurite":
        with azurite.served("studies") as azure:
            yield azure
        return
    if SERVER == "google":
        log = tmp_path_factory.mktemp("google") / "testbench.txt"
        with google_storage.served("studies", log) as google:
            yield google
        return
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(port=0, verbose=False)
    moto.start()
    port = moto.get_host_and_port()[1]
    client = boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )
    client.create_bucket(Bucket="studies")
    yield port
    moto.stop()


def point_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of_s3 = {**KEYS, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": url}
    of_azure = {
        "AZURE_STORAGE_ACCOUNT_NAME": azurite.ACCOUNT,
        "AZURE_STORAGE_ACCOUNT_KEY": azurite.KEY,
        "AZURE_STORAGE_ENDPOINT": f"{url}/{azurite.ACCOUNT}",
    }
    of_google = {"GOOGLE_BASE_URL": url, "GOOGLE_SERVICE_ACCOUNT_KEY": google_storage.KEY}
    for name, value in {"s3": of_s3, "az": of_azure, "gs": of_google}[SCHEME].items():
        monkeypatch.setenv(name, value)
    object_store._client.cache_clear()


@pytest.fixture
def direct(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Studies ask the server itself, with leases of 6 s."""
    point_at(f"http://127.0.0.1:{server}", monkeypatch)
    monkeypatch.setenv("VITSCALE_LEASE_S", "6")
    yield
    object_store._client.cache_clear()


def wait_for_checkpoint(store: Store, script: Script, process: Driver) -> None:
    """Until a study trains into a bucket, which must not end before."""

    def has_begun() -> bool:
        assert process.poll() is None, (script.folder / "log.txt").read_text()
        return "/checkpoint-" in " ".join(store.trials.files())

    wait_for(has_begun, 240, "a checkpoint")


@pytest.fixture
def proxy(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with proxy_to(server) as made:
        point_at(made.url, monkeypatch)
        yield made
    object_store._client.cache_clear()


@pytest.fixture
def store_in_bucket(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    point_at(f"http://127.0.0.1:{server}", monkeypatch)
    yield Store.open(fresh())
    object_store._client.cache_clear()
