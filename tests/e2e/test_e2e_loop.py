"""A training loop of the user's own runs from a job file: searched, killed, resumed, and exact to the last step."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audits import AUDIT_FILE, verify_audit
from real_jobs import Job, lines, marked, opened, training
from waiting import wait_for

from scavenger.control.provisioning.model_size import recorded_size
from scavenger.store import Store

pytestmark = pytest.mark.slow

SHARDS, SHARD, STEPS = 8, 64, 16
"""Shards, samples of each, and the steps of an epoch at batch 32."""

_MODULE = f"""
import time
import numpy as np
from scavenger.sdk import LoopJob, loop

rng = np.random.default_rng(0)
X = rng.normal(size=({SHARDS * SHARD}, 4))
Y = X @ np.array([1.0, -2.0, 3.0, 0.5]) + 0.3 * rng.normal(size=len(X))

def step(state, gradient):
    velocity = 0.9 * state["velocity"] - 0.002 * gradient
    return {{"w": state["w"] + velocity, "velocity": velocity}}

def gradient(w, rows):
    x, error = X[rows], X[rows] @ w - Y[rows]
    return x.T @ error / max(1, len(x)), float(np.mean(error**2)) if len(x) else 0.0

def begin():
    return {{"w": np.zeros(4), "velocity": np.zeros(4)}}

def train():
    state = begin()
    def load(given):
        state.update(given)
    job = loop.init([{SHARD}] * {SHARDS}, state=lambda: state, load=load,
                    evaluate=lambda: {{"val_error": float(np.abs(state["w"] - [1, -2, 3, 0.5]).max())}})
    for _ in job.epochs():
        for batch in job.batches():
            rows = slice(batch.shard * {SHARD} + batch.start, batch.shard * {SHARD} + batch.stop)
            time.sleep(0.0004 * len(batch))
            g, loss = gradient(state["w"], rows)
            state.update(step(state, job.push_pull({{"w": g}}, samples=len(batch))["w"]))
            job.notify_batch_end(loss=loss)

job = LoopJob(train, metrics=["val_error"])
"""


def _loop(make_job: Callable[..., Job], **sections: Any) -> Job:
    job = make_job(**sections)
    (job.folder / "train.py").write_text(_MODULE)
    return job


def _replayed(path: Path) -> dict[str, Any]:
    """The state after the audit's steps, computed alone: the mean over the samples that each step counted."""
    module: dict[str, Any] = {}
    exec(_MODULE.replace("from scavenger.sdk import LoopJob, loop", "LoopJob = lambda *a, **k: None"), module)
    state, steps = module["begin"](), {}
    for line in lines(path):
        if line["kind"] == "resumed":
            steps = {number: pieces for number, pieces in steps.items() if number <= line["step"]}
        elif line["kind"] == "step":
            steps[line["step"]] = line["pieces"]
    for number in sorted(steps):
        rows = np.concatenate([np.arange(start, stop) for _, start, stop in steps[number]])
        state = module["step"](state, module["gradient"](state["w"], rows)[0])
    return state


def _saved(path: str) -> dict[str, Any]:
    safetensors = pytest.importorskip("safetensors.numpy")
    found: dict[str, Any] = safetensors.load_file(path)
    return found


def test_a_loop_is_searched_and_survives_the_death_of_a_worker_and_of_the_command(
    make_job: Callable[..., Job], mark: str
) -> None:
    epochs = 14
    job = _loop(
        make_job,
        search={"workers": [1, 2], "batch_size": [32], "strategy": "full"},
        goal={"metric": "val_error", "target": 1e-9, "max_epochs": epochs, "epochs_hint": 10},
        checkpoint={"path": "./saved", "every_steps": 20},
        profile={"steps": 5},
        elastic={"policy": "fixed"},
    )
    driver = job.start("optimize", "--audit")
    victim = wait_for(training(job), driver)[0]
    os.kill(victim, signal.SIGKILL)
    wait_for(training(job, phase="running"), driver)
    wait_for(lambda: _record(job).checkpoint, driver)
    driver.kill()
    driver.communicate()
    wait_for(lambda: [p for p in marked(mark) if p.pid != os.getpid()] == [])
    before = _record(job)
    with Store.open(job.store) as store:
        assert recorded_size(store, before.id) is None, "a loop has no aggregators"

    outcome = job.ask("resume", "tiny", "--yes", "--audit")
    report = outcome.report

    assert (report["job"]["state"], report["job"]["id"]) == ("target_missed", before.id), outcome.stderr
    assert report["actual"]["epochs"] == pytest.approx(epochs)
    assert report["actual"]["cost_usd"] > (before.cost_usd or 0.0) > 0.0
    assert report["predicted"]["time_s"] > 0.0
    audit = Path(report["measurements_path"]).with_name(AUDIT_FILE)
    assert verify_audit(audit, SHARDS * SHARD) == []
    journal = list(lines(report["measurements_path"]))
    assert {line["configuration"]["workers"] for line in journal if line["kind"] == "measurement"} == {1, 2}
    assert all("val_error" in line["metrics"] for line in journal if line["kind"] == "epoch")
    noise = [line["noise_scale"] for line in journal if line["kind"] == "step" and line["noise_scale"]]
    assert noise
    best = min(
        (line for line in journal if line["kind"] == "epoch"), key=lambda line: line["metrics"]["val_error"]
    )
    if best["step"] == report["steps"]:  # else the model is that of an earlier step
        saved = _saved(report["model_path"])
        for name, value in _replayed(audit).items():
            np.testing.assert_allclose(saved[name], value, rtol=1e-9, atol=1e-12)


def _record(job: Job) -> Any:
    return opened(job).jobs(limit=1)[0]
