"""Trains on two workers, adds one, kills one with SIGKILL and lets one leave, all in one run: `python run.py`."""

import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from scavenger import run_loop
from scavenger.train.custom_loop.run import LoopRun
from scavenger.train.supervisor.events import Event, Lost, Started
from scavenger.train.transport.messages import EpochReport, StepReport

_HERE = Path(__file__).parent


class Story:
    """Changes the job while it trains."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.done: set[str] = set()

    def once(self, what: str) -> bool:
        new = what not in self.done
        self.done.add(what)
        return new

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.since:6.1f} s  {text}")

    def __call__(self, run: LoopRun, event: Event) -> None:
        match event:
            case Started():
                self.say(f"{event.worker} is ready")
            case Lost():
                self.say(f"{event.worker} {event.cause}")
            case EpochReport():
                self.say(
                    f"epoch {event.epoch} ended with step {event.step}, workers: {', '.join(run.members)}"
                )
            case StepReport() if self.once("out"):
                self.say(f"step {event.step}: one more worker is started")
                run.scale_out(1)
            case StepReport() if event.workers == 3 and self.once("kill"):
                victim = event.pieces[-1][0]
                self.say(f"step {event.step}: kill -9 to {victim}; another is started in its place")
                os.kill(run.engine.pid(victim), signal.SIGKILL)
            case StepReport() if "kill" in self.done and len(run.members) == 3 and self.once("in"):
                self.say(f"step {event.step}: {run.members[0]} is to leave")
                run.scale_in([run.members[0]])


def main() -> None:
    with tempfile.TemporaryDirectory() as work_dir:
        report = run_loop("train:train", workers=2, work_dir=Path(work_dir), job_dir=_HERE, on_event=Story())
    sys.path.insert(0, str(_HERE))
    from train import accuracy

    first, *_, last = report.losses.values()
    print(
        f"{report.steps} steps, {report.epochs} epochs, loss {first:.3f} -> {last:.3f}, lost: {report.lost}"
    )
    print(
        f"replicas equal: {report.replicas_equal}; accuracy on held-out images: {accuracy(report.state):.3f}"
    )


if __name__ == "__main__":
    main()
