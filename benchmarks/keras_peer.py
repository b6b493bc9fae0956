"""The same examples in plain Keras, in one process, for comparison with Scavenger.

A child process of the benchmarks; its last line on standard output is a JSON document.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
_WARM_UP_STEPS = 3
_TIMEOUT_S = 180.0


def run_peer(
    job_dir: Path,
    *,
    threads: int,
    batch: int,
    steps: int,
    code: str = "job",
    load: Path | None = None,
    save: Path | None = None,
) -> dict[str, Any]:
    """Train in a fresh process, with as many threads as a worker has.

    Args:
        code: The function of `train.py` that returns the job.
        steps: Undisturbed steps to time; 0 to leave after the first.
        load: A checkpoint to go on from, weights and optimizer.
        save: Where to write one at the end.

    Returns:
        `step_times_s`, `first_step_at_s` (monotonic clock, which processes share) and `save_s`.

    Raises:
        RuntimeError: If the process fails.
    """
    command = [sys.executable, "-m", "benchmarks.keras_peer", str(job_dir)]
    command += ["--batch", str(batch), "--steps", str(steps), "--code", code]
    for name, path in (("--load", load), ("--save", save)):
        command += [] if path is None else [name, str(path)]
    environment = {
        **os.environ,
        **dict.fromkeys(_THREADS, str(threads)),
        "TF_NUM_INTEROP_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "KERAS_BACKEND": "tensorflow",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(f"the Keras process ended with {done.returncode}: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("job_dir", type=Path)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--code", default="job")
    parser.add_argument("--load", type=Path)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()

    sys.path.insert(0, str(options.job_dir))
    import numpy as np

    job = getattr(importlib.import_module("train"), options.code)()
    model, (x, y) = job.model, job.train
    if options.load is not None:
        model.optimizer.build(model.trainable_variables)  # else its slots would not be restored
        model.load_weights(options.load)
    order = np.random.default_rng(0).permutation(len(x))

    def step(number: int) -> float:
        begin = time.perf_counter()
        indices = np.take(order, range(number * options.batch, (number + 1) * options.batch), mode="wrap")
        model.train_on_batch(x[indices], y[indices])
        return time.perf_counter() - begin

    step(0)
    first_step_at_s = time.monotonic()
    warm = _WARM_UP_STEPS if options.steps else 0
    times = [step(number) for number in range(1, 1 + warm + options.steps)]
    save_s = 0.0
    if options.save is not None:
        begin = time.perf_counter()
        model.save_weights(options.save)
        save_s = time.perf_counter() - begin
    print(json.dumps({"step_times_s": times[warm:], "first_step_at_s": first_step_at_s, "save_s": save_s}))


if __name__ == "__main__":
    main()
