"""The shared-memory block: sections never overlap, records are never half written, and memory is freed."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from manifests import manifest_of

from scavenger.elastic.migration import BucketMap
from scavenger.elastic.view import SLOTS_PER_WORKER, Position
from scavenger.errors import NotSupportedError
from scavenger.train.transport import layout as layout_module
from scavenger.train.transport.block_file import create_block, memory_id
from scavenger.train.transport.layout import BUCKET_BYTES, MAP_BYTES, MAPS_AT, Layout
from scavenger.train.transport.messages import StepReport, decode, encode
from scavenger.train.transport.messages.values import Manifest, SlotSpec, TensorSpec
from scavenger.train.transport.shared_memory import (
    BUCKETS_MAX,
    Block,
    OptimizerMemory,
    PartRecord,
    ProgressRecord,
)

_shapes = st.lists(st.integers(0, 40), max_size=3).map(tuple)
_tensors = st.lists(
    st.tuples(
        _shapes,
        st.sampled_from(["float32", "float64", "float16", "int32", "bool"]),
        st.sampled_from(["trainable", "trainable", "mean", "first"]),
    ),
    max_size=8,
)
_SGD = '{"class_name": "SGD", "config": {"global_clipnorm": null}}'
_ADAFACTOR = '{"class_name": "Adafactor", "config": {}}'
_CLIPPED = '{"class_name": "SGD", "config": {"global_clipnorm": 0.5}}'
Tensor = tuple[tuple[int, ...], str, str]


def manifest(tensors: list[Tensor], metrics: list[tuple[int, ...]], optimizer: str = _SGD) -> Manifest:
    return manifest_of(
        (TensorSpec(f"t{i}", shape, dtype, role) for i, (shape, dtype, role) in enumerate(tensors)),
        optimizer,
        metrics=tuple(metrics),
    )


def size(shape: tuple[int, ...], dtype: str) -> int:
    return int(np.prod(shape)) * np.dtype(dtype).itemsize


@given(tensors=_tensors, metrics=st.lists(_shapes, max_size=4), aggregators=st.integers(1, 4))
def test_no_two_sections_or_tensors_overlap_and_all_lie_within_the_block(
    tensors: list[Tensor], metrics: list[tuple[int, ...]], aggregators: int
) -> None:
    layout = Layout.of(manifest(tensors, metrics), aggregators)
    with_metrics = [layout.state_at(0), layout.state_at(1), *map(layout.slot_at, (0, 1, layout.slots - 1))]

    extents = [(0, 4096)]  # the records
    for at in [*with_metrics, layout.best_at]:
        for offset, (shape, dtype, _) in zip(layout.offsets, tensors, strict=True):
            extents.append((at + offset, size(shape, dtype)))
    for at in with_metrics:
        for offset, shape in zip(layout.metric_offsets, metrics, strict=True):
            extents.append((at + layout.weights_bytes + offset, int(np.prod(shape)) * 8))
    extents = sorted((start, length) for start, length in extents if length)

    assert all(a + length <= b for (a, length), (b, _) in pairwise(extents))
    assert all(start % 64 == 0 for start, _ in extents)
    assert all(start >= 0 and start + length <= layout.total_bytes for start, length in extents)
    assert layout.state_at(7) == layout.state_at(1) != layout.state_at(4)
    assert layout.fixed_bytes <= layout.optimizer_at(0) < layout.optimizer_at(1) < layout.shared_at(0)
    assert layout.shared_at(0) < layout.shared_at(1) <= layout.slots_at


@given(
    tensors=_tensors,
    aggregators=st.integers(1, 4),
    optimizer=st.sampled_from([_SGD, _ADAFACTOR, _CLIPPED]),
    bucket_bytes=st.sampled_from([None, 64, 1000]),
    mixed=st.booleans(),
)
def test_every_element_is_in_one_segment_and_that_in_a_range_of_the_one_aggregator_that_holds_it(
    tensors: list[Tensor], aggregators: int, optimizer: str, bucket_bytes: int | None, mixed: bool
) -> None:
    made = manifest(tensors, [], optimizer)
    layout = Layout.of(made, aggregators, bucket_bytes=bucket_bytes)
    if mixed:  # any map of buckets will do
        holders = [(7 * n + n // 3) % aggregators for n in range(len(layout.buckets))]
        layout = Layout.of(made, aggregators, holders, bucket_bytes=bucket_bytes)

    assert sorted(number for part in layout.parts for number in part) == list(range(len(layout.segments)))
    for index, (shape, dtype, _) in enumerate(tensors):
        own = [layout.segments[number] for number in layout.segments_of(index)]
        bounds = [0, *(segment.elements[1] for segment in own)]
        assert bounds == [0, *(segment.elements[0] for segment in own[1:]), int(np.prod(shape))]
        assert [segment.is_whole for segment in own] == [len(own) == 1] * len(own)
        itemsize = np.dtype(dtype).itemsize
        for segment in own:
            begin, end = segment.elements
            assert segment.offset == layout.offsets[index] + begin * itemsize
            assert segment.offset % 64 == 0
            assert int(np.prod(segment.spec.shape)) == end - begin
            if segment.by_rows:
                assert segment.spec.shape[1:] == shape[1:]
    for part, ranges in zip(layout.parts, layout.part_ranges, strict=True):
        for number in part:
            begin, end = layout.used(number)
            assert begin == end or any(a <= begin and end <= b for a, b in ranges)
    every = sorted(a_range for ranges in layout.part_ranges for a_range in ranges)
    assert all(a[1] == b[0] for a, b in pairwise([(0, 0), *every]))
    roles = [[layout.segments[number].spec.role for number in part] for part in layout.parts]
    if optimizer == _CLIPPED and not mixed:  # it needs the norm of all gradients
        assert not any(roles[1:])
    if optimizer != _SGD:
        assert all(segment.is_whole for segment in layout.segments if segment.spec.role == "trainable")


def test_a_table_is_cut_between_rows_and_a_constrained_tensor_is_not() -> None:
    made = manifest([((1000, 12), "float32", "trainable"), ((1000, 12), "float32", "trainable")], [])
    constrained = msgspec.structs.replace(made, constraints=((1, "{}"),))

    cut, kept = Layout.of(made, 2, bucket_bytes=4000), Layout.of(constrained, 2, bucket_bytes=4000)

    assert all(segment.by_rows and segment.spec.shape[1:] == (12,) for segment in cut.segments)
    assert len(cut.segments_of(1)) == len(cut.segments_of(0)) > 12
    assert len(kept.segments_of(1)) == 1
    assert len(kept.segments_of(0)) > 12


def test_rows_too_long_for_buckets_are_cut_and_have_no_sparse_gradient() -> None:
    layout = Layout.of(manifest([((3, 1000), "float32", "trainable")], []), bucket_bytes=1024)

    assert not any(segment.by_rows for segment in layout.segments)
    assert not any(layout.saves(number, 1) for number in range(len(layout.segments)))


def test_most_of_a_model_in_one_tensor_is_shared_out_evenly() -> None:
    tensors: list[Tensor] = [((90_000, 100), "float32", "trainable"), ((1000, 1000), "float32", "trainable")]
    for aggregators in (2, 3, 5, 16):
        layout = Layout.of(manifest(tensors, []), aggregators)
        held = [sum(end - begin for begin, end in ranges) for ranges in layout.part_ranges]
        assert max(held) - min(held) <= BUCKET_BYTES
        assert all(len(ranges) == 1 for ranges in layout.part_ranges)


@pytest.mark.parametrize("holders", [(), (0, 2), (0, -1), (0, 0, 0)])
def test_a_map_that_does_not_fit_is_refused(holders: tuple[int, ...]) -> None:
    made = manifest([((32,), "float32", "trainable")], [])
    assert len(Layout.of(made, 2, (0, 1), bucket_bytes=64).buckets) == 2

    with pytest.raises(ValueError, match="does not name one of 2 aggregators"):
        Layout.of(made, 2, holders, bucket_bytes=64)


@pytest.mark.parametrize("shape", [(-1,), (4, -4), (1 << 60,), (1 << 40, 1 << 40)])
def test_no_model_has_tensors_without_end(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="no model has such tensors"):
        Layout.of(manifest([(shape, "float32", "trainable")], []))


@given(worker=st.integers(0, 10**6), other=st.integers(0, 10**6))
def test_workers_share_all_places_or_none_however_many_there_have_been(worker: int, other: int) -> None:
    layout = Layout.of(manifest([((2,), "float32", "trainable")], []))

    def places(of: int) -> set[int]:
        return {layout.slot_at(of * SLOTS_PER_WORKER + k) for k in range(SLOTS_PER_WORKER)}

    common = places(worker) & places(other)
    assert len(places(worker)) == SLOTS_PER_WORKER
    assert common == (places(worker) if (worker - other) % layout.workers_max == 0 else set())
    assert max(places(worker)) + layout.state_bytes <= layout.total_bytes


def test_no_slot_lies_before_the_first() -> None:
    layout = Layout.of(manifest([((2,), "float32", "trainable")], []))

    with pytest.raises(IndexError):
        layout.slot_at(-1)


def test_a_huge_model_leaves_room_for_fewer_workers_rather_than_none() -> None:
    small = Layout.of(manifest([((10,), "float32", "trainable")], []))
    huge = Layout.of(manifest([((1 << 37,), "float32", "trainable")], []))

    assert small.workers_max >= 1000
    assert 1 <= huge.workers_max < 10


def test_what_one_mapping_writes_another_reads(fd: int) -> None:
    layout = Layout.of(
        manifest([((2, 3), "float32", "trainable"), ((), "int32", "first")], [(4,)]), aggregators=2
    )
    writer, reader = Block(fd, layout), Block(fd, layout)

    weights = writer.tensors(layout.state_at(1))
    weights[0][...] = np.arange(6).reshape(2, 3)
    weights[1][...] = -7
    writer.metrics(layout.slot_at(1))[0][...] = 0.5

    seen = reader.tensors(layout.state_at(1))
    np.testing.assert_array_equal(seen[0], [[0, 1, 2], [3, 4, 5]])
    assert seen[1] == -7
    assert reader.tensors(layout.state_at(1), [1])[0] == -7
    np.testing.assert_array_equal(reader.metrics(layout.slot_at(1))[0], [0.5] * 4)
    assert not reader.tensors(layout.state_at(0))[0].any()


def test_a_block_has_one_identity_and_another_has_another(fd: int) -> None:
    other = create_block()
    again = os.dup(fd)
    try:
        assert memory_id(fd) == memory_id(again) != memory_id(other)
    finally:
        os.close(other)
        os.close(again)


def test_slots_lie_along_the_line_whoever_holds_their_tensors_and_two_steps_apart(fd: int) -> None:
    tensors: list[Tensor] = [((50,), "float32", "trainable"), ((60,), "float32", "trainable")]
    layout = Layout.of(manifest(tensors, []), 2, (0, 1), bucket_bytes=256)
    specs = [
        SlotSpec("m", (), "float32", "slot", 0, 0),
        SlotSpec("v", (60,), "float32", "slot", 1, 1),
        SlotSpec("v", (), "int64", "slot", 1, 0),
        SlotSpec("products", (), "float32", "slot", -1, 3),
    ]
    both = OptimizerMemory(fd, layout, 0, specs, layout.segments)
    Block(fd, layout).tensors(layout.slot_at(layout.slots - 1))[0][...] = 99
    for step in (0, 1):
        for number, array in enumerate(both.slots(step)):
            array[...] = 10 * step + number

    alone = OptimizerMemory(fd, layout.moved((1, 1), 1), 1, specs[1:], layout.segments)
    for step in (0, 1, 2, 3):
        for number, array in enumerate(alone.slots(step)[:2], 1):
            assert set(array.reshape(-1)) == {10 * (step % 2) + number}
        assert alone.slots(step)[2] == 0, "each aggregator has its own state of no tensor"
    alone.copy_shared(0, 3)
    assert [alone.slots(step)[2] for step in (0, 1)] == [0, 13]


@pytest.mark.parametrize(
    "slot",
    [
        SlotSpec("longer", (51,), "float64", "slot", 0, 0),
        SlotSpec("one of too many", (50,), "float32", "slot", 0, 16),
        SlotSpec("no scalar", (17,), "float32", "slot", -1, 0),
        SlotSpec("one of too many", (), "float32", "slot", -1, 1024),
    ],
)
def test_an_optimizer_with_more_state_than_there_is_room_for_is_refused(fd: int, slot: SlotSpec) -> None:
    layout = Layout.of(manifest([((50,), "float32", "trainable")], []))

    with pytest.raises(ValueError, match="no room"):
        OptimizerMemory(fd, layout, 0, [slot], layout.segments)


def test_only_who_holds_a_bucket_differs_under_another_map(fd: int) -> None:
    layout = Layout.of(manifest([((50,), "float32", "trainable"), ((60,), "float32", "mean")], [(2,)]), 3)
    count = len(layout.buckets)

    moved = layout.moved([2] * count, 7)

    assert moved == dataclasses.replace(
        layout,
        holders=(2,) * count,
        parts=((), (), (*range(len(layout.segments)),)),
        part_ranges=((), (), ((0, layout.buckets[-1][1]),)),
        map_number=7,
    )
    Block(fd, layout).tensors(layout.state_at(0))[1][...] = 5
    assert set(Block(fd, moved).tensors(moved.state_at(0))[1]) == {5.0}
    for holders in ([0] * (count - 1), [3] * count):
        with pytest.raises(ValueError, match="does not name one of 3"):
            layout.moved(holders, 8)


# ---- records -----------------------------------------------------------------------------------------------

_LAYOUT = Layout.of(manifest([((4,), "float32", "trainable")], [(1,)]), 3)
_jobs = st.builds(
    ProgressRecord,
    step=st.integers(0, 2**40),
    position=st.builds(Position, st.integers(0, 10**6), st.integers(0, 2**40)),
    number=st.integers(0, 2**30),
    best_step=st.integers(0, 2**40),
)


def test_nobody_takes_what_was_never_written_for_a_record(fd: int) -> None:
    block = Block(fd, _LAYOUT)

    assert block.read_job() is None
    assert [block.read_part(index) for index in range(3)] == [None] * 3
    assert [block.read_report(step) for step in range(3)] == [None] * 3


def test_a_process_with_another_layout_of_the_block_is_refused(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an update of the program while a job runs."""
    Block(fd, _LAYOUT).write_job(ProgressRecord(5))
    with monkeypatch.context() as patch:
        patch.setattr(layout_module, "REPORT_BYTES", 32 << 10)
        with pytest.raises(NotSupportedError, match="another version"):
            Block(fd, _LAYOUT)

    assert Block(fd, _LAYOUT).read_job() == ProgressRecord(5)


