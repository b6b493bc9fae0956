"""A job whose two aggregators are behind links of their own, for `benchmarks.congested_link`.

`python -m benchmarks.congested_link_job FOLDER ADDRESS SPACE SPACE TRAIN BATCH STEPS` runs with its worker where both
links end; an aggregator's agent runs in each network namespace SPACE. It says `congest` and `clear` when the link to
the second is to change, and waits for a line before it goes on. Last is a line of JSON: the times of the steps of each
part, and what was moved when.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path

from benchmarks.elastic_supervisor import Training
from benchmarks.two_hosts_job import agent
from scavenger.control.training.balancing import Balancing
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.engines.vm.engine import HostEngine

_WARM_UP_STEPS = 5
_LOOK_S = 1.0
_PART_S = 120.0


class _Balanced(Training):
    """A job under way whose buckets are balanced as in a real one."""

    def watch(self) -> None:
        self.moves: list[tuple[float, int, str]] = []
        self._looked_at = 0.0
        self.balancing = Balancing(
            self.supervisor.migrations,
            lambda: [self.steps[step] for step in sorted(self.steps)[-50:]],
            note=self._moved,
            clock=time.monotonic,
        )

    def _moved(self, text: str) -> None:
        self.moves.append((time.monotonic(), self.last, text))
        print(text, file=sys.stderr, flush=True)

    def serve(self, timeout_s: float) -> None:
        super().serve(timeout_s)
        if hasattr(self, "balancing") and time.monotonic() - self._looked_at >= _LOOK_S:
            self._looked_at = time.monotonic()
            self.balancing.look()

    def until_moved(self, moves: int) -> None:
        """Train until so many moves are done, or for a while."""
        with contextlib.suppress(TimeoutError):
            self.until(lambda: len(self.moves) > moves, _PART_S)
            self.until(lambda: not self.supervisor.migrations.active, _PART_S)


def _change(word: str) -> None:
    print(word, flush=True)
    sys.stdin.readline()


def main() -> None:
    folder, address, *spaces = Path(sys.argv[1]), *sys.argv[2:5]
    train, batch, steps = sys.argv[5], int(sys.argv[6]), int(sys.argv[7])
    code = folder / "code"
    code.mkdir(parents=True)
    agents = AgentServer(address, code)
    agents.start()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(agents))
        for number, space in enumerate(spaces):
            within = ("ip", "netns", "exec", space)
            stack.enter_context(agent(agents, f"far{number}", "aggregator", folder, within=within))
        stack.enter_context(agent(agents, "near", "worker", folder))
        training = stack.enter_context(
            _Balanced(
                train,
                folder / "job",
                job_dir=code,
                aggregators=len(spaces),
                engine=lambda log_dir, _: HostEngine(log_dir, agents),
            )
        )
        training.begin(1, batch)
        training.go_on(_WARM_UP_STEPS)
        training.watch()
        parts = {"before": [step.step_time_s for step in training.go_on(steps)]}
        _change("congest")
        begin = training.last + 1  # in which the link changed
        training.until_moved(0)
        first = training.moves[0][1] if training.moves else training.last
        parts["congested"] = [training.steps[step].step_time_s for step in range(begin + 1, first + 1)]
        parts["moving"] = [training.steps[step].step_time_s for step in range(first + 1, training.last + 1)]
        training.go_on(_WARM_UP_STEPS)
        parts["after"] = [step.step_time_s for step in training.go_on(steps)]
        held = training.supervisor.migrations.map
        assert held is not None
        done = len(training.moves)
        _change("clear")
        if len({*held.holders}) > 1:  # else nothing measures the link any more
            training.until_moved(done)
        training.go_on(_WARM_UP_STEPS)
        parts["cleared"] = [step.step_time_s for step in training.go_on(steps)]
        lost = [one.worker for one in training.lost]
    if lost:
        raise RuntimeError(f"{lost} were lost during the benchmark; measure again")
    print(
        json.dumps(
            {
                "parts": parts,
                "moves": [(at - training.moves[0][0], step, text) for at, step, text in training.moves],
                "congested_holders": held.holders,
            }
        )
    )


if __name__ == "__main__":
    main()
