"""The store in a bucket, on moto's S3 server on loopback, with faults between client and server."""

from __future__ import annotations

import contextlib
import faulthandler
import http.server
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, SPAWNER, TINY, free_port, load_script
from support.buckets import KEYS, SCHEME, SECRET, SERVER, fresh, point_at
from support.faulty_proxy import Proxy, at_random
from support.refusals import refusing

# the protocol of trials and studies, as tested on a folder
from support.store_rules import (  # noqa: F401
    DONE,
    check_claim_left_over,
    finished,
    test_a_done_trial_keeps_only_its_final_checkpoint,
    test_a_stale_worker_may_commit_nothing,
    test_a_study_has_one_driver_and_counts_its_starts,
    test_a_trial_claimed_by_a_running_study_is_not_claimed,
    test_an_older_attempt_may_not_take_a_trial_back,
    test_failure_is_recorded_and_forgotten_when_the_trial_succeeds,
)

from vitscale.cli.parsers import main
from vitscale.doctor import storage
from vitscale.doctor.check import Machine, Verdict
from vitscale.plan.study import to_json
from vitscale.record import bucket, object_store
from vitscale.record.cleanup import clean, survey
from vitscale.record.object_store import PATIENCE_S, WRITABLE, Bucket
from vitscale.record.outcome import Outcome, Status
from vitscale.record.overview import overview
from vitscale.record.store import Store
from vitscale.record.study_files import Overtaken
from vitscale.record.table import read_trials
from vitscale.record.trial_files import ClaimedByOther
from vitscale.record.workdir import Fenced

NUM_FAULTS = int(os.environ.get("VITSCALE_CHAOS", "60"))
OF_S3 = pytest.mark.skipif(SERVER != "moto", reason="about S3's headers and variables")


@pytest.fixture
def store(store_in_bucket: Store) -> Store:
    return store_in_bucket


def test_rows_and_facts_come_back_as_they_were(store: Store) -> None:
    finished(store)
    assert store.read("t1") == DONE and store.peek("t1").facts == DONE.facts
    assert store.done_of(["t1", "t2", "t3", "t4"]) == {"t1"}
    assert not store.finish(store.trial("t1"), Outcome(Status.DIVERGED, ({"epoch": 1.0},)))
    assert store.read("t1") == DONE


def test_files_and_folders_are_as_on_a_disk(store: Store, tmp_path: Path) -> None:
    local = Store.open(tmp_path / "runs")
    seen = []
    for one in (local, store):
        folder = one.study("s")
        folder.within("report").write("page.html", b"page")
        folder.write("plan.json", b"{}")
        with folder.append("ray.log") as log:
            log.write("one\n")
        with folder.append("ray.log") as log:
            log.write("two\n")
        one.trial("aaaaaaaaaaaa").write("rows.parquet", b"rows")
        one.trial("aaaaaaaaaaaa").within("x").write("y", b"y")
        assert not folder.create("plan.json", b"other")
        with folder.as_folder() as path:
            content = (path / "report" / "page.html").read_bytes()
        names = folder.names(), folder.names("p"), one.studies.names(), folder.exists("none")
        sizes = {name: state.num_bytes for name, state in one.folder.files().items()}
        sizes.pop("mlflow.db", None)
        having = one.trials.having("rows.parquet")
        gone = one.mark_deleted("aaaaaaaaaaaa")
        moved = sorted(name.removeprefix(gone) for name in one.trials.files())
        one.trials.discard(gone)
        one.study("other").write("plan.json", b"{}")
        one.study("other").discard("")
        assert not one.study("other").exists()
        with pytest.raises(FileNotFoundError):
            one.trials.rename(gone, "x")
        seen.append((content, names, sizes, having, moved, one.trials.names()))
    assert seen[0] == seen[1]


def test_claims_meet_on_the_server_and_one_wins(store: Store) -> None:
    """Two workers look before either has claimed: the second must see that the claim changed."""
    folder = store.trial("t1")
    claim = {"token": "a", "study": "s", "attempt": 1}
    _, before = folder.look()
    first = folder.take(claim, before)
    assert first and folder.take({**claim, "token": "b"}, before) is None
    _, seen = folder.look()
    second = folder.take({**claim, "token": "c"}, seen)
    assert second and folder.take({**claim, "token": "d"}, seen) is None
    with pytest.raises(Fenced):
        first.write("x", b"")
    second.write("x", b"")


@pytest.mark.parametrize("few", [1, 1000], ids=["by a listing", "one by one"])
def test_what_is_left_of_a_claim_to_a_done_trial_is_removed(
    store: Store, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "FEW", few)
    check_claim_left_over(store)


def test_a_worker_between_its_fence_and_its_rows_commits_once(store: Store) -> None:
    """The exclusive creation of the rows decides where the claim cannot."""
    slow, fast = store.claim("t1", {}, "s", 1), store.claim("t1", {}, "s", 2)
    assert store.finish(fast, DONE)
    # as if it had been in time
    object.__setattr__(slow, "claimed", None)
    assert not store.finish(slow, Outcome(Status.DIVERGED, ({"epoch": 1.0, "step": 1.0},)))
    assert store.read("t1") == DONE