@given(record=_jobs)
def test_a_record_is_read_as_it_was_written(record: ProgressRecord) -> None:
    fd = create_block()
    try:
        Block(fd, _LAYOUT).write_job(record)
        assert Block(fd, _LAYOUT).read_job() == record
    finally:
        os.close(fd)


def test_records_of_parts_and_job_do_not_disturb_each_other(fd: int) -> None:
    block = Block(fd, _LAYOUT)
    for step in (5, 6):
        block.write_job(ProgressRecord(step))
        for index in range(3):
            block.write_part(index, PartRecord(step, index, 3, 0.5 * index))

    assert block.read_job() == ProgressRecord(6)
    assert [block.read_part(index) for index in range(3)] == [PartRecord(6, i, 3, 0.5 * i) for i in range(3)]


def test_what_is_forgotten_of_one_part_stays_known_of_the_others(fd: int) -> None:
    block = Block(fd, _LAYOUT)
    for step in (5, 6):
        block.write_job(ProgressRecord(step))
        for index in range(3):
            block.write_part(index, PartRecord(step))

    block.forget(1)

    assert [block.read_part(index) for index in range(3)] == [PartRecord(6), None, PartRecord(6)]
    assert block.read_job() == ProgressRecord(6)


@given(byte=st.integers(0, 63), value=st.integers(1, 255))
def test_a_record_that_was_cut_short_leaves_the_one_before(byte: int, value: int) -> None:
    fd = create_block()
    try:
        block = Block(fd, _LAYOUT)
        for step in (6, 7):
            block.write_job(ProgressRecord(step, Position(0, step), 1))
        place = block.range(3 * 64, 64)  # that of odd steps
        written = bytes(place)
        place[byte] ^= value
        found = block.read_job()
        place[:] = written

        assert found in (ProgressRecord(6, Position(0, 6), 1), ProgressRecord(7, Position(0, 7), 1))
        # within what is written, no change goes unnoticed; beyond it, none matters
        assert (found == block.read_job()) == (byte >= 52)
    finally:
        os.close(fd)


