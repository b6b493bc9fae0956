"""The training code of cheap jobs with real workers: a loop without TensorFlow whose steps sleep by their samples."""

SHARDS, SHARD = 8, 64
"""Shards of an epoch, and samples of each."""
SLEEPING_LOOP = f"""\
import time
import numpy as np
from scavenger.sdk import LoopJob, loop

def train():
    state = {{"w": np.zeros(2)}}
    job = loop.init([{SHARD}] * {SHARDS}, state=lambda: state, load=state.update)
    for _ in job.epochs():
        for batch in job.batches():
            time.sleep(0.004 * len(batch))
            state["w"] = state["w"] + job.push_pull({{"w": np.ones(2)}}, samples=len(batch))["w"]
            job.notify_batch_end(loss=1.0)

job = LoopJob(train)
"""
