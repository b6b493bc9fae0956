"""Who counts as lost, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.elastic.liveness import (
    HEARTBEAT_S,
    SILENT_S,
    SLOW_S,
    Liveness,
    ProcessorUse,
    evaluation_limit_s,
    is_working,
)


def watched(*names: str, at: float = 0.0) -> Liveness:
    liveness = Liveness()
    for name in names:
        liveness.heard(name, at)
    return liveness


def look(liveness: Liveness, start: float, stop: float, **words: object) -> tuple[float, tuple[str, ...]]:
    """Look as often as a heartbeat comes; returns when there was the first suspect, and who."""
    now = start
    while now < stop:
        if found := liveness.suspects(now, **words):  # type: ignore[arg-type]
            return now, found
        now += HEARTBEAT_S
    return stop, ()


def test_whoever_is_silent_for_long_is_a_suspect_though_nobody_waits() -> None:
    liveness = watched("w0")

    at, found = look(liveness, 0.0, 60.0)

    assert found == ("w0",)
    assert SILENT_S < at <= SILENT_S + 2 * HEARTBEAT_S


def test_a_process_that_speaks_is_never_one() -> None:
    liveness = watched("w0", "w1")
    for beat in range(200):
        now = beat * HEARTBEAT_S
        liveness.heard("w0", now)
        liveness.heard("w1", now)
        assert liveness.suspects(now, awaited=("w0",), awaited_for_s=now) == ()


def test_one_that_others_wait_for_is_suspected_sooner_and_the_others_are_not() -> None:
    liveness = watched("w0", "w1")

    at, found = look(liveness, 0.0, SILENT_S, awaited=("w1",), awaited_for_s=60.0)

    assert found == ("w1",)
    assert at < SILENT_S / 2


def test_a_long_step_is_no_silence_that_is_waited_for() -> None:
    liveness = watched("w0")

    at, _ = look(liveness, 0.0, 60.0, awaited=("w0",), awaited_for_s=3.0, step_time_s=2.0)

    assert at > SILENT_S


def test_whoever_is_forgotten_or_was_never_heard_is_no_suspect() -> None:
    liveness = watched("w0")
    liveness.forget("w0")
    liveness.forget("stranger")

    assert look(liveness, 0.0, 60.0, awaited=("w0", "stranger"), awaited_for_s=60.0) == (60.0, ())


@given(away=st.floats(1.0, 10_000.0), spoke=st.floats(0.0, 1.0))
def test_one_who_was_kept_from_looking_blames_nobody_for_it(away: float, spoke: float) -> None:
    liveness = watched("w0", at=spoke)
    assert liveness.suspects(1.0) == ()

    assert liveness.suspects(1.0 + away, awaited=("w0",), awaited_for_s=away) == ()
    at, found = look(liveness, 1.0 + away, 1.0 + away + 60.0)
    assert found == ("w0",)
    assert at < 1.0 + away + SILENT_S + 4 * HEARTBEAT_S


# ---- slow or lost ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "works"),
    [
        (ProcessorUse(1.0, False, False), ProcessorUse(1.01, False, False), True),
        (ProcessorUse(1.0, False, True), ProcessorUse(1.0, False, True), True),
        (ProcessorUse(1.0, True, False), ProcessorUse(1.0, False, True), True),
        (ProcessorUse(1.0, False, False), ProcessorUse(1.0, False, False), False),
        (ProcessorUse(1.0, False, True), ProcessorUse(1.0, False, False), False),
        (ProcessorUse(1.0, False, True), ProcessorUse(1.5, True, False), False),
    ],
    ids=["computed", "waits for a processor", "was continued", "waits", "was runnable", "was stopped"],
)
def test_a_process_works_if_it_used_a_processor_or_waits_for_one(
    before: ProcessorUse, now: ProcessorUse, works: bool
) -> None:
    assert is_working(before, now) is works


@pytest.mark.parametrize(
    ("last_worked_s_ago", "silent_s", "lost"),
    [
        (None, SILENT_S + 0.1, True),
        (0.1, SILENT_S + 0.1, False),
        (SILENT_S - 0.1, SILENT_S + 0.1, False),
        (SILENT_S + 0.1, SILENT_S + 0.2, True),
        (0.0, SLOW_S - 0.1, False),
        (0.0, SLOW_S + 0.1, True),
    ],
)
def test_a_silent_process_is_lost_only_if_it_does_not_work_or_for_too_long(
    last_worked_s_ago: float | None, silent_s: float, lost: bool
) -> None:
    liveness = watched("w0")
    if last_worked_s_ago is not None:
        liveness.worked("w0", silent_s - last_worked_s_ago)

    assert liveness.suspects(silent_s) == (("w0",) if lost else ())


def test_one_that_works_is_waited_for_as_long_as_it_does_though_others_wait() -> None:
    liveness, now = watched("w0"), 0.0
    while now < 30.0:
        liveness.worked("w0", now)
        assert liveness.suspects(now, awaited=("w0",), awaited_for_s=now) == ()
        now += HEARTBEAT_S

    at, found = look(liveness, now, SLOW_S, awaited=("w0",), awaited_for_s=60.0)

    assert found == ("w0",)
    assert at < 30.0 + SILENT_S / 2


def test_what_was_seen_of_a_process_is_forgotten_with_it() -> None:
    liveness = watched("w0")
    liveness.worked("w0", 100.0)
    liveness.worked("stranger", 100.0)
    liveness.forget("w0")
    liveness.heard("w0", 0.0)
    liveness.heard("stranger", 0.0)

    assert look(liveness, 0.0, 60.0)[1] == ("w0", "stranger")


# ---- evaluations -------------------------------------------------------------------------------------------


@given(
    size=st.integers(0, 10**8),
    workers=st.integers(1, 1000),
    local=st.integers(1, 4096),
    step_time_s=st.floats(1e-4, 50.0),
)
def test_an_evaluation_may_take_a_multiple_of_the_steps_that_its_samples_would(
    size: int, workers: int, local: int, step_time_s: float
) -> None:
    batch = workers * local
    limit_s = evaluation_limit_s(
        size, workers=workers, global_batch_size=batch, step_s=60.0, step_time_s=step_time_s
    )

    assert limit_s >= 60.0 + 10.0 * size / batch * step_time_s
    assert limit_s <= 60.0 + 10.0 * (size / batch + 2) * step_time_s


def test_before_a_step_was_seen_each_batch_of_an_evaluation_may_take_as_long_as_a_step_may() -> None:
    assert evaluation_limit_s(1000, workers=2, global_batch_size=100, step_s=60.0, step_time_s=0.0) == 600.0
    assert evaluation_limit_s(0, workers=1, global_batch_size=1, step_s=60.0, step_time_s=0.0) == 60.0