def test_what_is_told_of_a_step_is_kept_until_the_step_after_the_next(fd: int) -> None:
    block = Block(fd, _LAYOUT)
    block.write_report(4, b"four")
    block.write_report(5, b"five" * 1000)
    assert (block.read_report(4), block.read_report(5)) == (b"four", b"five" * 1000)

    block.write_report(6, b"six")
    assert block.read_report(6) == b"six"
    block.range(4096 + 8, 1)[:] = b"x"
    assert block.read_report(6) is None


@pytest.mark.parametrize("workers", [1000, 4096])
def test_the_report_of_a_step_by_very_many_workers_is_kept(fd: int, workers: int) -> None:
    # late in a job on a large data set: its first workers are replaced, and positions take all their bytes
    names = [f"w{10_500 + rank}" for rank in range(workers)]
    first = 5_000_000_000
    report = StepReport(
        step=123_456,
        view=321,
        epoch=12,
        workers=workers,
        global_batch_size=32 * workers,
        samples=32 * workers,
        step_time_s=1.2,
        compute_s=1.1,
        update_s=0.1,
        data_wait_s=0.01,
        loss=0.123,
        mean_worker_sqnorm=1.23,
        mean_sqnorm=0.123,
        noise_parts=workers,
        worker_compute_s=dict.fromkeys(names, 1.1),
        pieces=tuple((name, first + 32 * rank, first + 32 * (rank + 1)) for rank, name in enumerate(names)),
    )
    block = Block(fd, _LAYOUT)
    block.write_report(report.step, encode(report))

    kept = block.read_report(report.step)
    assert kept is not None
    assert decode(kept) == report


