"""Checkpoints and data in Google Cloud Storage by the identity that a VM has, and what is said where that fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.message import Message
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from metadata_server import Answer, MetadataServer
from properties import examples

pytest.importorskip("gcsfs")
pytest.importorskip("gcp_storage_emulator")

from gcs_server import GcsServer
from gcsfs.core import GCSFileSystem

from scavenger.errors import ConfigurationError, CredentialsError
from scavenger.train.checkpoints.checkpoint import CheckpointStore
from scavenger.train.checkpoints.files import check_location, check_storage, open_files
from scavenger.train.checkpoints.manifest import CheckpointFile, CheckpointManifest
from scavenger.train.object_stores import filesystem_at

WEIGHTS = {"kernel": np.arange(1200, dtype=np.float32).reshape(40, 30)}
LARGE = {"kernel": np.arange(3 << 20, dtype=np.float32)}
"""Larger than what is sent in one request."""


class ServiceAccount(MetadataServer):
    """Compute Engine's metadata server of a VM with a service account."""

    def answer(self, method: str, path: str, headers: Message) -> Answer:
        flavor = {"Metadata-Flavor": "Google"}
        if headers.get("Metadata-Flavor") != "Google":
            return 403, flavor, ""
        account, _, _ = path.partition("?")
        told: Mapping[str, str] = {
            "/": "ok",
            "/computeMetadata/v1/project/project-id": "job-project",
            "/computeMetadata/v1/universe/universe-domain": "googleapis.com",
            "/computeMetadata/v1/instance/service-accounts/default/": json.dumps(
                {"email": "vm@job-project.iam.gserviceaccount.com", "scopes": []}
            ),
        }
        if account in told:
            kind = "application/json" if told[account].startswith("{") else "application/text"
            return 200, {**flavor, "Content-Type": kind}, told[account]
        if account.endswith("/token"):
            token = {"access_token": "of-the-vm", "expires_in": 3600, "token_type": "Bearer"}
            return 200, {**flavor, "Content-Type": "application/json"}, json.dumps(token)
        return 404, flavor, ""


@pytest.fixture(scope="module")
def vm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """A VM with a service account, and no other credentials; what it may do is set anew by each test."""
    account, storage = ServiceAccount(), GcsServer(f"job-{uuid4()}", token="of-the-vm")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG", "GOOGLE_CLOUD_PROJECT"):
            patch.delenv(name, raising=False)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        metadata = f"127.0.0.1:{account.port}"
        for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
            patch.setenv(name, metadata)
        # read when google-auth is imported, which another test may have done
        patch.setattr("google.auth.compute_engine._metadata._GCE_METADATA_HOST", metadata)
        GCSFileSystem.clear_instance_cache()
        yield storage
    GCSFileSystem.clear_instance_cache()
    account.close()
    storage.close()


@pytest.fixture
def url(vm: GcsServer) -> str:
    """A folder of the bucket that nobody else uses."""
    vm.forbidden = set()
    return f"gs://{vm.bucket}/{uuid4()}"


def commit(url: str, step: int, tensors: Mapping[str, npt.NDArray[np.generic]] = WEIGHTS) -> CheckpointStore:
    store = CheckpointStore(url)
    part = store.write_part(step, "a", "a0", tensors)
    store.commit(manifest(step, (part,)))
    return store


def manifest(step: int, parts: tuple[CheckpointFile, ...]) -> CheckpointManifest:
    return CheckpointManifest(
        fingerprint="f", step=step, attempt="a", parts=parts, created_at=datetime(2030, 1, 1, tzinfo=UTC),
        epoch=0, consumed=0, view=1, state={},
    )  # fmt: skip


def step_of(url: str) -> int | None:
    found = CheckpointStore(url).latest()
    return None if found is None else found.manifest.step


@examples(8)
@given(st.lists(st.binary(max_size=400), max_size=4), st.integers(0, 1600))
def test_what_is_written_is_read_from_any_byte_on(vm: GcsServer, chunks: list[bytes], begin: int) -> None:
    whole = b"".join(chunks)
    files = open_files(f"gs://{vm.bucket}/{uuid4()}")
    files.write("step-1", "part", [memoryview(chunk) for chunk in chunks])

    with files.reading("step-1", "part", min(begin, len(whole))) as (file, size):
        assert (bytes(file.read(len(whole) + 1)), size) == (whole[begin:], len(whole))
    assert files.folders() == ["step-1"]
    files.remove("step-1", "part")
    files.remove("step-1", "part")
    assert files.folders() == []