HOLDER = """
import sys, time
from vitscale.record import bucket
from vitscale.record.store import Store
if sys.argv[2] == "elsewhere":
    bucket._machine = lambda: "another machine"
with Store.at(sys.argv[1]).drive("s"):
    print("held", flush=True)
    time.sleep(120)
"""


def holder(store: Store, where: str, lease_s: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store.root), where],
        env={**os.environ, "VITSCALE_LEASE_S": str(lease_s), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stdout.readline() == "held\n", process.stderr.read()
    return process


def test_the_lock_of_a_driver_killed_on_this_machine_is_free_at_once(store: Store) -> None:
    process = holder(store, "here", lease_s=600)
    try:
        with refusing("study='s'", process.pid), store.drive("s"):
            pass
    finally:
        process.kill()
        process.communicate()
    assert not store.driver_is_alive("s")
    start = time.monotonic()
    with store.drive("s") as attempt:
        assert attempt == 2 and time.monotonic() - start < 5


@pytest.mark.parametrize("shift_s", [0, 86400, -86400])
def test_a_lease_of_another_machine_ends_by_the_waiting_clock_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch, shift_s: int
) -> None:
    """Killed there; whatever the time of day is here."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + shift_s)
    process = holder(store, "elsewhere", lease_s=1.6)
    try:  # it lives: its entry is seen to change
        with refusing("study='s'", process.pid), store.drive("s"):
            pass
    finally:
        process.kill()
        process.communicate()
    start = time.monotonic()
    assert store.driver_is_alive("s")  # not known yet
    with store.drive("s") as attempt:
        assert attempt == 2 and 1.0 < time.monotonic() - start < 10


def test_a_driver_that_stood_still_for_a_lease_stops_when_it_comes_back(store: Store) -> None:
    process = holder(store, "elsewhere", lease_s=1.2)
    process.send_signal(signal.SIGSTOP)
    try:
        store.claim("t1", {}, "s", 1)
        with pytest.raises(ClaimedByOther):
            store.claim("t1", {}, "other", 1)
        with store.drive("s") as attempt:
            assert attempt == 2
            process.send_signal(signal.SIGCONT)
            said = process.communicate(timeout=20)[1]
            assert process.returncode == -signal.SIGTERM and "was lost to another" in said
            assert store.driver_is_alive("s")  # the zombie took nothing away
    finally:
        process.kill()


def test_a_driver_that_stood_still_asks_before_it_writes_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread renews every 15 s; until then, only the server knows who holds the lock."""
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda name, _: told.append(name))
    try:
        with store.drive("s"):
            assert store.still_drives("s")
            store.study("s")._change("driver.lock", lambda now: [])  # as by another start
            elapsed_s = bucket._elapsed_s
            monkeypatch.setattr(bucket, "_elapsed_s", lambda: elapsed_s() + bucket.LEASE_S + 1)
            assert not store.still_drives("s") and not store.still_drives("s")
            assert told == [signal.SIGTERM]
        assert not store.still_drives("s")
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_driver_that_was_taken_over_at_any_request_overwrites_nothing_of_the_next_one(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still for longer than a lease, before each request in turn that follows on its
    lock, and the next start writes all that a start writes.
    """
    own, elapsed_s, told = Bucket(fresh()), bucket._elapsed_s, list[int]()
    store, numbers, late_s = Store.open(own.url), set[int](), 0.0
    names = ("nonce", "plan.json", "asked.json")
    before = signal.signal(signal.SIGTERM, lambda name, _: told.append(name))
    monkeypatch.setattr(bucket, "_elapsed_s", lambda: elapsed_s() + late_s)

    def content(name: str) -> bytes:
        return (own.get(f"studies/s/{name}") or (b"0",))[0]

    def take_over() -> None:
        own.put("studies/s/driver.lock", b'{"holders": []}')
        own.put("studies/s/attempt", str(int(content("attempt")) + 1).encode())
        for name in names:
            own.put(f"studies/s/{name}", theirs)

    def start(turn: int) -> tuple[bool, bool]:
        """Whether it was taken over, and whether it noticed."""
        nonlocal late_s
        late_s, num, is_taken = 0.0, -1, False

        def count(method: str, path: str) -> str:
            nonlocal num, is_taken, late_s
            if num >= 0 or (method == "PUT" and path.endswith("driver.lock")):
                num += 1
            if num == turn + 1 and not is_taken:
                is_taken, late_s = True, bucket.LEASE_S + 1
                take_over()
            return ""

        proxy.fault = count
        try:
            with store.drive("s") as number:
                assert number not in numbers
                numbers.add(number)
                for name in names[1:]:
                    store.write_driving("s", name, lambda: b"ours")
                proxy.fault = lambda method, path: ""
            return is_taken, False
        except Overtaken:
            return is_taken, True
        finally:
            proxy.fault = lambda method, path: ""

    try:
        for turn in itertools.count():
            theirs = f"theirs {turn}".encode()
            is_taken, noticed = start(turn)
            assert is_taken == noticed
            if not is_taken:
                break
            assert {content(name) for name in names} == {theirs}
        assert [content(name) for name in names[1:]] == [b"ours", b"ours"]
        assert turn > 8 and told
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_start_that_stood_still_while_trials_were_deleted_is_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read as done what is gone."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with store.planning():
            store.check_planning()
            store.folder._change("planning.lock", lambda now: [])  # as by a clean elsewhere
            elapsed_s = bucket._elapsed_s
            monkeypatch.setattr(bucket, "_elapsed_s", lambda: elapsed_s() + bucket.LEASE_S + 1)
            with refusing(f"store={str(store.root)!r}"):
                store.check_planning()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_claim_without_its_worker_expires_though_its_driver_lives(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "LEASE_S", 1.2)
    folder = store.trial("t1")
    with store.drive("s"):
        first = store.claim("t1", {}, "s", 1)
        with first.renewed():
            end = time.monotonic() + 2.5
            while time.monotonic() < end:
                assert not folder.expire()
                time.sleep(0.1)
            first.write("x", b"")  # renewals and writes take turns
        with pytest.raises(ClaimedByOther):  # its worker has died, which nobody knows yet
            store.claim("t1", {}, "other", 1)
        start = time.monotonic()
        while not folder.expire():
            assert time.monotonic() < start + 20
            time.sleep(0.1)
        assert time.monotonic() - start > 0.6
        second = store.claim("t1", {}, "other", 1)
        with pytest.raises(Fenced):
            first.write("x", b"")
        assert store.finish(second, DONE)


def entry_of(machine: str) -> dict[str, object]:
    return {"token": "T", "machine": machine, "pid": 1, "born": "1"}


def test_a_holder_that_renews_after_it_was_looked_at_keeps_its_lock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one that looks stands still with an old reply, for longer than a lease."""
    folder = Store("memory://one/renewed").study("s")
    entry = {**bucket.EMPTY, **entry_of("another")}
    assert folder._put("driver.lock", [entry], None) and folder.is_held("driver.lock")
    old, look, now = folder._holders("driver.lock"), bucket.BucketDir._holders, time.monotonic
    assert folder._renew("driver.lock", entry)
    replies = iter([old])
    monkeypatch.setattr(time, "monotonic", lambda: now() + bucket.LEASE_S + 1)
    monkeypatch.setattr(
        bucket.BucketDir, "_holders", lambda *args: next(replies, None) or look(*args)
    )
    folder.is_held("driver.lock")
    assert folder._renew("driver.lock", entry)


@pytest.mark.parametrize(
    "entry",
    [{"lease_s": "x"}, {"lease_s": float("nan")}, {"token": []}, {"pid": "1\0"}, {"pid": 2**40}],
    ids=str,
)
def test_what_can_be_no_holder_of_a_lock_holds_nothing(entry: dict[str, object]) -> None:
    folder = Store("memory://one/hostile").study("s")
    written = {**entry_of(bucket._machine()), **entry}
    folder.bucket.put(folder._key("driver.lock"), json.dumps({"holders": [written]}).encode())
    assert not folder.is_held("driver.lock")
    with folder.hold("driver.lock", "mine"):
        assert folder.is_held("driver.lock")


HIDDEN = """
import os, sys
from vitscale.record import bucket
pid, born = sys.argv[1:]
os.setgroups([])  # after the imports: another user may not be let into the clone
os.setresgid(*3 * [65534])
os.setresuid(*3 * [65534])
entry = {"token": "T", "machine": bucket._machine(), "pid": int(pid), "born": born}
print(os.path.exists(f"/proc/{pid}/stat"), bucket._lives("key", {**bucket.EMPTY, **entry}))
"""


def test_a_process_that_a_user_may_not_see_counts_as_alive_for_its_lease() -> None:
    """Of another user, where proc is mounted with hidepid, as on shared machines of clusters."""
    script = (
        "mount -t proc -o hidepid=2 proc /proc && { sleep 30 & } && pid=$! "
        "&& born=$(cut -d ' ' -f 22 /proc/$pid/stat) "
        '&& "$0" -c "$1" $pid $born; kill $pid'
    )
    seen = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script, sys.executable, HIDDEN],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    if "mount:" in seen.stderr or "unshare:" in seen.stderr:
        pytest.skip("needs the right to mount in a namespace of its own")
    assert seen.stdout == "False True\n", seen.stderr