# ---- what it costs -----------------------------------------------------------------------------------------


def test_released_slots_are_zero_cost_nothing_and_their_neighbours_stay(fd: int) -> None:
    layout = Layout.of(manifest([((100_000,), "float32", "trainable")], [(2,)]))
    block = Block(fd, layout)
    firsts = [worker * SLOTS_PER_WORKER for worker in range(3)]
    used = [slot for first in firsts for slot in (first, first + SLOTS_PER_WORKER - 1)]
    for slot in used:
        block.tensors(layout.slot_at(slot))[0][...] = slot + 1
        block.metrics(layout.slot_at(slot))[0][...] = slot + 1
    held = os.fstat(fd).st_blocks

    block.release_slots(firsts[1])
    left = os.fstat(fd).st_blocks  # before anybody looks, which takes pages again

    for slot in used:
        of_released = slot // SLOTS_PER_WORKER == 1
        expected = {0.0} if of_released else {float(slot + 1)}
        assert set(block.tensors(layout.slot_at(slot))[0]) == expected
        assert set(block.metrics(layout.slot_at(slot))[0]) == expected
    assert left < held


def test_slots_of_workers_that_are_gone_keep_no_descriptor(fd: int) -> None:
    layout = Layout.of(manifest([((1000,), "float32", "trainable")], [(2,)]))
    block, other = Block(fd, layout), Block(fd, layout)
    before = len(os.listdir("/proc/self/fd"))
    for slot in range(100 * SLOTS_PER_WORKER):
        block.tensors(layout.slot_at(slot))[0][...] = slot

    for worker in range(100):
        block.unmap_slots(worker * SLOTS_PER_WORKER)

    assert len(os.listdir("/proc/self/fd")) == before
    assert other.tensors(layout.slot_at(7))[0][0] == 7, "another process may still write there"


