"""The course of a run, read from its journal as it grows, in a bounded number of points."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from scavenger.control.training import journal as journals
from scavenger.control.training.journal import Journal
from scavenger.control.training.run_course import BUCKETS_MAX, CourseReader


def step(number: int, **changes: Any) -> dict[str, Any]:
    one = {"step": number, "workers": 1, "global_batch_size": 32, "step_time_s": 0.1, "loss": 1.0}
    return {**one, "disturbed": False, "at_s": 0.1 * number, "noise_scale": 50.0, **changes}


def epoch(number: int, at_step: int) -> dict[str, Any]:
    metrics = {"val_accuracy": 0.1 * number}
    return {"epoch": number, "step": at_step, "metrics": metrics, "evaluation_s": 0.1, "at_s": 0.1 * at_step}


def test_what_is_added_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    reader = CourseReader(path)
    assert reader.read().steps == ()
    journal = Journal(path, job_id="j")
    for number in range(1, 6):
        journal.add("step", step(number))
    assert [one.last for one in reader.read().steps] == [1, 2, 3, 4, 5]
    journal.add("epoch", epoch(0, 5))
    journal.add("curve", {"schema_version": 1})
    with path.open("ab") as file:
        file.write(b'{"kind":"step","st')  # it is being written
    found = reader.read()
    assert (len(found.steps), len(found.epochs)) == (5, 1)
    assert found.report is not None
    with path.open("ab") as file:
        file.write(b'ep":6,"damaged":1}\n{"kind":"epoch"}\n')
    journal.add("step", step(7))
    assert [one.last for one in reader.read().steps] == [1, 2, 3, 4, 5, 7]
    journal.close()


def test_a_long_run_keeps_few_points_whose_counts_and_means_are_right(tmp_path: Path) -> None:
    path, count = tmp_path / "measurements.jsonl", 20 * BUCKETS_MAX
    with path.open("w") as file:
        for number in range(1, count + 1):
            size = 32 if number <= count // 2 else 64
            one = step(number, global_batch_size=size, step_time_s=0.1 if number % 2 else 0.3)
            file.write(json.dumps({"kind": "step", **one}) + "\n")
    steps = CourseReader(path).read().steps
    assert BUCKETS_MAX // 4 < len(steps) <= BUCKETS_MAX
    assert sum(one.count for one in steps) == count
    assert (steps[0].first, steps[-1].last) == (1, count)
    assert all(one.last + 1 == other.first for one, other in itertools.pairwise(steps))
    assert [one.step_time_s for one in steps[:-2]] == pytest.approx([0.2] * (len(steps) - 2))
    assert {one.global_batch_size for one in steps} == {32, 64}


def test_disturbed_steps_do_not_count_where_there_are_others(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    with path.open("w") as file:
        for number in range(1, 4 * BUCKETS_MAX):
            disturbed = number % 2 == 0
            one = step(number, disturbed=disturbed, step_time_s=9.0 if disturbed else 0.1)
            file.write(json.dumps({"kind": "step", **one}) + "\n")
    steps = CourseReader(path).read().steps
    assert steps[10].step_time_s == pytest.approx(0.1)
    assert steps[10].slowest_s == 9.0


def test_undone_steps_are_forgotten_and_a_new_file_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "measurements.jsonl"
    journal = Journal(path, job_id="j")
    reader = CourseReader(path)
    for number in range(1, 11):
        journal.add("step", step(number))
    journal.add("epoch", epoch(0, 10))
    reader.read()
    journal.close()
    journal = Journal(path, resumed_step=6)
    assert [one.last for one in reader.read().steps] == [1, 2, 3, 4, 5, 6]
    assert reader.read().epochs == ()
    monkeypatch.setattr(journals, "SEGMENT_BYTES", 100)
    journal.add("step", step(7))
    monkeypatch.setattr(journals, "SEGMENT_BYTES", 1 << 20)
    journal.add("step", step(8))
    assert [one.last for one in reader.read().steps] == [1, 2, 3, 4, 5, 6, 7, 8]
    journal.add("step", step(9))
    assert reader.read().steps[-1].last == 9
    journal.close()


def test_the_journal_has_the_cost_every_ten_seconds(tmp_path: Path) -> None:
    path = tmp_path / "measurements.jsonl"
    journal = Journal(path, job_id="j")
    for second in range(31):
        journal.tick(float(second), 0.01 * second)
    journal.close()
    costs = CourseReader(path).read().costs
    assert [one.at_s for one in costs] == [0.0, 10.0, 20.0, 30.0]
    assert [one.cost_usd for one in costs] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert all(one.unix_s > 1e9 for one in costs)