@pytest.mark.parametrize("num_deleted", range(5))
def test_a_trial_that_is_half_moved_is_done_or_not_begun(
    monkeypatch: pytest.MonkeyPatch, num_deleted: int
) -> None:
    """Killed among the deletions. A checkpoint that is left without rows would be committed again,
    as if other code had trained it.
    """
    store = Store(f"memory://one/half-{num_deleted}")
    workdir = store.claim("t1", {}, "s", 1)
    workdir.write("checkpoint-000000010-abc.pt", b"weights")
    workdir.write("pinned-000000005-abc.pt", b"weights")
    assert store.finish(workdir, DONE)
    delete, deleted = Bucket._delete, itertools.count()

    def until(self: Bucket, key: str) -> None:
        if next(deleted) == num_deleted:
            raise KeyboardInterrupt
        delete(self, key)

    monkeypatch.setattr(Bucket, "_delete", until)
    with contextlib.suppress(KeyboardInterrupt):
        store.set_trial_aside("t1", "now")
    left = store.trial("t1").files()
    assert store.is_done("t1") or not [name for name in left if ".pt" in name], left
    monkeypatch.undo()
    if store.is_done("t1"):
        assert store.read("t1") == DONE


class Trickle(http.server.BaseHTTPRequestHandler):
    """Sends an object of eight bytes, one every 0.4 s; of `stalls`, four."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "8")
        self.send_header("ETag", '"one"')
        self.send_header("Last-Modified", "Wed, 19 Aug 2020 01:04:51 GMT")
        self.end_headers()
        with contextlib.suppress(OSError):
            for number in range(8):
                if number == 4 and self.path.endswith("stalls"):
                    time.sleep(20)
                self.wfile.write(b"x")
                self.wfile.flush()
                time.sleep(0.4)


@OF_S3
def test_an_object_may_take_long_as_long_as_something_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_store, "STALL_S", 1)
    trickling = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Trickle)
    trickling.daemon_threads = True
    threading.Thread(target=trickling.serve_forever, daemon=True).start()
    point_at(f"http://127.0.0.1:{trickling.server_port}", monkeypatch)
    try:
        (content, _) = Bucket("s3://slow/runs").get("checkpoint")
        assert content == b"x" * 8
        start = time.monotonic()
        with pytest.raises(OSError):
            Bucket("s3://slow/runs", patience_s=2.0).get("stalls")
        assert time.monotonic() - start < 18
    finally:
        trickling.shutdown()
        trickling.server_close()


def test_locks_exclude_and_are_shared(store: Store) -> None:
    alone = store.folder.hold("planning.lock", "", 0.1)
    with store.planning(), store.planning(), pytest.raises(bucket.Held), alone:
        pass
    with store.cleaning(), pytest.raises(bucket.Held), store.folder.share("planning.lock", 0.1):
        pass
    with store.planning():
        pass


def test_status_counts_what_is_done_and_what_runs(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = load_script(TINY).study(num=2)
    ids = [trial.config.id for trial in study.trials]
    store.study(study.slug).write("plan.json", json.dumps(to_json(study)).encode())
    monkeypatch.setattr(sys, "argv", ["vitscale", "status", "--json", "--store", str(store.root)])
    with store.drive(study.slug):
        finished(store, ids[0])
        store.claim(ids[1], {}, study.slug, 1)
        store.fail(store.claim(ids[2], {}, study.slug, 1), "ValueError: x", "")
        main()
    state = json.loads(capsys.readouterr().out)["studies"][0]
    found = {name: state[name] for name in ("finished", "running", "failed", "missing")}
    assert found == {"finished": 1, "running": 1, "failed": 1, "missing": 2}
    assert state["driver_alive"] and state["num_bytes"] > 1000


# What is refused at the start


REFUSED = {  # what it is about, and the value that is named
    "without If-None-Match": ("a server", "ignored: If-None-Match"),
    "without If-Match": ("a server", "ignored: If-Match"),
    "403 AccessDenied": ("the credentials", "AccessDenied"),
    "400 ExpiredToken": ("the credentials", "ExpiredToken"),
    "403 RequestTimeTooSkewed": ("the clock", "RequestTimeTooSkewed"),
    "403 AuthenticationFailed Request date header too old: 'Wed, 19 Aug 2020 01:04:51 GMT'": (
        "the clock",
        "AuthenticationFailed",
    ),
    "404 NoSuchBucket": ("a bucket", "NoSuchBucket"),
    "507 InsufficientStorage": ("the bucket", "InsufficientStorage"),
}


@pytest.mark.parametrize(
    "fault", [pytest.param(f, marks=OF_S3 if "without" in f else ()) for f in REFUSED]
)
def test_a_server_that_will_not_do_is_refused_at_open(proxy: Proxy, fault: str) -> None:
    proxy.fault = lambda method, path: fault
    subject, value = REFUSED[fault]
    with refusing(value) as caught:
        Store.open(fresh())
    message = str(caught.value)
    assert message.startswith(f"{subject} ")
    assert "\n" not in message and SECRET not in message and "AKIA" not in message
    assert sum(proxy.requests.values()) < 12


def test_a_server_whose_versions_cannot_be_replaced_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As one that names them otherwise when they are read: each lock would be tried for ever."""
    own = Bucket("memory://one/versions")
    own.probe()
    get = Bucket.get
    monkeypatch.setattr(
        Bucket, "get", lambda *args: (found := get(*args)) and (found[0], {"e_tag": "W/other"})
    )
    with refusing("memory://one/versions", "etag='W/other'", error=OSError):
        own.probe()
    monkeypatch.undo()
    monkeypatch.setattr(Bucket, "create", lambda *_: None)
    with refusing("memory://one/versions", f"object='{WRITABLE}", error=OSError):
        own.probe()
    assert not own.entries()


