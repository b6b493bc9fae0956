"""Processes survive any input: invalid messages are dropped and counted, inconsistent ones are rejected."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest
import zmq
from hearing import heard, refused
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stubs import manifest, stub_supervisor

from scavenger.elastic.initialization import Endpoint
from scavenger.elastic.order import Blocks
from scavenger.elastic.quarantine import Cause
from scavenger.elastic.steps import Announce, Death
from scavenger.elastic.view import Member, Position, View
from scavenger.errors import MessageError
from scavenger.train.aggregation.aggregator import Aggregator
from scavenger.train.coordinator.coordinator import Coordinator
from scavenger.train.names import HEARTBEAT_SUFFIX, SUPERVISOR, aggregator_name
from scavenger.train.supervisor.events import Warned
from scavenger.train.transport import messages as m
from scavenger.train.transport.routes import new_route
from scavenger.train.transport.sockets import Dealer, HubConnection, Malformed, Router, new_keys

pytestmark = pytest.mark.slow

WITHIN_MS = 5000
PEERS = (
    "w0",
    "w1",
    f"w0{HEARTBEAT_SUFFIX}",
    "w-1",
    "wx",
    "",
    "aggregator-0",
    "aggregator-1",
    "aggregator-x",
    "coordinator-9",
)


# ---- anything at all ---------------------------------------------------------------------------------------


def _values(kind: Any) -> st.SearchStrategy[Any]:
    """Generate the encoded values that a field takes."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is typing.Annotated:
        return _values(inner[0])
    if origin in (types.UnionType, typing.Union):
        return st.one_of([_values(one) for one in inner])
    if origin is tuple:
        if inner[-1] is Ellipsis:
            return st.lists(_values(inner[0]), max_size=2)
        return st.tuples(*map(_values, inner)).map(list)
    if origin is dict:
        return st.dictionaries(_values(inner[0]), _values(inner[1]), max_size=2)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _fields(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from([*(one.value for one in kind), "no such value"])
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return st.fixed_dictionaries({name: _values(hint) for name, hint in hints.items()})
    plain: dict[Any, st.SearchStrategy[Any]] = {
        int: st.sampled_from([-(1 << 63), -1, 0, 1, 2, 64, 1 << 40, (1 << 63) - 1]),
        float: st.floats(),
        bool: st.booleans(),
        bytes: st.binary(max_size=20),
        str: st.sampled_from(["", "w0", "w1", "crash", "aggregator-0", "\0", "ü" * 300]),
        type(None): st.none(),
    }
    return plain[kind]


def _fields(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    shape = {field.name: _values(hints[field.name]) for field in msgspec.structs.fields(kind)}
    config = kind.__struct_config__
    if config.array_like:
        tag = [] if config.tag is None else [config.tag]
        return st.tuples(*shape.values()).map(lambda values: [*tag, *values])
    return st.fixed_dictionaries(shape)


KINDS = get_args(m.Message)
well_formed = st.one_of([_fields(kind) for kind in KINDS]).map(msgspec.msgpack.encode)
cut = st.tuples(well_formed, st.integers(1, 60)).map(lambda both: both[0][: both[1]])
anything = st.one_of(st.binary(max_size=200), well_formed, cut, st.just(b"\x91" * 70_000))
frames = st.lists(anything, min_size=1, max_size=4)
names = st.one_of(st.sampled_from(PEERS), st.text(min_size=1, max_size=20))


def is_message(data: bytes) -> bool:
    try:
        m.decode(data)
    except MessageError:
        return False
    return True


def test_the_generator_makes_messages_of_every_kind() -> None:
    made: set[type] = set()

    @given(well_formed)
    @settings(max_examples=700, database=None, derandomize=True)
    def look(data: bytes) -> None:
        if is_message(data):
            made.add(type(m.decode(data)))

    look()
    assert len(made) > 0.8 * len(KINDS), {kind.__name__ for kind in KINDS} - {kind.__name__ for kind in made}


@given(anything)
def test_bytes_are_a_message_or_an_error_of_one_kind(data: bytes) -> None:
    is_message(data)


def test_a_view_or_death_that_is_none_is_no_message() -> None:
    view = View(1, 1, 4, (Member("w0", 0),), Position())
    assert m.decode(m.encode(m.ViewInstalled(view))) == m.ViewInstalled(view)
    fields = dataclasses.asdict(view)
    for wrong in ({"members": []}, {"global_batch_size": 0}):
        said = msgspec.msgpack.encode(["ViewInstalled", {**fields, **wrong}])
        assert not is_message(said)
    for cause in Cause:
        assert is_message(said := m.encode(m.ProcessEnded("w0", Death("w0", "", cause))))
        assert not is_message(said.replace(cause.value.encode(), b"x" * len(cause.value)))


def test_blocks_arrive_as_they_were_sent_and_blocks_of_nothing_do_not() -> None:
    blocks = Blocks(((3, 10), (1, 7)), mixed=2, in_sequence=True)
    sent = m.encode(m.Hello(msgspec.structs.replace(manifest(), blocks=blocks, notes=("a note",))))
    hello = m.decode(sent)

    assert isinstance(hello, m.Hello)
    assert hello.manifest.blocks == blocks
    assert hello.manifest.notes == ("a note",)
    fields = msgspec.structs.asdict(manifest())
    for wrong in ({"runs": [[0, 1]]}, {"runs": [[1, -1]]}, {"mixed": 0}):
        body = {"runs": [[1, 10]], "mixed": 1, "in_sequence": False, **wrong}
        assert not is_message(msgspec.msgpack.encode(["Hello", {**fields, "blocks": body}]))


def test_the_first_is_told_of_and_then_ever_fewer() -> None:
    told: list[str] = []
    malformed = Malformed(told.append)
    for _ in range(1000):
        malformed("w3")
    assert malformed.count == 1000
    assert len(told) == 10
    assert "'w3'" in told[0]


# ---- sockets -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def context() -> Iterator[Any]:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture(scope="module")
def ends(context: Any) -> Iterator[tuple[Router, Dealer]]:
    keys = new_keys()
    router = Router(context, keys)
    dealer = Dealer(context, "w0", router.address, keys[0], new_keys())
    dealer.send(m.Join())
    assert heard(router) == [("w0", m.Join(), None)]
    yield router, dealer
    dealer.close()
    router.close()


@given(parts=frames.filter(lambda parts: parts != [b""]))  # by which a process says that it is there
@settings(max_examples=60)
def test_a_router_hands_on_messages_and_counts_the_rest(
    ends: tuple[Router, Dealer], parts: list[bytes]
) -> None:
    router, dealer = ends
    before = router.malformed.count
    dealer.socket.send_multipart(parts)
    assert router.socket.poll(WITHIN_MS)
    assert len(list(router.receive())) == is_message(parts[0])
    assert router.malformed.count - before == 1 - is_message(parts[0])


@given(parts=frames)
@settings(max_examples=60)
def test_a_dealer_hands_on_messages_and_counts_the_rest(
    ends: tuple[Router, Dealer], parts: list[bytes]
) -> None:
    router, dealer = ends
    dealer.send(m.Join())
    assert router.socket.poll(WITHIN_MS)
    list(router.receive())
    before = dealer.malformed.count
    router.pass_on("w0", *parts)
    assert dealer.socket.poll(WITHIN_MS)
    assert len(list(dealer.receive())) == is_message(parts[0])
    assert dealer.malformed.count - before == 1 - is_message(parts[0])


@pytest.mark.parametrize(
    "route",
    [new_route("w0").replace(b"w", b"\xff", 1), new_route("w0")[2:], b"w0", b"w\xff"],
    ids=["no text", "no name", "no random part", "no text, no random part"],
)
def test_a_connection_whose_route_has_no_name_is_not_heard(context: Any, route: bytes) -> None:
    keys = new_keys()
    router = Router(context, keys)
    dealer = Dealer(context, "w0", router.address, keys[0], new_keys())
    dealer.socket.disconnect(router.address)
    dealer.socket.setsockopt(zmq.IDENTITY, route)
    dealer.socket.connect(router.address)
    dealer.send(m.Join())
    assert refused(router, 2) == []
    dealer.close()
    router.close()


# ---- the hub -----------------------------------------------------------------------------------------------


@given(said=st.lists(st.tuples(names, frames), max_size=12))
@settings(max_examples=40)
def test_the_hub_goes_on_whatever_processes_say(
    said: list[tuple[str, list[bytes]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with stub_supervisor(tmp_path_factory.mktemp("supervisor"), workers=2, aggregators=2) as (supervisor, _):
        # that the code has failed ends a job; so that is left out
        heard = [(peer, parts) for peer, parts in said if not any(b"Failed" in part for part in parts)]
        supervisor._processes.hub.take = lambda: iter(heard)  # type: ignore[method-assign]
        events = supervisor.poll(0.0)
        wrong = [
            parts
            for peer, parts in heard
            if not peer.startswith("coordinator") and not (len(parts) == 1 and is_message(parts[0]))
        ]
        assert supervisor._processes.hub.malformed.count >= len(wrong)
        assert any(isinstance(event, Warned) for event in events) == bool(
            supervisor._processes.hub.malformed.count
        )


def test_a_model_that_is_none_is_refused_and_the_next_is_heard(tmp_path: Path) -> None:
    with stub_supervisor(tmp_path, workers=1) as (supervisor, _):
        supervisor._incoming.manifest = None
        spec = m.TensorSpec("x", (1,), "no-dtype", "trainable")
        hello = m.Hello(msgspec.structs.replace(manifest(), tensors=(spec,)))
        supervisor._incoming.from_process("w0", hello)
        assert supervisor.manifest is None
        assert supervisor._processes.hub.malformed.count == 1
        hello = m.Hello(manifest())
        supervisor._incoming.from_process("w0", hello)
        assert supervisor.manifest == manifest()


@pytest.mark.parametrize("peer", ["w0", "aggregator-1", "nobody"])
def test_steps_and_epochs_are_believed_of_the_one_that_sequences_alone(tmp_path: Path, peer: str) -> None:
    epoch = m.EpochReport(0, 10, {"val_loss": 0.0}, 0.1)
    with stub_supervisor(tmp_path, workers=1, aggregators=2) as (supervisor, _):
        supervisor._incoming.from_process(peer, epoch)
        assert epoch not in supervisor.poll(0.0)
        supervisor._incoming.from_process("aggregator-0", epoch)
        assert epoch in supervisor.poll(0.0)


# ---- the coordinator ---------------------------------------------------------------------------------------


class _StubHub(HubConnection):
    """A connection to the hub without a socket."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, m.Message]] = []

    def send_to(self, target: str, message: m.Message) -> None:
        self.sent.append((target, message))


def bootstrap(role: str, name: str, **fields: Any) -> m.ProcessConfiguration:
    return m.ProcessConfiguration(role, name, "tcp://127.0.0.1:9", "", "", "", memory_fd=-1, **fields)


BRIEF = m.Brief(
    1, ("w0", "w1"), ("aggregator-0", "aggregator-1"), 60.0, 60.0, None, None, None, 0, 0, (), (), ()
)


@given(said=st.lists(st.tuples(names.filter(lambda name: name != SUPERVISOR), well_formed), max_size=25))
@example(said=[("aggregator-0", m.encode(m.Initialised(0, 1, 0, 0)))])
@settings(max_examples=60)
def test_the_coordinator_survives_any_messages(said: list[tuple[str, bytes]]) -> None:
    hub = _StubHub()
    coordinator = Coordinator(bootstrap("coordinator", "coordinator-1", token=1), hub)
    coordinator._take(SUPERVISOR, BRIEF)
    for peer, data in said:
        if is_message(data):
            coordinator._take(peer, m.decode(data))
            coordinator._publish()
    # and still handles valid messages; what it was told may have it ask for one return to a checkpoint more
    at = Endpoint("tcp://127.0.0.1:9", "key", "here")
    for _ in range(2):
        coordinator._take(SUPERVISOR, m.Rewind(None))
        for index in range(len(BRIEF.aggregators)):
            coordinator._take(aggregator_name(index), m.AggregatorReady(index, at, False, False))
    assert coordinator._initialization.complete


def test_messages_of_a_process_that_claims_to_be_another_aggregator_are_ignored() -> None:
    coordinator = Coordinator(bootstrap("coordinator", "coordinator-1", token=1), _StubHub())
    coordinator._take(SUPERVISOR, BRIEF)
    at = Endpoint("tcp://127.0.0.1:9", "key", "here")
    coordinator._take("aggregator-1", m.AggregatorReady(1, at, False, False))
    for peer, index in (("aggregator-1", 0), ("w0", 0), ("aggregator-0", 2), ("aggregator-2", 2), ("w0", -1)):
        coordinator._take(peer, m.AggregatorReady(index, at, False, False))
    assert not coordinator._initialization.complete
    coordinator._take("aggregator-0", m.AggregatorReady(0, at, False, False))
    assert coordinator._initialization.complete


# ---- an aggregator -----------------------------------------------------------------------------------------


class _Hub(Dealer):
    """A connection to the supervisor that only records what is sent."""

    def __init__(self, context: Any) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.malformed = Malformed()
        self.said: list[m.Message] = []

    def send(self, message: m.Message, payload: Any = None) -> None:
        self.said.append(message)


@pytest.fixture(scope="module")
def aggregator(context: Any) -> Iterator[Aggregator]:
    """Make a running aggregator: the first of two, with a view in which `w0` trains."""
    public, secret = new_keys()
    hub = Router(context, new_keys())
    boot = msgspec.structs.replace(
        bootstrap("aggregator", "aggregator-0"),
        coordinator=hub.address,
        server_key=new_keys()[0].decode(),
        public_key=public.decode(),
        secret_key=secret.decode(),
        data_public_key=public.decode(),
        data_secret_key=secret.decode(),
    )
    control = _Hub(context)
    made = Aggregator(context, boot, control)
    addresses = (made._address, Endpoint("tcp://127.0.0.1:9", public.decode(), "there"))
    made._from_control(m.Initialise(manifest(), addresses, None, None, False, "", 0, 1, ()))
    made._from_peer(aggregator_name(1), m.Initialised(1, 0, 0, 0), None)
    members = (Member("w0", 0),)
    made._from_control(m.Announcement(Announce(1, members, 4, token=1, reason="the first")))
    assert any(isinstance(said, m.ViewInstalled) for said in control.said)
    yield made
    made.close()
    control.close()
    hub.close()


@given(said=st.lists(st.tuples(names.filter(lambda name: name != SUPERVISOR), anything), max_size=25))
@settings(max_examples=60)
def test_an_aggregator_goes_on_and_applies_nothing_whatever_peers_say(
    aggregator: Aggregator, said: list[tuple[str, bytes]]
) -> None:
    for peer, data in said:
        if is_message(data):
            aggregator._from_peer(peer, m.decode(data), data)
    sequencer = aggregator._sequencer
    assert sequencer is not None
    sequencer.tick()
    assert sequencer.step == 0
    assert sequencer.beat.missing == ("w0",)


def test_what_another_aggregator_would_say_is_believed_of_it_alone(aggregator: Aggregator) -> None:
    sequencer = aggregator._sequencer
    assert sequencer is not None
    pieces = sequencer._barrier._pieces
    pieces.share_out(pieces.aggregators)  # what the test before may have said of the list of pieces is void
    number = pieces.number
    for peer in ("w0", "aggregator-0", "aggregator-2"):
        aggregator._from_peer(peer, m.SumsFormed(1, 1, 1, number), None)
        assert not pieces._formed
    aggregator._from_peer("aggregator-1", m.SumsFormed(1, 1, 1, number), None)
    assert pieces._formed == 1 << 1  # a bit for each aggregator
