"""The benchmark of GPUs: without one it says so, and what it measures is measured on any device."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import gpu, loop_step
from benchmarks.gpu_steps import measured


def test_without_a_driver_it_is_skipped_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "has_driver", lambda: False)

    result = gpu.run(1, tmp_path)

    assert result.verdict == "skipped: this machine has no NVIDIA driver"
    assert result.figures == {"skipped": "this machine has no NVIDIA driver"}


@pytest.mark.parametrize(
    ("used", "wrong"),
    [
        ([(1, "a"), (2, "b")], ""),
        ([(1, "a"), (2, "a")], "two workers share a GPU"),
        ([(1, "a"), (1, "b"), (2, "b")], "workers [1, 2] use"),
        ([(1, "a")], "workers [1, 2] use"),
        ([(1, "a"), (2, "b"), (9, "a")], "processes [9] are no workers"),
    ],
)
def test_a_placement_is_right_if_each_worker_alone_uses_one_gpu(
    used: list[tuple[int, str]], wrong: str
) -> None:
    told = gpu.shared_or_strange([1, 2], used)

    assert told.startswith(wrong)
    assert bool(told) == bool(wrong)


@pytest.mark.slow
def test_steps_are_measured_on_the_device_that_there_is() -> None:
    found = measured({"CUDA_VISIBLE_DEVICES": "-1"}, batches=(4,), steps=1, most=4)

    assert found["device"] == "CPU"
    assert found["steps"].keys() == {"4"}
    assert all(took > 0 for times in found["steps"].values() for took in times.values())
    assert found["too_many"] is None


@pytest.mark.slow
@pytest.mark.long  # starts four processes that import PyTorch
def test_steps_of_pytorch_are_measured_beside_those_of_ddp_on_any_device(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = loop_step.in_turn("small", tmp_path, workers=2, local=2, steps=2, repetitions=1, device="cpu")

    assert all(spread.count == 1 and spread.median > 0.0 for spread in found)
    assert found.group_ratio.median == pytest.approx(found.group_step_s.median / found.ddp_step_s.median)