@pytest.mark.parametrize("part", ["trials", "studies/s"])
def test_a_part_of_a_bucket_that_may_not_be_written_is_refused_at_the_start(
    proxy: Proxy, part: str
) -> None:
    """Not as faults of trials; what is permitted leaves no trace."""
    store = Store.open(fresh())
    ids = ["0" * 12]
    store.check_permitted("s")
    store.check_trials_permitted(ids)
    assert not store.folder.files()

    def denied(asked: str, path: str) -> str:
        return "403 AccessDenied" if asked == "PUT" and f"/{part}/" in path else ""

    proxy.fault = denied
    with refusing(store.root, "AccessDenied", error=OSError):
        store.check_permitted("s") if part == "studies/s" else store.check_trials_permitted(ids)


@OF_S3
def test_the_doctor_finds_a_server_that_ignores_conditions(proxy: Proxy) -> None:
    """As a start of a study refuses it, although files are created and replaced as they should."""
    machine = Machine(store=fresh())
    assert storage.conditions(machine).verdict == Verdict.PASS
    for header in ("If-None-Match", "If-Match"):
        proxy.fault = lambda method, path, header=header: f"without {header}"
        found = storage.conditions(machine)
        assert found.verdict == Verdict.FAIL and f"ignored: {header}" in found.detail
    assert storage.conditions(Machine(store="runs")).verdict == Verdict.NOT_APPLICABLE


