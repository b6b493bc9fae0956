"""Data and checkpoints in S3 by the identity that a VM has: a faithful S3, and the metadata service of the VM.

The service gives the keys of the VM's role; nothing else on the machine names any.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import numpy as np
import pytest
from metadata_server import Answer, MetadataServer
from served import Served

pytest.importorskip("s3fs")

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from scavenger.train.checkpoints.checkpoint import CheckpointStore
from scavenger.train.checkpoints.files import check_location, open_files

pytestmark = pytest.mark.slow


class Role(MetadataServer):
    """EC2's metadata service of a VM with an instance profile."""

    def answer(self, method: str, path: str, headers: Message) -> Answer:
        if path == "/latest/api/token":
            return 200, {}, "token"
        if headers.get("X-aws-ec2-metadata-token") != "token":
            return 401, {}, ""
        credentials = "/latest/meta-data/iam/security-credentials/"
        if path == credentials:
            return 200, {}, "scavenger-vms"
        if path == f"{credentials}scavenger-vms":
            keys = {
                "Code": "Success",
                "AccessKeyId": "ASIAVMROLE",
                "SecretAccessKey": "secret",
                "Token": "token",
                "Expiration": "2099-01-01T00:00:00Z",
            }
            return 200, {"Content-Type": "application/json"}, json.dumps(keys)
        return 404, {}, ""


class Store:
    """S3 of moto with a bucket; `askers` are the keys that requests were signed with."""

    def __init__(self) -> None:
        self.askers: set[str] = set()
        self.bucket = f"job-{uuid4()}"
        moto = DomainDispatcherApplication(create_backend_app)

        def application(environ: dict[str, Any], start_response: Any) -> Any:
            signed = environ.get("HTTP_AUTHORIZATION", "")
            self.askers.add(signed.partition("Credential=")[2].partition("/")[0])
            return moto(environ, start_response)

        self._served = Served(make_server("127.0.0.1", 0, application, threaded=True))
        self.url = self._served.url

    def close(self) -> None:
        self._served.close()


@pytest.fixture
def vm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Store]:
    """A VM with a role, and no other credentials."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    store, role = Store(), Role()
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{role.port}/")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
    filesystem = fsspec.filesystem("s3", skip_instance_cache=True)
    filesystem.mkdir(store.bucket)
    yield store
    fsspec.filesystem("s3").clear_instance_cache()
    role.close()
    store.close()


def test_files_are_written_and_read_with_the_role_of_the_vm(vm: Store) -> None:
    check_location(f"s3://{vm.bucket}/checkpoints")
    files = open_files(f"s3://{vm.bucket}/checkpoints")

    files.write("step-1", "part", iter([memoryview(b"weights"), memoryview(b" and more")]))

    assert files.folders() == ["step-1"]
    with files.reading("step-1", "part") as (file, size):
        assert (file.read(), size) == (b"weights and more", 16)
    assert vm.askers == {"ASIAVMROLE"}


def test_a_part_of_a_checkpoint_comes_back_and_what_was_not_finished_is_discarded(vm: Store) -> None:
    store = CheckpointStore(f"s3://{vm.bucket}/job")
    assert store.latest() is None

    part = store.write_part(7, "1", "part-0", {"weights": np.arange(3, dtype=np.float32)})

    assert part.bytes > 0
    store.discard_unfinished()
    assert open_files(f"s3://{vm.bucket}/job").folders() == []
    assert vm.askers == {"ASIAVMROLE"}