def test_slots_that_nobody_uses_cost_nothing(fd: int) -> None:
    layout = Layout.of(manifest([((1_000_000,), "float32", "trainable")], []))
    block = Block(fd, layout)

    block.tensors(layout.state_at(0))[0][...] = 1

    assert layout.total_bytes > 10**9
    assert os.fstat(fd).st_blocks * 512 < 10**7


_LIMITED = """
import resource, sys
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.messages.values import Manifest, SlotSpec, TensorSpec
from scavenger.train.transport.layout import Layout
from scavenger.train.transport.shared_memory import Block
tensors = (TensorSpec("kernel", (1_000_000,), "float32", "trainable"),)
layout = Layout.of(Manifest(tensors, (), "", "", 0, 1, 0, 1, ()))
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (200 << 20),) * 2)
resource.setrlimit(resource.RLIMIT_FSIZE, (600 << 20,) * 2)
block = Block(create_block(), layout)
block.tensors(layout.slot_at(0))[0][...] = 1
block.tensors(layout.slot_at(65))[0][...] = 2
"""


def test_limits_on_files_and_addresses_concern_only_what_is_used() -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc")
    ended = subprocess.run(
        [sys.executable, "-c", _LIMITED], capture_output=True, text=True, timeout=60, check=False
    )

    assert ended.returncode == 0, ended.stderr