def test_a_bucket_that_does_not_exist_is_refused(proxy: Proxy) -> None:
    with pytest.raises(ValueError, match=rf"a bucket must exist.*store='{SCHEME}://nothing/x'"):
        Store.open(f"{SCHEME}://nothing/x")


@OF_S3
@pytest.mark.parametrize(
    ("root", "change", "law"),
    [
        ("s3://studies/x", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "no connection"),
        ("s3://studies/x", dict.fromkeys(KEYS, ""), "credentials must be in the environment"),
        (f"s3://user:{SECRET}@studies/x", {}, "scheme://bucket/prefix and no more"),
        (f"s3://studies/x?token={SECRET}", {}, "scheme://bucket/prefix and no more"),
        ("s3:///x", {}, "a store must be a folder"),
        ("s3://studies/x", {"VITSCALE_LEASE_S": "soon"}, "a lease must be of 1 to 3600 seconds"),
        ("s3://studies/x", {"VITSCALE_LEASE_S": "-1"}, "a lease must be of 1 to 3600 seconds"),
    ],
)
def test_commands_refuse_in_one_line_without_credentials(
    server: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    root: str,
    change: dict[str, str],
    law: str,
) -> None:
    point_at(f"http://127.0.0.1:{server}", monkeypatch)
    monkeypatch.setattr(object_store, "PATIENCE_S", 1.0)
    monkeypatch.setattr(
        "vitscale.record.store_folder.Bucket", lambda url: Bucket(url, patience_s=1.0)
    )
    for name, value in change.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    for command in (["status"], ["report", "x"]):
        object_store._client.cache_clear()
        monkeypatch.setattr(sys, "argv", ["vitscale", *command, "--store", root])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr().err
        assert ended.value.code == 2 and said.count("\n") == 1 and law in said
        assert SECRET not in said and "AKIA" not in said
    object_store._client.cache_clear()


# Faults between client and server


@OF_S3
def test_a_command_says_that_it_waits_for_a_server_and_goes_on_when_it_comes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once, on stderr, though each of its requests is tried again and again."""
    from moto.server import ThreadedMotoServer

    port = free_port()
    point_at(f"http://127.0.0.1:{port}", monkeypatch)
    command = [sys.executable, "-m", "vitscale", "status", "--store", "s3://absent/late"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ}, **pipes)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.startswith("vitscale: waiting for the store, at most 120 s: the store's server ")
    assert "(store='s3://absent/late'" in line and SECRET not in line
    late = ThreadedMotoServer(port=port, verbose=False)
    late.start()
    out, rest = process.communicate(timeout=60)
    late.stop()
    assert process.returncode == 2 and not out
    assert rest.startswith("vitscale: error: a bucket must exist, but got ")
    assert len(rest.splitlines()) == 1


def test_a_reply_lost_after_the_write_is_no_defeat(proxy: Proxy) -> None:
    own = Bucket(fresh(), patience_s=20)
    fault = ""

    def once(method: str, path: str) -> str:
        nonlocal fault
        found, fault = (fault, "") if method == "PUT" else ("", fault)
        return found

    proxy.fault = once
    for kind in ("lost reply", "503", "cut", "503 SlowDown", "409 ConditionalRequestConflict"):
        name, fault = f"key-{kind.replace(' ', '-')}", kind
        tag = own.create(name, b"ours")
        assert tag and own.get(name) == (b"ours", tag), kind
        assert own.create(name, b"theirs") is None
        fault = kind
        newer = own.replace(name, b"ours 2", tag)
        assert newer and own.replace(name, b"theirs", tag) is None, kind
        assert own.get(name) == (b"ours 2", newer)
    assert proxy.faults.total() == 10


@pytest.mark.parametrize("then", ["", pytest.param("without Range", marks=OF_S3)])
@pytest.mark.parametrize("new", [None, b"short", b"same long length", b"longer than it was before"])
def test_an_object_that_changes_while_it_is_read_is_read_whole(
    proxy: Proxy, new: bytes | None, then: str
) -> None:
    """obstore asks for the rest of a reply that broke off, which the object may no longer have;
    some servers ignore the range and send all.
    """
    own, old, changed = Bucket(fresh(), patience_s=20), b"as long as it is", list[str]()
    own.put("key", old)
    replies = iter(["half", then])

    def fault(method: str, path: str) -> str:
        name = next(replies, "") if method == "GET" else ""
        if name != "half" and new is not None and proxy.faults["half"] and not changed:
            changed.append(path)
            own.put("key", new)
        return name

    proxy.fault = fault
    found = own.get("key")
    assert found and found[0] == (old if new is None else new)
    assert proxy.faults["half"] == 1 and proxy.requests["GET"] >= 2


def test_of_two_writers_of_the_same_content_one_wins(proxy: Proxy) -> None:
    """Also when the loser's first request was lost on the way, so that it must find out."""
    own = Bucket(fresh(), patience_s=20)
    tag = own.create("rows", b"same")
    assert tag and own.create("rows", b"same") is None
    cuts = iter(["cut", "cut", "cut"])
    proxy.fault = lambda method, path: next(cuts, "") if method == "PUT" else ""
    assert own.create("rows", b"same") is None and proxy.faults["cut"] >= 1
    newer = own.replace("rows", b"next", tag)
    assert newer and own.replace("rows", b"next", tag) is None


