"""Loops that train in milliseconds: logistic regression in NumPy, with momentum, on samples drawn from a seed.

What each worker reads and when it holds still is told by the environment, so that a test can strike in mid-round.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from scavenger.sdk import loop

SIZES = (37, 50, 0, 41, 23, 60, 12, 33)
LOCAL_BATCH_SIZE, EPOCHS = 8, 2
POISON = (3, 17)
_RANDOM = np.random.default_rng(7)
X = [_RANDOM.normal(size=(size, 5)) for size in SIZES]
Y = [(x @ _RANDOM.normal(size=5) > 0).astype(float) for x in X]


class Shards:
    sizes = SIZES

    def read(self, shard: int, start: int, stop: int) -> Any:
        return X[shard][start:stop], Y[shard][start:stop]


class Replica:
    """Weights, velocity, and the number of steps in them."""

    def __init__(self, seed: int) -> None:
        self.w = np.random.default_rng(seed).normal(size=5)
        self.velocity = np.zeros(5)
        self.steps = np.zeros((), dtype=np.int64)

    def state(self) -> dict[str, Any]:
        return {"w": self.w, "velocity": self.velocity, "steps": self.steps}

    def load(self, state: dict[str, Any]) -> None:
        self.w, self.velocity = state["w"].copy(), state["velocity"].copy()
        self.steps = state["steps"].copy()

    def gradient(self, x: Any, y: Any) -> tuple[Any, float]:
        p = 1.0 / (1.0 + np.exp(-(x @ self.w)))
        loss = float(-np.mean(y * np.log(p + 1e-9) + (1 - y) * np.log(1 - p + 1e-9))) if len(y) else 0.0
        return x.T @ (p - y) / max(1, len(y)), loss

    def apply(self, gradient: Any) -> None:
        self.velocity = 0.9 * self.velocity - 0.1 * gradient
        self.w = self.w + self.velocity
        self.steps = self.steps + 1


def train() -> None:
    # every worker begins elsewhere: what they end with shows whether they took over the first one's replica
    replica = Replica(os.getpid())
    job = loop.init(Shards(), state=replica.state, load=replica.load)
    pause_s = float(os.environ.get("LOOP_PAUSE_S", "0.02"))
    for _ in job.epochs(EPOCHS):
        for batch in job.batches(LOCAL_BATCH_SIZE):
            gradient, loss = replica.gradient(*batch.data)
            time.sleep(pause_s)
            mean = job.push_pull({"w": gradient}, samples=len(batch))
            replica.apply(mean["w"])
            job.notify_batch_end(loss=loss)


def poisoned() -> None:
    """One sample ends the process that reads it, without a word."""
    replica = Replica(0)
    job = loop.init(Shards(), state=replica.state, load=replica.load)
    for _ in job.epochs(EPOCHS):
        for batch in job.batches(LOCAL_BATCH_SIZE):
            if batch.shard == POISON[0] and batch.start <= POISON[1] < batch.stop:
                os.kill(os.getpid(), signal.SIGSEGV)
            mean = job.push_pull({"w": replica.gradient(*batch.data)[0]})
            replica.apply(mean["w"])
            job.notify_batch_end()


def raises() -> None:
    job = loop.init(Shards(), state=dict, load=lambda _: None)
    for batch in job.batches(LOCAL_BATCH_SIZE):
        raise ValueError(f"cannot digest {len(batch)} samples")


def drifts() -> None:
    """A part of the weights, which the state has, moves by each worker's own gradient."""
    replica, own = Replica(0), np.zeros(5)

    def state() -> dict[str, Any]:
        return {**replica.state(), "own": own}

    def load(state: dict[str, Any]) -> None:
        replica.load(state)
        own[:] = state["own"]

    job = loop.init(Shards(), state=state, load=load)
    for _ in job.epochs(EPOCHS):
        for batch in job.batches(LOCAL_BATCH_SIZE):
            gradient, _ = replica.gradient(*batch.data)
            time.sleep(0.02)
            replica.apply(job.push_pull({"w": gradient})["w"])
            own[:] -= 0.1 * gradient
            job.notify_batch_end()


def yields_nan() -> None:
    job = loop.init(Shards(), state=dict, load=lambda _: None)
    for _ in job.batches(LOCAL_BATCH_SIZE):
        job.push_pull({"w": np.array([1.0, float("nan")])})
        job.notify_batch_end()


def forgets_to_join() -> None:
    Path.cwd()
