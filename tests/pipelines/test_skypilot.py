"""SkyPilot asks a stored model for the time of a task; with the package itself where it is installed."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scavenger import Client
from scavenger.domain.configuration import Configuration, Offer, SearchSpace
from scavenger.domain.fingerprint import Fingerprint
from scavenger.domain.measurement import Measurement, Profile
from scavenger.errors import ConfigurationError
from scavenger.integrations.skypilot import time_estimator
from scavenger.models.job_model import SCHEMA_VERSION, JobModel
from scavenger.store import Store

pytestmark = pytest.mark.slow

VM = Offer("aws", "us-east-1", "m7i.xlarge", 0.2, "list price", cpus=4, memory_bytes=16 * 2**30)
SPACE = SearchSpace((VM,), (1, 2, 4, 8), (64, 256, 1024))
KEY = Fingerprint("a" * 64, 1000, "SGD:1", 10_000, 260, "val_accuracy>=0.97", VM.vm, "")


def fitted(hint: float = 10.0, slower: float = 1.0) -> JobModel:
    """The model of a job of which the laws are known."""
    measured = [
        Measurement(
            Configuration(VM.vm, k, b), 20, slower * (0.03 + 0.001 * -(-b // k)), 0.001, 0.02, 0.01, None, 300.0, 2**30
        )
        for k, b in ((1, 64), (1, 1024), (8, 1024), (8, 64), (2, 256))
    ]  # fmt: skip
    return JobModel.fit(Profile(tuple(measured), 10_000), space=SPACE, epochs_hint=hint, max_epochs=60)


def save(store: Store, model: JobModel, name: str) -> str:
    job = store.create_job(name, spec={}, job_file="job.yaml")
    document = model.to_dict()
    return store.save_model(
        KEY, document, job_id=job.id, schema_version=SCHEMA_VERSION, measurements=5, runs=0
    ).id


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Store.open(url) as store:
        save(store, fitted(slower=3.0), "digits")
        save(store, fitted(), "digits")
    with Client(store=url) as opened:
        yield opened


def resources(vm: str | None = VM.vm, accelerators: dict[str, float] | None = None) -> Any:
    return SimpleNamespace(instance_type=vm, accelerators=accelerators)


@pytest.mark.parametrize(("nodes", "batch"), [(1, 64), (2, 256), (4, 1000), (8, 1024)])
def test_seconds_are_those_of_the_newest_model(client: Client, nodes: int, batch: int) -> None:
    seconds = time_estimator(client, "digits", num_nodes=nodes, batch_size=batch)(resources())
    predicted = fitted().predict(VM, np.array([nodes]), np.array([batch]))
    assert seconds == math.ceil(predicted.time_s[0])
    assert isinstance(seconds, int)


def test_each_accelerator_of_a_node_has_a_worker(client: Client) -> None:
    seconds = time_estimator(client, "digits", num_nodes=2, batch_size=256)(resources(accelerators={"T4": 4}))
    offer = dataclasses.replace(VM, workers_per_vm=4)
    predicted = fitted().predict(offer, np.array([8]), np.array([256]))
    assert seconds == math.ceil(predicted.time_s[0])


def test_a_model_by_the_beginning_of_its_id(client: Client) -> None:
    record = client.models().records[0]
    by_id = time_estimator(client, record.id[:8], num_nodes=2, batch_size=256)(resources())
    assert by_id == math.ceil(
        JobModel.from_dict(client.model(record.id).model)
        .predict(VM, np.array([2]), np.array([256]))
        .time_s[0]
    )


@pytest.mark.parametrize(
    ("asked", "nodes", "batch", "words"),
    [
        (resources("m7i.2xlarge"), 2, 256, "measured on m7i.xlarge, not on m7i.2xlarge"),
        (resources(None), 2, 256, "name no VM type"),
        (resources(), 64, 256, r"measured with 1 to 8 workers and batch sizes from 64 to 1024"),
        (resources(), 2, 4096, "does not cover 2 x m7i.xlarge, batch 4096"),
        (resources(), 4, 2, "leaves some of 4 workers without samples"),
    ],
)
def test_what_the_model_does_not_cover_is_an_error(
    client: Client, asked: Any, nodes: int, batch: int, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        time_estimator(client, "digits", num_nodes=nodes, batch_size=batch)(asked)


def test_a_model_that_is_not_there(client: Client, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no stored model of cifar; there are some of digits"):
        time_estimator(client, "cifar", num_nodes=1, batch_size=64)
    with (
        Client(store=str(tmp_path / "empty.db")) as empty,
        pytest.raises(ConfigurationError, match="no stored model of digits; plan the job first"),
    ):
        time_estimator(empty, "digits", num_nodes=1, batch_size=64)


@pytest.mark.skipif(importlib.util.find_spec("sky") is None, reason="SkyPilot is not installed")
def test_a_task_of_skypilot_itself(client: Client, url: str, tmp_path: Path) -> None:
    program = Path(__file__).with_name("sky_program.py")
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, str(program), url], env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = json.loads(ran.stdout.splitlines()[-1])
    seconds = math.ceil(fitted().predict(VM, np.array([2]), np.array([256])).time_s[0])
    assert said["seconds"] == seconds
    assert said["usd"] == pytest.approx(0.2 * seconds / 3600)
    assert "not on m7i.2xlarge" in said["error"]