def test_a_full_or_forbidden_bucket_is_no_fault_of_the_config(proxy: Proxy) -> None:
    from vitscale.launch.faults import is_of_the_machine

    store = Store.open(fresh())
    workdir = store.claim("t1", {}, "s", 1)
    for fault in ("403 AccessDenied", "400 ExpiredToken", "507 InsufficientStorage"):
        proxy.fault = lambda method, path, fault=fault: fault if method == "PUT" else ""
        hasty = bucket.BucketDir(
            workdir.path,
            bucket=Bucket(store.root, patience_s=0.3),
            token=workdir.token,
            claimed=workdir.claimed,
        )
        with refusing(store.root, fault.split()[1], error=OSError) as caught:
            hasty.write("checkpoint-1", b"")
        assert is_of_the_machine(caught.value) and SECRET not in str(caught.value)
    proxy.fault = lambda method, path: ""
    workdir.write("checkpoint-1", b"")
    assert store.finish(workdir, DONE)


class Died(Exception):
    """Of a worker."""


@pytest.mark.random
def test_random_faults_lose_nothing_and_commit_nothing_twice(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three studies, whose drivers live, compete for trials of three steps. A worker renews its
    claim four times in a second; another study takes it away once it has not changed for one, as
    when the worker dies, or stands still and comes back.
    """
    monkeypatch.setattr(bucket, "LEASE_S", 1.0)
    store, seed = Store.open(fresh()), random.randrange(10**9)
    print(f"seed {seed}")
    firsts: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    lock, attempts = threading.Lock(), itertools.count(1)
    trials: set[str] = set()
    for number in range(3):
        entry = {**bucket.EMPTY, **entry_of("another"), "lease_s": 3600.0}
        assert store.study(f"s{number}")._put("driver.lock", [entry], None)
    proxy.fault = at_random(0.15, seed, NUM_FAULTS)

    def outcome(trial_id: str, steps: list[int]) -> Outcome:
        rows = tuple({"epoch": float(s), "step": s * int(trial_id, 16) / 7} for s in steps)
        return Outcome(Status.FINISHED, rows, {"commit": "abc"})

    def attempt(trial_id: str, study: str, how: str) -> None:
        workdir = store.claim(trial_id, {"lr": 0.1}, study, next(attempts))
        with contextlib.ExitStack() as renewed:
            renewed.enter_context(workdir.renewed())
            names = workdir.names("checkpoint-")
            steps = json.loads(workdir.read(names[-1])) if names else []
            for step in range(len(steps) + 1, 4):
                steps.append(step)
                workdir.write(f"checkpoint-{step:09d}-x.pt", json.dumps(steps).encode())
                if how == "dies":
                    raise Died
            if how == "stands still":
                renewed.close()
                time.sleep(1.5)
            first = store.finish(workdir, outcome(trial_id, steps), {"wrong-x.parquet": b"wrong"})
        with lock:
            firsts[trial_id] += first

    def work(number: int) -> None:
        """One worker tries trials until all are done; another may fence it at any request."""
        draws = random.Random(seed + number)
        while left := [t for t in sorted(trials) if not is_done(t)]:
            trial_id = draws.choice(left)
            try:
                how = draws.choices(["trains", "dies", "stands still"], [3, 1, 1])[0]
                attempt(trial_id, f"s{number}", how)
                ends["done"] += 1
            except Died:
                ends["died"] += 1
            except ClaimedByOther:
                with contextlib.suppress(OSError):
                    ends["expired"] += store.trial(trial_id).expire()
                time.sleep(0.05)
            except OSError as error:
                assert "\n" not in str(error)
                ends[type(error).__name__] += 1
            except Fenced:
                ends["fenced"] += 1

    def is_done(trial_id: str) -> bool:
        with lock:
            if firsts[trial_id]:
                return True
        try:
            return store.is_done(trial_id)
        except OSError:
            return False

    while proxy.faults.total() < NUM_FAULTS:
        trials |= {f"{len(trials) + n:012x}" for n in range(6)}
        workers = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    proxy.fault = lambda method, path: ""
    print(f"{dict(proxy.faults)}; {len(trials)} trials, {dict(ends)}")
    assert store.done_of(trials) == trials
    for trial_id in trials:
        assert store.read(trial_id) == outcome(trial_id, [1, 2, 3])
        assert firsts[trial_id] <= 1
        assert store.trial(trial_id).read("wrong-x.parquet") == b"wrong"
    # a worker whose reply about rows was lost for good does not know that it was first
    unsure = sum(
        num for name, num in ends.items() if name not in ("done", "fenced", "expired", "died")
    )
    assert sum(firsts.values()) >= len(trials) - unsure


def start_once(url: str, role: str, log: Path, environment: dict[str, str]) -> None:
    """What a start, or a clean, does with locks; notes when it holds them (CLOCK_MONOTONIC is of
    the whole machine).
    """
    os.environ.update(environment)  # the process that forks this one may be older
    faulthandler.dump_traceback_later(200, exit=True)  # where it is, if it does not end
    store, number = Store.at(url), 0

    def note(what: str, lock: str) -> None:
        with log.open("a") as file:
            file.write(f"{time.monotonic()} {os.getpid()} {what} {lock} {number}\n")

    try:
        if role == "clean":
            with store.cleaning():
                note("begin", "cleaning")
                store.folder.names()
                note("end", "cleaning")
            return
        with store.drive("s") as number:
            note("begin", "driver")
            with store.planning():
                note("begin", "planning")
                store.study("s").write("plan.json", json.dumps({"attempt": number}).encode())
                note("end", "planning")
            assert json.loads(store.study("s").read("plan.json")) == {"attempt": number}
            note("end", "driver")
    except (OSError, ValueError) as error:
        assert "\n" not in str(error)
        note(type(error).__name__, role)


@pytest.mark.random
@pytest.mark.timeout(900)
def test_random_faults_leave_one_driver_at_a_time_and_none_beside_a_clean(
    proxy: Proxy, tmp_path: Path
) -> None:
    """Three starts of one study and a clean compete, each in a process of its own, again and again;
    each start that gets through has a number of its own.
    """
    url, log, seed = fresh(), tmp_path / "log", random.randrange(10**9)
    print(f"seed {seed}")
    Store.open(url)
    proxy.fault = at_random(0.15, seed, NUM_FAULTS)
    while proxy.faults.total() < NUM_FAULTS:
        asked, given = proxy.requests.total(), (log, dict(os.environ))
        processes = [
            SPAWNER.Process(target=start_once, args=(url, role, *given))
            for role in ("start", "start", "start", "clean")
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(240)
            assert process.exitcode == 0
        assert proxy.requests.total() > asked
    proxy.fault = lambda method, path: ""

    notes = [line.split() for line in log.read_text().splitlines()]
    held: dict[tuple[str, str], list[float]] = {}  # (process, lock) -> begin, and end if it came
    for when, pid, what, lock, _ in notes:
        if what in ("begin", "end"):
            held.setdefault((pid, lock), []).append(float(when))
    numbers = [
        int(number) for *_, what, lock, number in notes if (what, lock) == ("begin", "driver")
    ]
    ends = Counter(what for _, _, what, *_ in notes)
    print(f"{dict(proxy.faults)}; {len(numbers)} starts drove, {dict(ends)}")
    assert len(numbers) > 3 and len(set(numbers)) == len(numbers)

    def times(*locks: str) -> list[list[float]]:
        return sorted(found for (_, lock), found in held.items() if lock in locks)

    assert times("cleaning")
    for group in (times("driver"), times("cleaning", "planning")):
        whole = [found for found in group if len(found) == 2]
        for begin, end in whole:
            assert not [one for one in group if begin < one[0] < end]
    assert not Store.at(url).driver_is_alive("s")


@pytest.mark.parametrize("form", ["no file", "no JSON", "a key that is none"])
def test_credentials_of_google_that_cannot_be_read_are_refused_at_once(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not waited for, as a server is; and not printed."""
    file = tmp_path / "key.json"
    if form == "no JSON":
        file.write_text(SECRET)
    name = (
        "GOOGLE_SERVICE_ACCOUNT_KEY" if form == "a key that is none" else "GOOGLE_SERVICE_ACCOUNT"
    )
    monkeypatch.setenv(name, SECRET if form == "a key that is none" else str(file))
    object_store._client.cache_clear()
    began_s = time.monotonic()
    with refusing("store='gs://studies/x'") as caught:
        Store.open("gs://studies/x")
    assert SECRET not in str(caught.value) and "\n" not in str(caught.value)
    assert time.monotonic() - began_s < PATIENCE_S / 2
    object_store._client.cache_clear()


def test_a_server_of_tokens_that_refuses_is_not_asked_again() -> None:
    """As Google does with a key that was withdrawn."""
    refusal = RuntimeError(
        "Generic GCS error: Error performing token request: Error performing POST "
        "https://accounts.google.com/o/oauth2/token in 5ms - Server returned non-2xx status code: "
        f"400 Bad Request: invalid_grant {SECRET}"
    )
    failure = Bucket("gs://studies/x")._failure(refusal)
    assert isinstance(failure, object_store.Refused)
    assert "credentials must be valid" in str(failure) and SECRET not in str(failure)


@OF_S3
@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("501 NotImplemented", "NotImplemented"),
        ("301 PermanentRedirect", "AWS_REGION="),
    ],
)
def test_what_no_further_try_can_change_is_refused_at_once(
    proxy: Proxy, answer: str, value: str
) -> None:
    proxy.fault = lambda method, path: answer if method == "PUT" else ""
    with refusing(value):
        Store.open(fresh())
    assert proxy.faults[answer] <= 3  # those of obstore itself


