"""Workers that began before their job was known: they train as any other, and end with their program."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pipeline_code
import psutil
import pytest

from scavenger import Client, Job
from scavenger.domain.report import Event, Observer, StepDone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
JOB = Job(
    pipeline_code.model,
    data=pipeline_code.data,
    goal={"metric": "val_loss", "max_epochs": 3},
    workers=[1],
    batch_size=[20],
)


class Begun(Observer):
    """When the first worker's process had begun, before or after it was asked for."""

    def __init__(self, client: Client) -> None:
        self.client, self.asked_at = client, time.time()
        self.stood_by: bool | None = None
        self.waiting: list[psutil.Process] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, StepDone):
            (run,) = self.client._running.values()
            assert run.supervisor is not None
            worker = psutil.Process(run.supervisor.engine.pid("w0"))
            server = worker.parent()
            assert server is not None
            if self.stood_by is None:
                self.stood_by = worker.create_time() < self.asked_at
            self.waiting = server.children()


def weights(path: str) -> list[Any]:
    import keras

    model = keras.saving.load_model(path)
    return [np.asarray(value) for value in model.get_weights()]


@pytest.mark.long
def test_a_worker_that_stood_by_trains_bit_for_bit_as_a_new_one_and_ends_with_the_client(
    tmp_path: Path,
) -> None:
    job = JOB.with_settings({"output": str(tmp_path / "out")})
    with Client(store=str(tmp_path / "store.db"), progress=False) as client:
        new, after = Begun(client), Begun(client)
        first = client.optimize(job, observer=new)
        after.asked_at = time.time()
        second = client.optimize(job.with_settings({"search.strategy": "reuse"}), observer=after)

    assert (new.stood_by, after.stood_by) == (False, True)
    assert second.profiled == 0  # so names and seeds of its model are those of the first
    assert second.value == first.value
    assert first.model_path is not None
    assert second.model_path is not None
    for one, other in zip(weights(first.model_path), weights(second.model_path), strict=True):
        assert np.array_equal(one, other)
    assert psutil.wait_procs(after.waiting, timeout=20)[1] == []
