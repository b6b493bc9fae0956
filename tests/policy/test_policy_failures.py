"""Failures, blacklists, giving up; and policies in a chain."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nested import changed
from policy_jobs import job, supervisor

from scavenger.domain.decision import Blacklist, ChangeSize, Decision, Hold, Pause, Stop
from scavenger.domain.snapshot import Departure, JobSnapshot
from scavenger.policy.base import Chain
from scavenger.policy.failures import AvoidFailures

POLICY = AvoidFailures()


def died(*hosts: str, at_s: float = 990.0, steps: int = 50, kind: str = "failure") -> tuple[Departure, ...]:
    return tuple(
        Departure(f"d{i}", host, at_s, kind, steps)  # type: ignore[arg-type]
        for i, host in enumerate(hosts)
    )


def test_a_host_is_avoided_after_three_failures_within_the_window() -> None:
    assert isinstance(POLICY.decide(job(departures=died("h1", "h1", "h2"))), Hold)
    assert POLICY.decide(job(departures=died("h1", "h1", "h1", "h2"))) == Blacklist(
        ("h1",), 2800.0, "h1 (3 failures) within 600 s; avoided for 1800 s"
    )
    assert isinstance(POLICY.decide(job(departures=died("h1", "h1", "h1", at_s=400.0))), Hold)


@pytest.mark.parametrize("kind", ["preemption", "eviction"])
@given(st.integers(0, 30), st.integers(0, 3))
def test_what_is_not_the_hosts_fault_never_counts(kind: str, many: int, steps: int) -> None:
    assert isinstance(POLICY.decide(job(departures=died(*["h1"] * many, kind=kind, steps=steps))), Hold)


def test_a_host_on_the_blacklist_is_not_listed_again_and_comes_back_after_the_cool_down() -> None:
    failures = died("h1", "h1", "h1")

    assert isinstance(POLICY.decide(job(departures=failures, blacklist=(("h1", 2800.0),))), Hold)
    over = job(departures=failures, blacklist=(("h1", 2800.0),), at_s=2800.0)
    assert isinstance(POLICY.decide(over), Hold)  # by then its failures lie outside the window


def test_the_last_host_is_never_avoided() -> None:
    failures = died("h0", "h0", "h0")

    assert isinstance(POLICY.decide(job(departures=failures, hosts=("h0",))), Hold)
    assert isinstance(POLICY.decide(job(departures=failures, hosts=("h0", "h1"))), Blacklist)
    rest = job(departures=failures, hosts=("h0", "h1"), blacklist=(("h1", 5000.0),))
    assert isinstance(POLICY.decide(rest), Hold)


def test_a_create_die_loop_gives_up_and_a_few_bad_starts_of_many_do_not() -> None:
    loop = died(*"abcde", steps=0)

    stop = POLICY.decide(job(departures=loop))
    assert isinstance(stop, Stop)
    assert stop.cause == "failures"
    assert "5 workers died before their first step within 600 s, 56 % of all" in stop.reason
    assert isinstance(POLICY.decide(job(departures=loop[:4])), Hold)
    assert isinstance(POLICY.decide(job(departures=loop, workers=20)), Hold)
    assert isinstance(POLICY.decide(job(departures=died(*"abcde", steps=1))), Hold)


def test_a_job_whose_workers_were_all_taken_waits() -> None:
    taken = changed(job(departures=died(*"abcd", kind="preemption")), workers=())

    assert isinstance(POLICY.decide(taken), Pause)
    assert isinstance(POLICY.decide(changed(taken, departures=died(*"abcd"))), Hold)


def test_a_cool_down_shorter_than_the_window_is_refused() -> None:
    with pytest.raises(ValueError, match="cool-down"):
        AvoidFailures(window_s=100.0, cooldown_s=99.0)


# ---- chain -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Says:
    decision: Decision

    def decide(self, job: JobSnapshot) -> Decision:
        return self.decision


def test_the_first_that_does_not_hold_wins_and_every_reason_before_it_is_kept() -> None:
    out, stop = ChangeSize(5, 100, "grow"), Stop("broke", "budget")

    won = Chain((Says(Hold("rich")), Says(Hold("healthy")), Says(out), Says(stop))).decide(job())

    assert won == out
    assert won.considered == ("rich", "healthy")
    assert Chain((Says(stop), Says(out))).decide(job()) == stop


def test_where_all_hold_the_last_reason_leads() -> None:
    held = Chain((Says(Hold("rich")), Chain((Says(Hold("healthy")), Says(Hold("settled")))))).decide(job())

    assert held == Hold("settled")
    assert held.considered == ("rich", "healthy")


def test_a_chain_of_nothing_and_a_cluster_of_nobody_are_refused() -> None:
    with pytest.raises(ValueError, match="needs a policy"):
        Chain(())
    with pytest.raises(ValueError, match="cannot scale"):
        ChangeSize(0, 10, "")
    with pytest.raises(ValueError, match="cannot scale"):
        ChangeSize(5, 4, "")
    assert len(job().cluster.training) == len(supervisor(4))
