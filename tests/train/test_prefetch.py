"""What is prefetched is what would have been read, only earlier."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.train.worker.prefetch import Prefetcher

Indices = npt.NDArray[np.int64]

_PATIENCE_S = 20.0
"""How long to wait for what is about to happen; only a failing test waits that long."""

_SLOW_S = 0.2


class Shelf:
    """A source whose reads begin and end when the test says so."""

    def __init__(self, *, gated: bool = False) -> None:
        self.begun: list[tuple[int, ...]] = []
        self.by: list[threading.Thread] = []
        self.at_once = self.at_once_max = 0
        self._changed = threading.Condition()
        self._permits = 0 if gated else 1 << 30

    def __len__(self) -> int:
        return 100

    def batch(self, indices: Indices) -> tuple[Any, ...]:
        with self._changed:
            self.begun.append(tuple(int(index) for index in indices))
            self.by.append(threading.current_thread())
            self.at_once += 1
            self.at_once_max = max(self.at_once, self.at_once_max)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._permits > 0, _PATIENCE_S)
            self._permits -= 1
            self.at_once -= 1
        if -1 in indices:
            raise LookupError("torn page")
        return indices * 2, indices

    def permit(self, reads: int = 1) -> None:
        with self._changed:
            self._permits += reads
            self._changed.notify_all()

    def until_begun(self, reads: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= reads, _PATIENCE_S)


def _some(*indices: int) -> Indices:
    return np.array(indices, dtype=np.int64)


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_the_next_batch_is_read_while_the_present_one_is_computed() -> None:
    shelf = Shelf(gated=True)
    prefetcher = Prefetcher(shelf)
    prefetcher.want("next", _some(3, 4))
    shelf.until_begun(1)  # nobody has asked for it yet: this thread is free to compute
    shelf.permit()

    x, y = prefetcher.take("next", _some(3, 4))

    assert (list(x), list(y)) == ([6, 8], [3, 4])
    assert shelf.begun == [(3, 4)]
    assert shelf.by[0] is not threading.current_thread()
    prefetcher.close()


def test_wishes_are_read_in_their_order_ahead_of_being_taken() -> None:
    shelf = Shelf()
    prefetcher = Prefetcher(shelf, depth=3)
    for key in range(3):
        prefetcher.want(key, _some(key))
    shelf.until_begun(3)

    assert [int(prefetcher.take(key, _some(key))[1][0]) for key in range(3)] == [0, 1, 2]
    assert shelf.begun == [(0,), (1,), (2,)]
    prefetcher.close()


def test_a_wish_said_twice_is_read_once() -> None:
    shelf = Shelf()
    prefetcher = Prefetcher(shelf)
    prefetcher.want(1, _some(1))
    prefetcher.want(1, _some(1))
    prefetcher.take(1, _some(1))
    prefetcher.want(2, _some(2))
    shelf.until_begun(2)

    assert shelf.begun == [(1,), (2,)]
    prefetcher.close()


def test_what_was_never_wanted_is_read_by_who_takes_it_and_no_thread_is_started() -> None:
    shelf = Shelf()
    threads = threading.active_count()

    batch = Prefetcher(shelf).take("never", _some(9))

    assert list(batch[1]) == [9]
    assert shelf.by == [threading.current_thread()]
    assert threading.active_count() == threads


def test_other_samples_under_the_same_key_are_read_anew() -> None:
    shelf = Shelf()
    prefetcher = Prefetcher(shelf)
    prefetcher.want("key", _some(1, 2))
    shelf.until_begun(1)

    assert list(prefetcher.take("key", _some(1))[1]) == [1]
    prefetcher.close()


def test_a_stale_wish_is_never_read_once_a_later_one_is_taken(aside: ThreadPoolExecutor) -> None:
    shelf = Shelf(gated=True)
    prefetcher = Prefetcher(shelf, depth=4)
    for key in range(4):
        prefetcher.want(key, _some(key))
    shelf.until_begun(1)
    taken = aside.submit(prefetcher.take, 3, _some(3))
    while 3 in prefetcher._requests:  # until the taker has claimed it
        threading.Event().wait(0.001)
    shelf.permit(2)

    assert list(taken.result(_PATIENCE_S)[1]) == [3]
    assert shelf.begun == [(0,), (3,)]
    assert shelf.at_once_max == 1
    prefetcher.close()


def test_a_taker_comes_before_what_is_wanted_later(aside: ThreadPoolExecutor) -> None:
    shelf = Shelf(gated=True)
    prefetcher = Prefetcher(shelf, depth=4)
    for key in range(4):
        prefetcher.want(key, _some(key))
    shelf.until_begun(1)
    taken = aside.submit(prefetcher.take, 1, _some(1))
    while 1 in prefetcher._requests:
        threading.Event().wait(0.001)
    shelf.permit(4)

    assert list(taken.result(_PATIENCE_S)[1]) == [1]
    shelf.until_begun(4)
    assert shelf.begun == [(0,), (1,), (2,), (3,)]
    prefetcher.close()


def test_wishes_beyond_the_depth_push_out_the_oldest() -> None:
    shelf = Shelf(gated=True)
    prefetcher = Prefetcher(shelf, depth=2)
    for key in range(10):
        prefetcher.want(key, _some(key))

    assert list(prefetcher._requests) == [8, 9]
    shelf.permit(10)
    assert list(prefetcher.take(8, _some(8))[1]) == [8]
    assert list(prefetcher.take(0, _some(0))[1]) == [0]
    prefetcher.close()


def test_what_user_code_raises_comes_out_where_it_is_taken_with_its_own_place() -> None:
    shelf = Shelf()
    prefetcher = Prefetcher(shelf)
    prefetcher.want("bad", _some(-1))
    prefetcher.want("good", _some(1))
    shelf.until_begun(2)

    with pytest.raises(LookupError, match="torn page") as caught:
        prefetcher.take("bad", _some(-1))

    assert "batch" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert list(prefetcher.take("good", _some(1))[1]) == [1]
    with pytest.raises(LookupError):
        prefetcher.take("bad", _some(-1))
    prefetcher.close()


def test_an_error_in_a_batch_that_nobody_takes_harms_nobody() -> None:
    shelf = Shelf()
    prefetcher = Prefetcher(shelf)
    prefetcher.want("bad", _some(-1))
    shelf.until_begun(1)
    prefetcher.forget()
    prefetcher.want("good", _some(1))

    assert list(prefetcher.take("good", _some(1))[1]) == [1]
    prefetcher.close()


def test_only_time_spent_waiting_for_data_is_counted(aside: ThreadPoolExecutor) -> None:
    shelf = Shelf(gated=True)
    prefetcher = Prefetcher(shelf)
    prefetcher.want("early", _some(1))
    shelf.permit()
    while not prefetcher._requests["early"].done:
        threading.Event().wait(0.001)
    prefetcher.take("early", _some(1))
    ready_s = prefetcher.waited_s

    taken = aside.submit(prefetcher.take, "late", _some(2))
    shelf.until_begun(2)
    threading.Event().wait(_SLOW_S)  # the time that the source takes
    shelf.permit()
    taken.result(_PATIENCE_S)

    assert prefetcher.waited_s - ready_s >= _SLOW_S > ready_s
    prefetcher.close()


@pytest.mark.parametrize("state", ["never started", "idle", "reading", "full"])
def test_closing_ends_the_thread_in_any_state_and_batches_can_still_be_read(state: str) -> None:
    shelf = Shelf(gated=state == "reading")
    prefetcher = Prefetcher(shelf)
    if state != "never started":
        prefetcher.want(1, _some(1))
        shelf.until_begun(1)
    if state == "idle":
        prefetcher.take(1, _some(1))
    if state == "full":
        prefetcher.want(2, _some(2))
        shelf.until_begun(2)
    thread = prefetcher._thread

    prefetcher.close()
    prefetcher.close()
    prefetcher.want(3, _some(3))
    shelf.permit(2)

    if thread is not None:
        thread.join(_PATIENCE_S)
        assert not thread.is_alive()
    assert list(prefetcher.take(3, _some(3))[1]) == [3]


def test_closing_does_not_lose_what_is_being_taken(aside: ThreadPoolExecutor) -> None:
    shelf = Shelf(gated=True)
    prefetcher = Prefetcher(shelf)
    prefetcher.want(1, _some(1))
    shelf.until_begun(1)
    taken = aside.submit(prefetcher.take, 1, _some(1))
    prefetcher.close()
    shelf.permit(2)

    assert list(taken.result(_PATIENCE_S)[1]) == [1]


def test_a_depth_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="depth"):
        Prefetcher(Shelf(), depth=0)


_CALLS = st.lists(
    st.tuples(
        st.sampled_from(["want", "want", "take", "forget"]),
        st.integers(0, 4),
        st.lists(st.integers(-1, 20), min_size=1, max_size=3),
    ),
    max_size=30,
)


@given(calls=_CALLS, depth=st.integers(1, 3))
@settings(max_examples=150)
def test_whatever_is_wanted_and_forgotten_what_is_taken_is_what_a_plain_read_gives(
    calls: list[tuple[str, int, list[int]]], depth: int
) -> None:
    shelf, plain = Shelf(), Shelf()
    prefetcher = Prefetcher(shelf, depth=depth)
    for call, key, numbers in calls:
        indices = _some(*numbers)
        if call == "want":
            prefetcher.want(key, indices)
        elif call == "forget":
            prefetcher.forget()
        elif -1 in numbers:
            with pytest.raises(LookupError):
                prefetcher.take(key, indices)
        else:
            for got, wanted in zip(prefetcher.take(key, indices), plain.batch(indices), strict=True):
                np.testing.assert_array_equal(got, wanted)
        assert len(prefetcher._requests) <= depth
    prefetcher.close()
    if prefetcher._thread is not None:
        prefetcher._thread.join(_PATIENCE_S)
        assert not prefetcher._thread.is_alive()
    assert shelf.at_once_max <= 1