def test_the_doctor_s_checks_of_a_store_pass_in_a_bucket_and_leave_nothing(proxy: Proxy) -> None:
    store = Store.open(fresh())
    machine = Machine(store=str(store.root))
    for check in (storage.creation, storage.replacement, storage.locks, storage.speed):
        found = check(machine)
        assert found.verdict == Verdict.PASS, found.detail
    assert all(float(value) > 0 for value in found.values.values())
    assert not store.folder.files()


@OF_S3
def test_the_doctor_finds_a_bucket_in_which_two_may_create_an_object(proxy: Proxy) -> None:
    machine = Machine(store=str(Store.open(fresh()).root))
    proxy.fault = lambda method, path: "without If-None-Match" if method == "PUT" else ""
    found = storage.creation(machine)
    assert found.verdict == Verdict.FAIL and "one creator of a file must win" in found.detail


@OF_S3
def test_the_doctor_does_not_wait_for_a_server_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Studies wait for two minutes, which is longer than a check may take."""
    point_at("http://127.0.0.1:9", monkeypatch)
    monkeypatch.setattr("vitscale.record.bucket.PROBE_PATIENCE_S", 0.1)
    began_s = time.monotonic()
    with refusing("no connection", error=OSError):
        storage.locks(Machine(store=fresh()))
    assert time.monotonic() - began_s < PATIENCE_S / 2


def test_what_a_killed_probe_or_check_left_is_scratch(store: Store) -> None:
    store.folder.within(".doctor-0a1b2c3d").write("large", b"123")
    store.folder.write(f"{WRITABLE}0a", b"1")
    store.trials.write(f"{WRITABLE}0b", b"1")
    assert not survey(store).leftovers  # it may be of one that runs now
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitscale.record.cleanup.UNTOUCHED_S", -2.0)
        found = survey(store)
        assert {item.kind for item in found.leftovers} == {"scratch"}
        assert sum(item.num_bytes for item in found.leftovers) == 5
        clean(store, found)
    assert store.folder.files().keys() <= {"planning.lock"}


def test_a_listing_and_a_look_give_an_object_the_same_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some servers list fractions of seconds; the index compares both."""
    store.trials.write("0" * 12 + "/rows.parquet", b"1")
    real = object_store._obstore().list

    def with_fractions(*arguments: Any) -> Any:
        for page in real(*arguments):
            yield [
                {**one, "last_modified": one["last_modified"].replace(microsecond=250_000)}
                for one in page
            ]

    monkeypatch.setattr(object_store._obstore(), "list", with_fractions)
    (listed,) = store.trials.files().values()
    assert listed == store.trials.within("0" * 12).state("rows.parquet")
    assert listed.changed_s == int(listed.changed_s)


