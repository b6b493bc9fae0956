"""Runs a custom training loop on this machine until it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scavenger.train.custom_loop.report import LoopEvent, LoopReport
from scavenger.train.custom_loop.run import LoopRun
from scavenger.train.job_source import JobSource, Timeouts

_POLL_S = 0.1
_LIMIT_S = 600.0  # default: long enough for any step, and for building any model


def run_loop(
    train: str,
    *,
    workers: int,
    work_dir: Path,
    job_dir: Path,
    seed: int = 0,
    threads: int = 1,
    timeouts: Timeouts | None = None,
    checkpoints: str | None = None,
    resume: bool = False,
    on_event: Callable[[LoopRun, LoopEvent], None] | None = None,
) -> LoopReport:
    """Run a training function on several workers of this machine until it ends.

    Args:
        train: The training function, as `module:function`; see `scavenger.sdk.loop`.
        workers: K to begin with.
        work_dir: Folder for logs.
        job_dir: Folder that the module is imported from.
        seed: Random seed for the order of the shards.
        threads: Threads that each worker may use.
        timeouts: See `LoopRun.open`; None for ten minutes each to start and for a step.
        checkpoints: Where to write checkpoints, once a minute; None for none.
        resume: Whether to resume from the newest checkpoint.
        on_event: Called with each event; it may call `scale_out` and `scale_in` of the run.

    Returns:
        The results of the loop.

    Raises:
        ScavengerError: See `LoopRun.open` and `LoopRun.poll`.
    """
    with LoopRun.open(
        JobSource(train, job_dir, seed, threads),
        workers=workers,
        work_dir=work_dir,
        timeouts=timeouts or Timeouts(start_s=_LIMIT_S, step_s=_LIMIT_S),
        checkpoints=checkpoints,
        resume=resume,
    ) as run:
        while not run.done:
            for event in run.poll(_POLL_S):
                if on_event is not None:
                    on_event(run, event)
        return run.report
