"""Frames of a payload stream: only what the other end has sealed, in its order, is ever opened."""

from __future__ import annotations

import secrets

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.errors import MessageError
from scavenger.train.transport import payload_frames
from scavenger.train.transport.payload_buffers import Buffers
from scavenger.train.transport.payload_frames import (
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    KEY_BYTES,
    PAYLOAD_BYTES_MAX,
    RECORD_BYTES,
    FrameReader,
    FrameWriter,
    PayloadFrame,
)

KEY = secrets.token_bytes(KEY_BYTES)


def written(writer: FrameWriter, header: bytes, payload: bytes | None = None) -> bytes:
    """All bytes of one frame."""
    buffer, found = memoryview(bytearray(FRAME_BYTES_MAX)), bytearray()
    writer.begin(header, None if payload is None else memoryview(payload))
    while writer.more:
        found += buffer[: writer.fill(buffer)]
    return bytes(found)


class Receiver:
    """A reader that is fed whatever bytes are there, and what memory it has asked for."""

    def __init__(self, key: bytes = KEY) -> None:
        self.asked: list[int] = []
        self.reader = FrameReader(key, self._memory)
        self.frames: list[tuple[bytes, bytes | None]] = []

    def _memory(self, size: int) -> memoryview:
        self.asked.append(size)
        return memoryview(bytearray(size))

    def read(self, data: bytes) -> None:
        view = memoryview(data)
        while len(view) >= self.reader.needed:
            part, view = view[: self.reader.needed], view[self.reader.needed :]
            frame = self.reader.feed(part)
            if isinstance(frame, PayloadFrame):
                self.frames.append((frame.header, None if frame.payload is None else bytes(frame.payload)))


@pytest.mark.parametrize(
    "size", [0, 1, RECORD_BYTES - 1, RECORD_BYTES, RECORD_BYTES + 1, 3 * RECORD_BYTES + 17]
)
def test_frames_arrive_as_they_were_sent(size: int) -> None:
    payload = secrets.token_bytes(size)
    writer, receiver = FrameWriter(KEY), Receiver()

    data = written(writer, b"first", payload) + written(writer, b"") + written(writer, b"third", b"x")
    receiver.read(data)

    assert receiver.frames == [(b"first", payload or None), (b"", None), (b"third", b"x")]
    assert payload[:64] not in data or size < 16


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_flipped_bit_anywhere_ends_the_stream_before_the_frame_counts(data: st.DataObject) -> None:
    writer, receiver = FrameWriter(KEY), Receiver()
    first = written(writer, b"header of it", secrets.token_bytes(100))
    changed = bytearray(first)
    bit = data.draw(st.integers(0, 8 * len(first) - 1))
    changed[bit // 8] ^= 1 << bit % 8

    # what follows fills up a frame whose sizes were changed
    with pytest.raises(MessageError):
        receiver.read(bytes(changed) + bytes(HEADER_BYTES_MAX + PAYLOAD_BYTES_MAX // 64))

    assert receiver.frames == []


def test_no_memory_is_taken_for_a_payload_whose_header_does_not_open() -> None:
    receiver = Receiver()
    announced = (4).to_bytes(4, "big") + PAYLOAD_BYTES_MAX.to_bytes(4, "big")

    with pytest.raises(MessageError):
        receiver.read(announced + secrets.token_bytes(4 + 16))

    assert receiver.asked == []
    assert receiver.reader.needed <= FRAME_BYTES_MAX


@pytest.mark.parametrize("sizes", [(HEADER_BYTES_MAX + 1, 0), (0, PAYLOAD_BYTES_MAX + 1)])
def test_a_frame_that_is_too_large_is_neither_read_nor_written(sizes: tuple[int, int]) -> None:
    header, payload = sizes
    with pytest.raises(MessageError, match="a frame of"):
        Receiver().read(header.to_bytes(4, "big") + payload.to_bytes(4, "big"))
    with pytest.raises(ValueError, match="too large"):
        FrameWriter(KEY).begin(bytes(header), memoryview(bytes(payload)))


def test_a_frame_that_is_repeated_left_out_or_swapped_does_not_open() -> None:
    for order in ([0, 0], [1], [1, 0], [0, 2]):
        writer, receiver = FrameWriter(KEY), Receiver()
        frames = [written(writer, b"header", b"the same") for _ in range(3)]
        stream = b"".join(frames[number] for number in order)
        with pytest.raises(MessageError):
            receiver.read(stream)


def test_records_of_a_payload_cannot_be_swapped_and_belong_to_their_header() -> None:
    payload = bytes(2 * RECORD_BYTES)  # so both records are alike
    whole = written(FrameWriter(KEY), b"header", payload)
    head = len(whole) - 2 * (RECORD_BYTES + 16)
    one, two = whole[head : head + RECORD_BYTES + 16], whole[head + RECORD_BYTES + 16 :]
    with pytest.raises(MessageError):
        Receiver().read(whole[:head] + two + one)
    other = written(FrameWriter(KEY), b"HEADER", payload)
    with pytest.raises(MessageError):
        Receiver().read(other[:head] + one + two)


def test_frames_of_another_job_or_direction_do_not_open() -> None:
    receiver = Receiver(secrets.token_bytes(KEY_BYTES))
    with pytest.raises(MessageError):
        receiver.read(written(FrameWriter(KEY), b"header", b"payload"))
    assert receiver.frames == []


def test_a_key_is_not_used_beyond_its_last_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_frames, "_RECORDS_MAX", 3)
    writer, receiver = FrameWriter(KEY), Receiver()
    receiver.read(written(writer, b"one", b"x") + written(writer, b"two"))
    with pytest.raises(MessageError, match="used up"):
        written(writer, b"three")


def test_no_two_records_have_the_same_nonce() -> None:
    """Equal plain texts under equal associated data give other bytes each time."""
    writer = FrameWriter(KEY)
    frames = {written(writer, b"header", bytes(1000)) for _ in range(100)}
    assert len(frames) == 100


def test_a_buffer_is_lent_again_when_nobody_has_a_view_of_it() -> None:
    buffers = Buffers()
    first = buffers.take(100_000)
    first[:] = bytes(100_000)
    array = np.frombuffer(first, np.uint8)[50:]
    del first
    second = buffers.take(100_000)
    second[:] = b"\1" * 100_000
    assert not array.any()
    del array
    third = buffers.take(100_000)
    third[:] = b"\2" * 100_000
    assert bytes(second) == b"\1" * 100_000
    del second, third
    assert sum(map(len, buffers._all)) <= 3 * (1 << 17)
