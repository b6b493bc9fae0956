"""How many aggregator VMs a configuration needs."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.models.aggregation import (
    OWN_BYTES,
    AggregatorVms,
    held_models,
    loop_leader_lack,
    optimizer_copies,
    vms_for_bandwidth,
    vms_for_memory,
)

GIB = 2**30
counts = st.integers(1, 512)
sizes = st.floats(1e3, 1e11)
copies = st.integers(0, 3)
memories = st.floats(1.5 * GIB, 1024 * GIB)


def test_with_adam_aggregators_hold_nine_models_while_a_checkpoint_is_written_and_the_gradients_that_wait() -> (
    None
):
    assert held_models(optimizer_copies('{"class_name": "Adam", "config": {}}')) == 9.25


@given(sizes, copies, memories)
def test_the_vms_hold_what_is_needed_and_one_less_would_not(model: float, o: int, memory: float) -> None:
    vms = vms_for_memory(model, o, vm_bytes=memory)
    assert vms is not None
    needed, each = held_models(o) * model, memory - OWN_BYTES

    assert vms * each >= needed * (1 - 1e-9)
    assert vms == 1 or (vms - 1) * each < needed * (1 + 1e-9)


@given(counts, sizes, copies, memories, st.floats(1e-3, 1e3), st.floats(1e6, 1e11))
def test_neither_more_workers_nor_a_larger_model_nor_faster_steps_need_fewer_vms(
    k: int, model: float, o: int, memory: float, step_s: float, rate: float
) -> None:
    def by_memory(model: float, o: int) -> int:
        return vms_for_memory(model, o, vm_bytes=memory) or 0

    def by_bandwidth(k: int, model: float, step_s: float) -> int:
        return vms_for_bandwidth(k, model, step_time_s=step_s, vm_bytes_per_s=rate) or 0

    least = by_memory(model, o)
    assert least <= min(by_memory(2 * model, o), by_memory(model, o + 1))
    least = by_bandwidth(k, model, step_s)
    assert least <= min(
        by_bandwidth(k + 1, model, step_s),
        by_bandwidth(k, 2 * model, step_s),
        by_bandwidth(k, model, step_s / 2),
    )
    assert least * rate * step_s >= 2 * k * model * (1 - 1e-9)


def test_the_example_of_the_documentation() -> None:
    """docs/clouds.md, "Aggregator VMs"."""
    assert vms_for_memory(1e9, 2, vm_bytes=4 * GIB) == 3
    assert vms_for_bandwidth(16, 1e9, step_time_s=4.0, vm_bytes_per_s=1.25e9) == 7


def test_rounded_gradients_are_half_of_what_workers_push() -> None:
    def step(pushed: float) -> AggregatorVms:
        return AggregatorVms(
            vms=1,
            vm="m5",
            vm_bytes=8 * GIB,
            weights_bytes=1e9,
            copies=2,
            largest_share=1.0,
            vm_bytes_per_s=1e9,
            pushed=pushed,
        )

    assert (step(1.0).network_s(4), step(0.5).network_s(4)) == (8.0, 6.0)
    assert "bfloat16 would save up to 2 s" in step(1.0).network_note(4, 10.0)
    assert "bfloat16" not in step(0.5).network_note(4, 10.0)
    assert "elastic.aggregator_vms: 2," in step(1.0).network_note(4, 8.5)
    assert "elastic.aggregator_vms: 2," in step(0.5).network_note(4, 8.5)
    assert "elastic.aggregator_vms: 2," in step(0.5).network_note(4, 11.9)


def test_what_is_not_known_is_not_made_up() -> None:
    assert vms_for_bandwidth(8, 1e9, step_time_s=1.0, vm_bytes_per_s=None) is None
    assert vms_for_memory(1.0, 2, vm_bytes=OWN_BYTES) is None


@given(sizes, copies, memories, st.integers(1, 16), st.floats(1.0, 3.0))
def test_a_model_is_too_large_exactly_where_the_largest_share_does_not_fit(
    model: float, o: int, memory: float, vms: int, uneven: float
) -> None:
    share = min(1.0, uneven / vms)
    here = AggregatorVms(
        vms=vms, vm="c5.large", vm_bytes=memory, weights_bytes=model, copies=o, largest_share=share
    )

    assert (here.lack() == "") == (held_models(o) * share * model <= memory - OWN_BYTES)


@given(sizes, copies, memories)
def test_as_many_vms_as_the_reason_names_would_hold_the_model_if_tensors_can_be_divided(
    model: float, o: int, memory: float
) -> None:
    def on(vms: int) -> AggregatorVms:
        return AggregatorVms(
            vms=vms,
            vm="m5",
            vm_bytes=memory,
            weights_bytes=model,
            copies=o,
            largest_share=1.0 / vms * (1 - 1e-9),
        )

    if why := on(1).lack():
        needed = int(why.partition("aggregator_vms: ")[2].partition(",")[0])
        assert on(needed).lack() == ""


@given(counts, sizes, st.floats(1e6, 1e11), st.floats(1e-3, 1e3), st.integers(1, 16))
def test_a_note_comes_where_the_network_takes_half_of_a_step_or_more_and_names_the_key(
    k: int, model: float, rate: float, step_s: float, vms: int
) -> None:
    here = AggregatorVms(
        vms=vms,
        vm="m5.large",
        vm_bytes=8 * GIB,
        weights_bytes=model,
        copies=2,
        largest_share=1 / vms,
        vm_bytes_per_s=rate,
    )
    enough = vms_for_bandwidth(k, model, step_time_s=step_s / 2, vm_bytes_per_s=rate)
    assert enough is not None

    note = here.network_note(k, step_s)
    assert (f"elastic.aggregator_vms: {enough}," in note) == bool(note)
    if vms < enough:
        assert note
    if vms > enough:
        assert not note
    assert replace(here, vm_bytes_per_s=None).network_note(k, step_s) == ""


@given(counts, sizes, st.floats(1e6, 1e11), st.floats(1e-3, 1e3), st.integers(1, 16), st.integers(0, 64))
def test_more_vms_shorten_a_step_by_no_more_than_their_network_takes_of_it_and_by_more_the_more_there_are(
    k: int, model: float, rate: float, step_s: float, vms: int, more: int
) -> None:
    here = AggregatorVms(
        vms=vms,
        vm="m5.large",
        vm_bytes=8 * GIB,
        weights_bytes=model,
        copies=2,
        largest_share=1 / vms,
        vm_bytes_per_s=rate,
    )
    network_s = here.network_s(k)
    assert network_s is not None
    bounds = [here.step_time_min_s(vms + count, k, step_s) for count in (0, more, more + 1)]

    assert bounds[0] == pytest.approx(step_s)
    assert bounds[0] >= bounds[1] >= bounds[2] >= 0.0
    assert bounds[2] >= step_s - network_s
    assert replace(here, vm_bytes_per_s=None).step_time_min_s(vms + more, k, step_s) == step_s


def test_the_note_says_what_enough_vms_cost_and_how_short_a_step_may_become() -> None:
    here = AggregatorVms(
        vms=2,
        vm="c5.large",
        vm_bytes=4 * GIB,
        weights_bytes=1e9,
        copies=2,
        largest_share=0.5,
        vm_bytes_per_s=1.25e9,
        usd_per_hour=0.1,
    )
    # 2 x 16 x 1 GB x 0.5 / 1.25 GB/s = 12.8 of 16 s; 4 VMs need 6.4 s
    assert "elastic.aggregator_vms: 4, " in (note := here.network_note(16, 16.0))
    assert "for $0.2 an hour more, and a step then 9.6 s or longer" in note


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["SGD", "Adagrad", "RMSprop", "Lion", "Adadelta", "Adam", "AdamW", "Nadam", "Ftrl"]
)
@pytest.mark.parametrize("option", ["", "use_ema", "amsgrad", "momentum", "centered"])
def test_the_copies_of_an_optimizer_are_those_that_keras_makes(name: str, option: str) -> None:
    keras = pytest.importorskip("keras")
    options = {option: 0.9 if option == "momentum" else True} if option else {}
    try:
        optimizer = getattr(keras.optimizers, name)(**options)
    except (TypeError, ValueError):
        pytest.skip(f"{name} has no {option}")
    weight = keras.Variable([[0.0] * 8] * 8)
    optimizer.build([weight])
    held = sum(math.prod(v.shape) for v in optimizer.variables) // 64

    assert optimizer_copies(json.dumps(keras.optimizers.serialize(optimizer))) == held


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"class_name": "Mine", "config": {}}'])
def test_an_unknown_optimizer_counts_as_adam(text: str) -> None:
    assert optimizer_copies(text) == 2


@given(state=st.floats(1e6, 1e11), workers=st.integers(1, 200), memory=st.floats(2.0**31, 1e12))
def test_a_loops_leader_that_lacks_memory_is_told_how_many_workers_fit(
    state: float, workers: int, memory: float
) -> None:
    lack = loop_leader_lack(state, workers, memory_bytes=memory)
    fit = next((k for k in range(workers, 0, -1) if not loop_leader_lack(state, k, memory_bytes=memory)), 0)
    assert (lack == "") == (fit == workers)
    if lack:
        assert ("not even one" in lack) == (fit == 0)
        assert fit == 0 or f"; {fit} would fit in any case" in lack
