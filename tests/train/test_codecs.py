"""Whatever bytes arrive by whatever protocol, they are a message or an error of the project's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.errors import MessageError
from scavenger.train.checkpoints import remote_folder as leader_files
from scavenger.train.custom_loop import messages as loop_messages
from scavenger.train.engines.vm import messages as vm_messages
from scavenger.train.transport import messages

DECODERS: dict[str, Callable[[bytes], Any]] = {
    "processes": messages.decode,
    "agents": vm_messages.decode,
    "own loops": loop_messages.decode,
    "questions for files": leader_files.questions.decode,
    "answers with files": leader_files.answers.decode,
}
SAMPLES: dict[str, list[bytes]] = {
    "processes": [messages.encode(messages.Beat()), messages.encode(messages.Quit())],
    "agents": [
        vm_messages.encode(vm_messages.Packet(1, 0, vm_messages.Report(1, b"log"))),
        vm_messages.encode(vm_messages.Refused("ü")),
    ],
    "own loops": [
        loop_messages.encode(loop_messages.GrantMessage(1, (2, 3), 4, 5)),
        loop_messages.encode(messages.Beat()),
        loop_messages.encode(loop_messages.LeaveMessage("ü")),
    ],
    "questions for files": [leader_files.questions.encode(leader_files.Folders(1, "/x"))],
    "answers with files": [leader_files.answers.encode(leader_files.OperationFailed(1, "ü"))],
}

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
).map(msgspec.msgpack.encode)


@st.composite
def damaged(draw: st.DrawFn, sample: bytes) -> bytes:
    """A message with a few bytes changed, cut off or with others behind it."""
    data = bytearray(sample)
    for _ in range(draw(st.integers(1, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))]) + draw(st.binary(max_size=4))


def frames(protocol: str) -> st.SearchStrategy[bytes]:
    broken = st.one_of([damaged(sample) for sample in SAMPLES[protocol]])
    deep = st.sampled_from([b"\x91" * 70_000, b"\x81\xa1x" * 70_000])
    return broken | st.binary(max_size=100) | plain | deep


@pytest.mark.parametrize("protocol", DECODERS)
def test_samples_are_messages(protocol: str) -> None:
    assert all(DECODERS[protocol](sample) is not None for sample in SAMPLES[protocol])


@pytest.mark.slow
@pytest.mark.parametrize("protocol", DECODERS)
def test_bytes_are_a_message_or_a_message_error(protocol: str) -> None:
    refused = 0

    @given(frames(protocol))
    @settings(max_examples=max(300, settings().max_examples))
    def decode(data: bytes) -> None:
        nonlocal refused
        try:
            DECODERS[protocol](data)
        except MessageError:
            refused += 1

    decode()
    assert refused > 100, "a fuzz that is never refused proves nothing"
