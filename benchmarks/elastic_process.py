"""A process of a job with added timers: `python -m benchmarks.elastic_process FOLDER WINDOW PAYLOADS`.

Writes `FOLDER/NAME.json` when it ends: of a worker the time of each step's gradient, of the sequencer the time of
each step and of what it does to watch it (norms, records, report, the state machine of its pieces). With WINDOW above
0, what a job could train without (norms, records, reports, heartbeats) is left out of every other so many steps, so
that steps with and without it can be compared within one run. PAYLOADS tells how gradients and weights travel between
hosts: `sealed`, as in every job, or `curve`, by ZeroMQ.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scavenger.train import process
from scavenger.train.transport import messages as m
from scavenger.train.transport import sockets as wire


def is_bare(step: int, window: int) -> bool:
    """Whether a step is one of those without what could be left out."""
    return window > 0 and step // window % 2 == 1


_SILENT_S = 0.8
"""Without a heartbeat, at most: well below the time after which the job would miss the process."""


class _Clocks:
    """The measurements of one process; `step` is its current step."""

    def __init__(self, window: int) -> None:
        self._window = window
        self.step = 0
        self.found: dict[str, dict[int, float]] = {}

    @property
    def bare(self) -> bool:
        return is_bare(self.step, self._window)

    def note(self, what: str, seconds: float) -> None:
        """Add to what something took in this step."""
        times = self.found.setdefault(what, {})
        times[self.step] = times.get(self.step, 0.0) + seconds

    def times(self, owner: Any, method: str, what: str) -> None:
        """Have every call of a method timed."""
        original = getattr(owner, method)

        @functools.wraps(original)
        def timed(*args: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return original(*args, **options)
            finally:
                self.note(what, time.perf_counter() - begin)

        setattr(owner, method, timed)

    def skips(self, owner: Any, name: str, instead: Any, when: Callable[..., bool] = lambda *_: True) -> None:
        """Have a function's calls left out of bare steps."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def skipping(*args: Any, **options: Any) -> Any:
            return instead if self.bare and when(*args) else original(*args, **options)

        setattr(owner, name, skipping)

    def knows_step(self, owner: Any, method: str, step_of: Callable[..., int]) -> None:
        """Have a method's calls tell which step it is."""
        original = getattr(owner, method)

        @functools.wraps(original)
        def telling(*args: Any, **options: Any) -> Any:
            self.step = step_of(*args)
            return original(*args, **options)

        setattr(owner, method, telling)


class _Unneeded:
    """Whether a job could train without a message for a while: reports, and heartbeats but for a few."""

    def __init__(self) -> None:
        self._beat_at = time.monotonic()

    def __call__(self, _: wire.Dealer, said: m.Message, *__: Any) -> bool:
        if isinstance(said, m.Beat):
            if time.monotonic() - self._beat_at < _SILENT_S:
                return True
            self._beat_at = time.monotonic()
        return isinstance(said, m.StepReport)


def _arm_worker(clocks: _Clocks) -> None:
    from scavenger.train.worker.program import Program
    from scavenger.train.worker.worker import Worker

    clocks.times(Program, "gradient", "gradient")
    clocks.times(Worker, "_compute", "compute")
    clocks.knows_step(Worker, "_train", lambda worker, order, view: order.step + 1)


def _arm_aggregator(clocks: _Clocks) -> None:
    from scavenger.elastic.barrier import Barrier
    from scavenger.train.aggregation import mean_gradient
    from scavenger.train.aggregation.model_shard import ModelShard
    from scavenger.train.aggregation.step_in_progress import StepInProgress
    from scavenger.train.transport.shared_memory import Block

    clocks.times(Barrier, "handle", "watching")
    clocks.times(ModelShard, "apply", "apply")
    clocks.knows_step(ModelShard, "apply", lambda part, order, means=None: order.step)
    clocks.times(mean_gradient, "sqnorm", "watching")
    clocks.skips(mean_gradient, "sqnorm", 0.0)
    for record in ("write_job", "write_part", "write_report"):
        clocks.times(Block, record, "watching")
        clocks.skips(Block, record, None)
    clocks.times(StepInProgress, "report", "watching")
    make_report = StepInProgress.report

    @functools.wraps(make_report)
    def report(*args: Any, **options: Any) -> m.StepReport:
        made = make_report(*args, **options)
        clocks.note("step", made.step_time_s)
        return made

    StepInProgress.report = report  # type: ignore[method-assign]


def _start_without_streams(router: Any, poller: Any) -> None:
    """Offer no streams."""


def main() -> int:
    folder, window, payloads = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    clocks = _Clocks(window)
    serve = process._serve

    def serve_with_clocks(config: m.ProcessConfiguration, context: Any, hub: wire.HubConnection) -> None:
        if config.role == "worker":
            _arm_worker(clocks)
        elif config.role == "aggregator":
            _arm_aggregator(clocks)
        if payloads != "sealed" and config.role == "aggregator":
            from scavenger.train.transport.data_router import DataRouter

            setattr(DataRouter, "start", _start_without_streams)  # noqa: B010 - mypy
        clocks.skips(wire.Dealer, "send", None, _Unneeded())
        try:
            serve(config, context, hub)
        finally:
            (folder / f"{config.name}.json").write_text(json.dumps(clocks.found))

    process._serve = serve_with_clocks
    return process.main()


if __name__ == "__main__":
    sys.exit(main())
