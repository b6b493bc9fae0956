"""The supervisor's request for a run of the callbacks: one worker has it at a time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from scavenger.errors import TrainingHungError
from scavenger.train.supervisor.callbacks import CallbackRequests
from scavenger.train.supervisor.process_registry import ProcessRegistry
from scavenger.train.supervisor.processes import Processes
from scavenger.train.transport import messages as m

LIMIT_S = 10.0
REQUEST = m.RunCallbacks(0, 0, 5, {"loss": float("nan")}, 9, False, "s", 1.0)


class World:
    """Workers by their states, what was sent to whom, and the clock."""

    def __init__(self, hosts: dict[str, str] | None = None) -> None:
        self.states = {"w0": "training", "w1": "training"}
        self.running = ["w0", "w1"]
        self.sent: list[tuple[str, m.RunCallbacks]] = []
        self.warnings: list[str] = []
        self.now = 0.0
        engine = SimpleNamespace(
            host=lambda name: (hosts or {}).get(name, "here"),
            leader_host="here",
            log=lambda name: Path(f"{name}.log"),
        )
        world = self

        class Engine(SimpleNamespace):
            @property
            def running(self) -> tuple[str, ...]:
                return tuple(world.running)

        processes = SimpleNamespace(
            engine=Engine(**vars(engine)),
            send=lambda name, message: self.sent.append((name, message)),
            show_stack=lambda name: None,
        )
        registry = SimpleNamespace(
            in_states=lambda *states: tuple(name for name, state in self.states.items() if state in states)
        )
        self.requests = CallbackRequests(
            cast(Processes, processes),
            cast(ProcessRegistry, registry),
            limit_s=LIMIT_S,
            warn=self.warnings.append,
            clock=lambda: self.now,
        )

    def ask(self, request: m.RunCallbacks = REQUEST) -> None:
        self.requests.ask(request)

    def ended(self, name: str) -> None:
        self.running.remove(name)
        del self.states[name]

    def answer(self, name: str, number: int) -> bool:
        return self.requests.take(name, m.CallbacksRun(number, 0, 5, "t", 1.0, None, "", None, ()))


def again(request: m.RunCallbacks, **more: Any) -> m.RunCallbacks:
    """As the controller makes it anew."""
    return msgspec.structs.replace(request, metrics={"loss": float("nan")}, **more)


def test_a_request_goes_to_one_worker_until_its_process_has_ended() -> None:
    world = World()
    world.ask()
    world.states["w0"] = "leaving"  # the view leaves it out, but it may be running them
    world.ask(again(REQUEST))
    assert [(name, request.number) for name, request in world.sent] == [("w0", 1), ("w0", 1)]

    world.ended("w0")
    world.ask(again(REQUEST))
    assert world.sent[-1][0] == "w1"
    assert not world.answer("w0", 1)
    assert not world.answer("w1", 2)
    assert world.answer("w1", 1)
    assert not world.answer("w1", 1)  # repeated

    world.states["w2"] = "training"
    world.ask(again(REQUEST, epoch=1))
    assert (world.sent[-1][0], world.sent[-1][1].number) == ("w1", 2)  # which has the callbacks as they are


def test_without_a_worker_the_request_waits_for_one() -> None:
    world = World()
    for name in ("w0", "w1"):
        world.ended(name)
    world.ask()
    world.now = 2 * LIMIT_S
    world.requests.watch(world.now)
    assert world.sent == []

    world.running.append("w2")
    world.states["w2"] = "ready"
    world.ask(again(REQUEST))
    assert [name for name, _ in world.sent] == ["w2"]
    world.requests.watch(world.now + LIMIT_S)


def test_a_request_that_was_withdrawn_is_another_one_when_it_is_made_again() -> None:
    world = World()
    world.ask()
    world.requests.forget()
    assert not world.answer("w0", 1)
    world.ask(again(REQUEST))
    assert world.sent[-1][1].number == 2


def test_a_run_that_takes_too_long_ends_the_job() -> None:
    world = World()
    world.ask()
    world.requests.watch(LIMIT_S)
    with pytest.raises(
        TrainingHungError, match=r"the callbacks of epoch 1, step 5, .* 10 s \(limits.callbacks\).* w0.log"
    ):
        world.requests.watch(LIMIT_S + 1.0)


def test_where_callbacks_write_is_told_once_if_it_is_another_machine() -> None:
    world = World(hosts={"w0": "far", "w1": "far"})
    world.ask()
    world.ended("w0")
    world.ask(again(REQUEST))

    assert len(world.warnings) == 1
    assert "now on far" in world.warnings[0]
