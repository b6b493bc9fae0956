"""What a death says of the data, and how the sample that kills is found."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from scavenger.elastic.order import epoch_order
from scavenger.elastic.quarantine import (
    Cause,
    Innocent,
    NotTheData,
    Quarantined,
    SampleRange,
    Suspected,
    Suspects,
    cause_of_death,
    without,
)
from scavenger.elastic.view import split


@pytest.mark.parametrize(
    ("exit_code", "told", "cause"),
    [
        (1, {}, Cause.CRASHED),
        (0, {}, Cause.CRASHED),
        (-11, {}, Cause.CRASHED),
        (134, {}, Cause.CRASHED),
        (-9, {}, Cause.KILLED),
        (137, {}, Cause.KILLED),
        (-15, {}, Cause.KILLED),
        (-9, {"out_of_memory": True}, Cause.OUT_OF_MEMORY),
        (-9, {"hung": True, "ended_by_us": True}, Cause.HUNG),
        (-15, {"ended_by_us": True}, Cause.EVICTED),
        (-11, {"preempted": True}, Cause.PREEMPTED),
        (None, {}, Cause.SILENT),
    ],
)
def test_a_death_is_blamed_on_data_only_if_the_process_ended_by_its_own_fault(
    exit_code: int | None, told: dict[str, bool], cause: Cause
) -> None:
    assert cause_of_death(exit_code, **told) is cause
    assert cause.blames_data == (cause in {Cause.CRASHED, Cause.OUT_OF_MEMORY, Cause.HUNG})


def test_what_the_cloud_takes_is_never_held_against_the_data() -> None:
    suspects = Suspects(samples_max=9)
    for number in range(20):
        cause = [Cause.PREEMPTED, Cause.EVICTED, Cause.KILLED, Cause.SILENT][number % 4]
        finding = suspects.crashed(f"w{number}", f"h{number}", SampleRange(0, 3, 4), 1, cause, hosts=20)
        assert isinstance(finding, Innocent)
    assert (suspects.suspected, suspects.quarantined) == ((), ())


def test_a_death_that_is_told_twice_counts_once() -> None:
    suspects = Suspects(samples_max=9)
    for _ in range(5):
        suspects.crashed("w0", "h0", SampleRange(0, 3, 4), 1, Cause.CRASHED, hosts=1)
    assert suspects.quarantined == ()


def test_one_host_on_which_everybody_dies_condemns_no_data_while_there_is_another() -> None:
    suspects, piece = Suspects(samples_max=9), SampleRange(0, 3, 4)
    for number in range(10):
        finding = suspects.crashed(f"w{number}", "bad", piece, 1, Cause.CRASHED, hosts=2)
        assert isinstance(finding, Suspected)
    assert suspects.avoid(piece, {"bad", "good"}) == {"bad"}
    assert suspects.avoid(piece, {"bad"}) == frozenset()

    assert isinstance(suspects.crashed("x", "good", piece, 1, Cause.CRASHED, hosts=2), Quarantined)


def test_so_many_deadly_samples_are_not_the_datas_fault() -> None:
    suspects = Suspects(samples_max=1)
    findings = [
        suspects.crashed(
            f"w{number}", "h", SampleRange(0, number // 3, number // 3 + 1), 1, Cause.CRASHED, hosts=1
        )
        for number in range(6)
    ]
    assert isinstance(findings[2], Quarantined)
    assert isinstance(findings[5], NotTheData)
    assert suspects.samples_quarantined == 1


def test_a_piece_that_passes_after_all_is_forgotten() -> None:
    suspects = Suspects(samples_max=9)
    suspects.crashed("w0", "h0", SampleRange(0, 10, 20), 1, Cause.CRASHED, hosts=1)
    seen = []
    for piece in (SampleRange(1, 0, 99), SampleRange(0, 0, 14), SampleRange(0, 14, 20)):
        suspects.passed(piece)
        seen.append(suspects.suspected)
    assert seen == [(SampleRange(0, 10, 20),), (SampleRange(0, 14, 20),), ()]


def test_a_death_on_a_part_of_a_suspect_narrows_it_and_the_rest_stays_suspected() -> None:
    suspects = Suspects(samples_max=9)
    suspects.crashed("w0", "h0", SampleRange(0, 10, 20), 1, Cause.CRASHED, hosts=1)
    suspects.crashed("w1", "h0", SampleRange(0, 12, 15), 1, Cause.CRASHED, hosts=1)

    assert suspects.suspected == (SampleRange(0, 10, 12), SampleRange(0, 12, 15), SampleRange(0, 15, 20))


def test_a_share_is_cut_where_suspects_begin_and_end_and_what_is_quarantined_left_out() -> None:
    suspects = Suspects(samples_max=9)
    suspects.quarantine(Quarantined(SampleRange(0, 5, 6), "known"))
    suspects.crashed("w0", "h0", SampleRange(0, 8, 12), 1, Cause.CRASHED, hosts=1)

    assert suspects.cut(SampleRange(0, 0, 20)) == (
        SampleRange(0, 0, 5),
        SampleRange(0, 6, 8),
        SampleRange(0, 8, 12),
        SampleRange(0, 12, 20),
    )
    assert suspects.cut(SampleRange(1, 0, 20)) == (SampleRange(1, 0, 20),)
    assert suspects.cut(SampleRange(0, 5, 6)) == ()


@pytest.mark.parametrize(
    "arguments",
    [{"samples_max": -1}, {"samples_max": 1, "deaths_min": 0}, {"samples_max": 1, "samples_min": 0}],
)
def test_a_quarantine_out_of_range_is_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        Suspects(**arguments)


@given(
    samples=st.integers(1, 200),
    poisons=st.sets(st.integers(0, 199), min_size=1, max_size=3),
    workers=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    samples_min=st.integers(1, 8),
)
@examples(150)
def test_what_kills_is_found_by_any_number_of_workers_and_nothing_else_is_left_out_for_it(
    samples: int, poisons: set[int], workers: list[int], samples_min: int
) -> None:
    poisons = {poison % samples for poison in poisons}
    suspects = Suspects(samples_max=samples, samples_min=samples_min)
    deaths, passed, turn = 0, set[int](), 0
    while len(passed) + suspects.samples_quarantined < samples:
        # a step whose samples are split over a number of workers that keeps changing
        for share in split(0, samples, workers[turn % len(workers)]):
            for piece in suspects.cut(SampleRange(0, share.start, share.stop)) if share.samples else ():
                if poisons & set(range(piece.start, piece.stop)):
                    deaths += 1
                    host = min({"h0", "h1"} - suspects.avoid(piece, {"h0", "h1"}))
                    suspects.crashed(f"w{deaths}", host, piece, 1, Cause.CRASHED, hosts=2)
                    break
                suspects.passed(piece)
                passed |= set(range(piece.start, piece.stop))
        turn += 1
        restored = Suspects.restore(json.loads(json.dumps(suspects.snapshot())))
        assert (restored.quarantined, restored.suspected) == (suspects.quarantined, suspects.suspected)
        assert turn < 1_000

    for entry in suspects.quarantined:
        assert poisons & set(range(entry.piece.start, entry.piece.stop))
        assert entry.piece.samples < 2 * samples_min
    if samples_min == 1:
        assert {entry.piece.start for entry in suspects.quarantined} == poisons
    if len(workers) == len(poisons) == 1:
        assert deaths <= 2 * 3 + math.log2(samples)


@given(
    samples=st.integers(1, 80),
    start=st.integers(0, 79),
    quarantined=st.sets(st.integers(0, 79)),
    workers=st.integers(1, 9),
)
def test_shares_without_what_is_quarantined_are_the_same_samples_for_every_number_of_workers(
    samples: int, start: int, quarantined: set[int], workers: int
) -> None:
    order = epoch_order(3, 1, samples)
    start %= samples

    shares = [without(order[s.start : s.stop], quarantined) for s in split(start, samples - start, workers)]

    assert list(np.concatenate(shares)) == [i for i in order[start:] if int(i) not in quarantined]