@OF_S3
def test_a_study_that_is_not_finished_is_read_by_listings(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not by some requests per trial, which would be an hour for 10,000 far away."""
    monkeypatch.setattr(bucket, "FEW", 10)  # files that are asked for one by one
    plan, store = load_script(TINY).study(num=40, epochs=2), Store.open(fresh())
    store.study(plan.slug).write("plan.json", json.dumps(to_json(plan)).encode())
    ids = [trial.config.id for trial in plan.trials]
    with store.drive(plan.slug) as attempt:
        worker = store.claim(ids[0], {}, plan.slug, attempt)
        store.fail(worker, "ValueError: no", "ValueError: no")
        worker = store.claim(ids[1], {}, plan.slug, attempt)
        store.lose(worker, "OSError: no", "OSError: no")
        store.claim(ids[2], {}, plan.slug, attempt)
        before = sum(proxy.requests.values())
        statuses = Counter(outcome.status for outcome in read_trials(plan, store).values())
        asked = sum(proxy.requests.values()) - before
        assert statuses == {Status.FAILED: 1, Status.MISSING: len(ids) - 1}
        assert asked <= 15 < len(ids)
        before = sum(proxy.requests.values())
        ((state,), _) = overview(store)
        asked = sum(proxy.requests.values()) - before
        assert (state.failed, state.running, state.missing) == (1, 1, len(ids) - 2)
        assert asked <= 40 < len(ids)
