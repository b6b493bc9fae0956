"""Laws of runners: none is replaced while it may live, and none is started for ever in vain."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_admission import job

from scavenger.domain.intent import Lease
from scavenger.domain.submission import RunnerSeen, RunnerStarts
from scavenger.policy.runners import (
    FAULTS_MAX,
    GAP_S,
    SILENT_S,
    STARTS_MAX,
    AskRunner,
    EndSubmission,
    Holder,
    KeepRunner,
    PauseSubmission,
    Silences,
    StartRunner,
    StopRunner,
    follow_runner,
    given_up,
    rest_s,
)

ONE = job(1, running=True)
SEEN = RunnerSeen(ONE, Lease("runner/job-1", "here/1/2.0", 2, 5), "running", False, 7, 0.0)


def vain(starts: int) -> RunnerStarts:
    return RunnerStarts(starts, starts)


def follow(
    seen: RunnerSeen, holder: str, *, silent_s: float = 0.0, since_start_s: float = math.inf
) -> object:
    return follow_runner(seen, holder, silent_s=silent_s, since_start_s=since_start_s)  # type: ignore[arg-type]


def test_one_that_renews_its_lease_is_kept_even_while_its_job_ends() -> None:
    for seen in (SEEN, replace(SEEN, job_state="succeeded", ended=True)):
        assert isinstance(follow(seen, "alive", silent_s=SILENT_S), KeepRunner)


def test_a_silent_one_is_asked_and_ended_before_another_is_started() -> None:
    assert isinstance(follow(SEEN, "alive", silent_s=SILENT_S + 1), AskRunner)
    assert follow(SEEN, "dead", silent_s=SILENT_S + 1) == StartRunner()


def test_one_that_cannot_be_seen_is_replaced_when_it_was_silent_for_long_and_never_killed() -> None:
    assert isinstance(follow(SEEN, "unseen", silent_s=SILENT_S), KeepRunner)
    assert follow(SEEN, "unseen", silent_s=SILENT_S + 1) == StartRunner()


def test_one_whose_job_is_late_is_asked_whether_the_job_works() -> None:
    late = follow_runner(SEEN, "alive", silent_s=1.0, since_start_s=1.0, late="it has not been paused")
    assert late == AskRunner("it has not been paused", job=True)


def test_one_that_dies_while_it_gives_its_slots_back_waits_in_the_queue_unless_its_job_has_ended() -> None:
    pausing = replace(SEEN, pausing=True)

    assert isinstance(follow(pausing, "alive"), KeepRunner)
    assert follow(pausing, "dead") == PauseSubmission()
    assert follow(replace(pausing, job_state="interrupted", ended=True), "dead") == PauseSubmission()
    assert isinstance(follow(replace(pausing, job_state="succeeded", ended=True), "dead"), EndSubmission)
    cancelled = replace(pausing, submission=replace(ONE, cancelling=True))
    assert isinstance(follow(cancelled, "dead"), EndSubmission)


def test_one_whose_pool_cannot_pay_any_more_is_ended_at_once_and_its_job_waits_in_the_queue() -> None:
    def stopped(seen: RunnerSeen, holder: Holder) -> object:
        return follow_runner(seen, holder, silent_s=0.0, since_start_s=0.0, stopped=True)

    ended = replace(SEEN, job_state="succeeded", ended=True)
    assert stopped(SEEN, "alive") == StopRunner()
    assert isinstance(stopped(ended, "alive"), KeepRunner)
    assert stopped(SEEN, "dead") == PauseSubmission()
    assert isinstance(stopped(ended, "dead"), EndSubmission)


def test_the_submission_of_a_job_that_has_ended_ends() -> None:
    ended = replace(SEEN, job_state="target_missed", ended=True)
    assert follow(ended, "dead") == EndSubmission("target missed")
    # that of an earlier attempt, which is to be resumed, had ended before
    assert follow(replace(SEEN, job_state="interrupted", ended=False), "dead") == StartRunner()


def test_one_that_is_to_be_stopped_is_not_started_again() -> None:
    cancelling = replace(SEEN, submission=replace(ONE, cancelling=True, reason="cancelled by ann"))
    assert follow(cancelling, "dead") == EndSubmission("cancelled by ann", cancelled=True)


def test_after_starts_in_vain_there_are_pauses_and_then_an_end() -> None:
    pauses = [rest_s(vain(count)) for count in range(1, STARTS_MAX + 1)]
    assert pauses == [0.0, 2.0, 4.0, 8.0, 16.0]
    twice = replace(SEEN, submission=replace(ONE, starts=vain(2)))
    assert isinstance(follow(twice, "dead", since_start_s=1.9), KeepRunner)
    assert follow(twice, "dead", since_start_s=2.0) == StartRunner()
    often = replace(SEEN, submission=replace(ONE, starts=vain(STARTS_MAX)))
    assert isinstance(follow(often, "dead"), EndSubmission)


def test_faults_that_pass_are_waited_for_over_an_hour_and_not_for_ever() -> None:
    waits = replace(ONE, state="queued", starts=RunnerStarts(), reason="the disk is full")
    assert sum(rest_s(RunnerStarts(faults=faults)) for faults in range(1, FAULTS_MAX)) > 3600.0
    assert [rest_s(RunnerStarts(faults=faults)) for faults in (1, 2, 3, 500)] == [2.0, 4.0, 8.0, 300.0]
    assert given_up(replace(waits, starts=RunnerStarts(faults=FAULTS_MAX - 1))) == ""
    assert (
        given_up(replace(waits, starts=RunnerStarts(faults=FAULTS_MAX)))
        == "it could not begin in 20 attempts; the disk is full"
    )
    assert given_up(replace(waits, starts=vain(STARTS_MAX))) == "the disk is full"


@given(
    st.sampled_from(["alive", "dead", "unseen"]),
    st.floats(0, 1e4),
    st.floats(0, 1e4),
    st.integers(0, 9),
    st.booleans(),
    st.booleans(),
)
def test_no_runner_is_started_while_one_may_live(
    holder: str, silent_s: float, since_s: float, fruitless: int, cancelling: bool, ended: bool
) -> None:
    submission = replace(ONE, starts=vain(fruitless), cancelling=cancelling)
    seen = replace(SEEN, submission=submission, ended=ended)
    decision = follow(seen, holder, silent_s=silent_s, since_start_s=since_s)

    if holder == "unseen" and silent_s <= SILENT_S:
        assert isinstance(decision, KeepRunner)
    if holder == "alive":
        assert isinstance(decision, KeepRunner | AskRunner)
    else:
        assert not isinstance(decision, AskRunner)
    if isinstance(decision, StartRunner):
        assert not cancelling
        assert not ended
        assert fruitless < STARTS_MAX


@pytest.mark.parametrize("fruitless", [20, 500])
def test_pauses_are_bounded(fruitless: int) -> None:
    assert rest_s(vain(fruitless)) == 60.0


class TestSilences:
    LEASE = Lease("runner/job-1", "here/1/2.0", 2, 5)

    def silence(self, *looks: float, after: int = 0) -> float:
        """Of a lease that is renewed until the look of that number, and read at these times."""
        silences, told = Silences(), 0.0
        for number, at_s in enumerate(looks):
            lease = replace(self.LEASE, beats=min(number, after))
            told = silences.look({"job-1": lease}, at_s)["job-1"]
        return told

    def test_it_counts_from_the_last_renewal(self) -> None:
        assert self.silence(*range(0, 80, 2), after=5) == 68.0

    @given(away_s=st.floats(GAP_S + 2.0, 1e6), rest=st.integers(0, 40))
    def test_it_counts_from_the_first_look_after_a_gap(self, away_s: float, rest: int) -> None:
        # the store was away, or this process was suspended, and neither side could do anything meanwhile
        back = [18.0 + away_s + 0.5 * number for number in range(rest + 1)]
        assert self.silence(*range(0, 20, 2), *back, after=9) == pytest.approx(0.5 * rest)

    def test_one_that_has_answered_is_silent_from_then_on(self) -> None:
        silences = Silences()
        for at_s in range(0, 61, 5):
            silences.look({"job-1": self.LEASE}, at_s)
        silences.answered("job-1", 61.0)
        assert silences.look({"job-1": self.LEASE}, 65.0) == {"job-1": 4.0}

    def test_what_is_not_looked_at_any_more_is_forgotten(self) -> None:
        silences = Silences()
        silences.look({"job-1": self.LEASE, "job-2": None}, 0.0)
        assert silences.look({"job-2": None}, 5.0) == {"job-2": 5.0}
        assert silences.look({"job-1": self.LEASE}, 8.0) == {"job-1": 0.0}