def test_touching_a_range_changes_nothing_of_it(fd: int) -> None:
    layout = Layout.of(manifest([((3000,), "float32", "trainable")], []))
    block = Block(fd, layout)
    (array,) = block.tensors(layout.slot_at(3))
    array[...] = np.arange(3000)

    block.touch(layout.slot_at(3), layout.state_bytes)
    block.touch(layout.slot_at(4), 0)

    assert np.array_equal(array, np.arange(3000))


def test_what_was_touched_takes_memory_before_it_is_used(fd: int) -> None:
    layout = Layout.of(manifest([((1 << 18,), "float32", "trainable")], []))
    block = Block(fd, layout)
    before = os.fstat(fd).st_blocks

    block.touch(layout.slot_at(0), layout.weights_bytes)

    assert (os.fstat(fd).st_blocks - before) * 512 >= layout.weights_bytes


_maps = [BucketMap(number, number + 1, (number % 3, 2, 0)) for number in range(5)]


def test_the_newest_map_of_buckets_is_recorded_with_the_one_before(fd: int) -> None:
    block = Block(fd, _LAYOUT)
    assert block.read_maps() is None

    for before, current in pairwise(_maps):
        block.write_map(current, before)
        assert Block(fd, _LAYOUT).read_maps() == (current, before)

    block.forget(0)
    assert block.read_maps() is None


@pytest.mark.parametrize("recorded", [1, 2, 3])
def test_a_map_whose_writing_was_cut_short_leaves_the_one_before(fd: int, recorded: int) -> None:
    block = Block(fd, _LAYOUT)
    for before, current in pairwise(_maps[: recorded + 1]):
        block.write_map(current, before)
    places = [block.range(MAPS_AT + place * MAP_BYTES, 30) for place in (0, 1)]
    written = [bytes(place) for place in places]
    block.write_map(_maps[recorded + 1], _maps[recorded])
    changed = [place for place, old in zip(places, written, strict=True) if place != old]
    for byte in range(30):
        changed[0][byte] ^= 1
        assert block.read_maps() == (_maps[recorded], _maps[recorded])
        changed[0][byte] ^= 1
    assert block.read_maps() == (_maps[recorded + 1], _maps[recorded])


def test_a_map_of_too_many_buckets_is_refused(fd: int) -> None:
    with pytest.raises(ValueError, match="no room"):
        Block(fd, _LAYOUT).write_map(
            BucketMap(1, 1, (0,) * (BUCKETS_MAX + 1)), BucketMap(0, 0, (0,) * (BUCKETS_MAX + 1))
        )
