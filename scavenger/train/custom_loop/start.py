"""Starts a training loop of one's own on this machine, and sees it to its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from scavenger.train.custom_loop.report import LoopEvent, LoopReport
from scavenger.train.custom_loop.run import LoopRun
from scavenger.train.job_source import JobSource, Timeouts

__all__ = ["run_loop"]

_POLL_S = 0.1
_LIMIT_S = 600.0  # unless told: long enough for any step, and for building any model


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
    """Run a training function to its end on some workers of this machine.

    Args:
        train: `module:function` beside `job_dir`; see `scavenger.sdk.loop`.
        workers: K to begin with.
        work_dir: For logs.
        job_dir: Where the module is.
        seed: Of the order of the shards.
        threads: That each worker may use.
        timeouts: As `LoopRun.open`; ten minutes to start and for a step where None.
        checkpoints: Where to write them, once a minute; None for none.
        resume: Go on from the newest one.
        on_event: Hears of all that happens, and may call `scale_out` and `scale_in`.

    Raises:
        ScavengerError: As `LoopRun.open` and `LoopRun.poll`.
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