def test_checkpoints_of_any_size_come_back_and_the_older_ones_are_removed(url: str) -> None:
    for step, tensors in enumerate((WEIGHTS, LARGE, WEIGHTS, LARGE), start=1):
        commit(url, step, tensors)

        found = CheckpointStore(url).latest()
        assert found is not None
        assert found.manifest.step == step
        assert np.array_equal(found.tensors("a0")["kernel"], tensors["kernel"])
    assert sorted(open_files(url).folders()) == ["step-00000003-a", "step-00000004-a"]


def test_parts_that_several_write_at_once_make_one_checkpoint(url: str) -> None:
    def write(number: int) -> CheckpointFile:
        return CheckpointStore(url).write_part(5, "a", f"a{number}", {"kernel": np.full(9, number)})

    with ThreadPoolExecutor(4) as pool:
        parts = tuple(pool.map(write, range(4)))
    CheckpointStore(url).commit(manifest(5, parts))

    found = CheckpointStore(url).latest()
    assert found is not None
    assert [int(found.tensors(f"a{number}")["kernel"][0]) for number in range(4)] == [0, 1, 2, 3]


WRITER = """
import sys, time
from scavenger.train.checkpoints.files import open_files

def chunks():
    for _ in range(24):
        yield memoryview(bytes(1 << 20))
    print("half", flush=True)
    time.sleep(600)

open_files(sys.argv[1]).write("step-00000002-a", "part-a0.safetensors", chunks())
"""


def test_a_writer_that_is_killed_in_the_middle_leaves_the_checkpoint_before(vm: GcsServer, url: str) -> None:
    commit(url, 1)
    began = len(vm.requests)
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, env=os.environ
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"half\n"
        writer.send_signal(signal.SIGKILL)
    assert any("upload_id" in path for _, path in vm.requests[began:]), "nothing was sent before it died"

    assert open_files(url).folders() == ["step-00000001-a"]
    assert step_of(url) == 1
    commit(url, 2)
    assert step_of(url) == 2


def test_a_write_that_fails_leaves_no_object(url: str) -> None:
    def breaks() -> Iterator[memoryview]:
        yield memoryview(bytes(100))
        raise OSError("the worker is gone")

    with pytest.raises(OSError, match="the worker is gone"):
        open_files(url).write("step-1", "part", breaks())
    assert open_files(url).folders() == []


def test_nothing_but_objects_is_asked_for_and_nothing_is_warned_of(
    vm: GcsServer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    began = len(vm.requests)
    check_location(url)
    check_storage(url)
    commit(url, 1)

    assert caplog.records == []
    assert {path.split("?")[0].split("/o")[0].split("/b/")[-1] for _, path in vm.requests[began:]} <= {
        vm.bucket,
        "/batch/storage/v1",
    }
    assert open_files(url).folders() == ["step-00000001-a"]


def test_data_files_are_found_by_their_pattern(vm: GcsServer, url: str) -> None:
    for number in (2, 1):
        open_files(url).write("data", f"part-{number}.tfrecord", [memoryview(b"x")])

    filesystem, path = filesystem_at(f"{url}/data/*.tfrecord")

    assert [one.rsplit("/", 1)[-1] for one in sorted(filesystem.glob(path))] == [
        "part-1.tfrecord",
        "part-2.tfrecord",
    ]


def test_a_bucket_that_is_not_there_is_refused_before_the_job_begins(vm: GcsServer) -> None:
    with pytest.raises(
        ConfigurationError, match="gs://no-such/x: there is no such bucket: create it"
    ) as raised:
        check_storage("gs://no-such/x")
    assert raised.value.key == "checkpoint.path"


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
def test_an_account_that_may_not_do_all_of_it_is_refused_in_one_line(
    vm: GcsServer, url: str, method: str
) -> None:
    vm.forbidden = {method}
    try:
        with pytest.raises(CredentialsError, match="cannot be written, listed, read and removed") as raised:
            check_storage(url)
    finally:
        vm.forbidden = set()
    assert "\n" not in str(raised.value)
    assert "vm@job does not have" in str(raised.value)


def test_a_machine_without_credentials_is_told_to_log_in(
    vm: GcsServer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vm, "token", "of somebody else")

    with pytest.raises(CredentialsError, match="log in to the cloud"):
        check_storage(url)
