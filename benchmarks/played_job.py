"""The training code of played jobs: a loop without TensorFlow whose steps last as long as a measured curve says.

`real_pool` copies this file into the folder of the jobs. Processes, messages, views, leases and checkpoints are real.
"""

from __future__ import annotations

import time

import numpy as np

from scavenger.sdk import LoopJob, loop

_WEIGHTS = 1000


def train(rates: list[float], batch: int, samples: int) -> None:
    """Train a model of a few numbers.

    Args:
        rates: Steps a second with 1, 2, ... workers, at a global batch of `batch` samples.
        samples: Of an epoch.
    """
    state = {"w": np.zeros(_WEIGHTS)}
    job = loop.init([samples], state=lambda: state, load=state.update, apart=True)
    generator = np.random.default_rng()
    for _ in job.epochs():
        for part in job.batches():
            if len(part):
                # the curve is of whole batches; the last one of an epoch may be smaller
                workers = min(len(rates), max(1, round(batch / len(part))))
                time.sleep(1.0 / rates[workers - 1])
            noise = generator.normal(size=_WEIGHTS) / max(1, len(part)) ** 0.5
            mean = job.push_pull({"w": 1.0 + noise}, samples=len(part))
            state["w"] = state["w"] - 1e-3 * mean["w"]
            job.notify_batch_end(loss=1.0)


job = LoopJob(train)
