from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.elastic_joining import standstill_s
from benchmarks.elastic_process import is_bare
from benchmarks.elastic_step import slowest
from benchmarks.elastic_supervisor import gradient_s
from benchmarks.elastic_watching import paired
from benchmarks.migration import delay_s
from benchmarks.peers import shapes
from benchmarks.peers.running import installed, run_peers
from benchmarks.shared import rate
from scavenger.train.transport.messages import StepReport

pytestmark = pytest.mark.slow


def report(step_time_s: float, compute_s: dict[str, float]) -> StepReport:
    return StepReport(
        step=1,
        view=1,
        epoch=0,
        workers=len(compute_s),
        global_batch_size=8,
        samples=8,
        step_time_s=step_time_s,
        compute_s=max(compute_s.values()),
        update_s=0.0,
        data_wait_s=0.0,
        loss=1.0,
        mean_worker_sqnorm=1.0,
        mean_sqnorm=1.0,
        noise_parts=2,
        worker_compute_s=compute_s,
    )


@given(st.integers(1, 20), st.integers(0, 500))
def test_as_many_steps_are_left_bare_as_not_and_they_take_turns_in_windows(window: int, begin: int) -> None:
    first = begin - begin % (2 * window)

    assert [is_bare(first + step, window) for step in range(2 * window)] == [False] * window + [True] * window


@given(st.integers(0, 500))
def test_without_a_window_no_step_is_bare(step: int) -> None:
    assert not is_bare(step, 0)


@given(st.integers(1, 6), st.integers(1, 5), st.floats(0.01, 1.0), st.floats(0.0, 0.1))
def test_what_bare_steps_lack_is_the_difference_of_every_pair(
    window: int, pairs: int, bare_s: float, added_s: float
) -> None:
    steps = range(1, 2 * window * (pairs + 1))
    found = paired({step: bare_s + (0.0 if is_bare(step, window) else added_s) for step in steps}, window)

    assert len(found) == pairs
    assert all(pair.full_s - pair.bare_s == pytest.approx(added_s) for pair in found)


def test_a_window_that_lacks_a_step_makes_no_pair() -> None:
    steps = dict.fromkeys(range(1, 12), 1.0)
    del steps[6]

    assert [pair.full_s for pair in paired(steps, 2)] == [1.0]


def test_a_worker_also_stands_still_while_it_waits_for_a_slower_one() -> None:
    step = report(1.0, {"w0": 0.25, "w1": 0.75})

    assert (standstill_s(step, "w0"), standstill_s(step, "w1")) == (0.75, 0.25)


def test_a_step_s_gradient_takes_as_long_as_that_of_the_slowest_worker_that_took_part() -> None:
    measured: Any = {
        "w0": {"gradient": {1: 0.1, 2: 0.2}},
        "w1": {"gradient": {2: 0.3}},
        "aggregator-0": {"step": {1: 9.0, 2: 9.0}},
    }

    assert (gradient_s(measured, 1), gradient_s(measured, 2)) == (0.1, 0.3)


def test_ranks_wait_for_the_slowest_of_each_window() -> None:
    ranks = [{"step": [1.0, 1.0, 5.0, 2.0]}, {"step": [3.0, 3.0, 1.0, 1.0]}]

    assert slowest(ranks, "step", 2) == [3.0, 3.5]


def test_the_large_network_s_gradient_takes_a_hundred_megabytes() -> None:
    assert 4 * shapes.parameters("mlp") == pytest.approx(100e6, rel=0.02)


def test_every_framework_builds_networks_of_the_same_size() -> None:
    if not installed("torch"):
        pytest.skip("PyTorch is not installed")
    from benchmarks.peers.torch_models import build

    assert shapes.parameters("transformer") == pytest.approx(100e6, rel=0.02)
    for network in ("mlp", "cnn", "small"):
        assert sum(p.numel() for p in build(network).parameters()) == shapes.parameters(network)


def test_keras_builds_networks_of_that_size_too() -> None:
    from benchmarks.peers import keras_jobs

    assert keras_jobs.mlp_model().count_params() == shapes.parameters("mlp")
    assert keras_jobs.cnn_model().count_params() == shapes.parameters("cnn")


def test_a_peer_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="No module named"):
        run_peers("nobody", 1)


def test_a_delay_is_what_steps_took_beyond_as_many_ordinary_ones() -> None:
    assert delay_s([0.5, 0.25, 0.25], [0.0, 0.75, 1.0], (0.125, 0.5, 0.25)) == pytest.approx(0.25)
    assert delay_s([0.125, 0.25], [0.5, 0.5], (0.25,) * 3) == pytest.approx(-0.125)


def test_a_window_begins_and_ends_with_the_end_of_a_step() -> None:
    assert rate([0.0, 1.0, 1.25, 1.5, 2.0], 0.5) == pytest.approx(3.0)
    with pytest.raises(ValueError, match="too short"):
        rate([0.0, 1.0], 0.5)


def test_each_network_that_a_benchmark_names_is_there() -> None:
    """They are named by text, which processes of a job import."""
    sources = [path.read_text() for path in Path(shapes.__file__).parents[1].glob("*.py")]
    named = {name for text in sources for name in re.findall(r'keras_jobs:(\w+)"', text)}
    for text in sources:
        if 'keras_jobs:{_NETWORK}_sgd"' in text:
            named |= {f"{name}_sgd" for name in re.findall(r'^_NETWORK\b.* = "(\w+)"', text, re.MULTILINE)}
    jobs = ast.parse((Path(shapes.__file__).parent / "keras_jobs.py").read_text())

    assert named >= {"mlp", "cnn", "quarter_sgd"}
    assert named <= {node.name for node in jobs.body if isinstance(node, ast.FunctionDef)}
