"""A slow worker on another host: its orders are repeated, but nothing is computed or sent twice."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.sequencing import SequencedJob
from scavenger.elastic.barrier import Barrier
from scavenger.elastic.membership import worker_slot
from scavenger.elastic.migration import BucketMap
from scavenger.elastic.steps import Announce, Applied, Contribution, Instruction, Proceed
from scavenger.elastic.view import Member, Piece, Position, Share, View, WorkerView
from scavenger.train.aggregation import step_timer
from scavenger.train.aggregation.aggregator import Aggregator
from scavenger.train.aggregation.worker_orders import Terms, WorkerOrders
from scavenger.train.transport import messages as m
from scavenger.train.transport.block_file import create_block
from scavenger.train.transport.buckets import buckets
from scavenger.train.transport.data_router import DataRouter
from scavenger.train.transport.payload_frames import FrameWriter
from scavenger.train.transport.sockets import Dealer, Router, new_keys
from scavenger.train.worker import worker
from scavenger.train.worker.connections import AggregatorConnection
from scavenger.train.worker.orders import Orders
from scavenger.train.worker.worker import Worker

pytestmark = pytest.mark.slow

JOBS = Path(__file__).with_name("jobs")
STEPS = 4
REPEATS = 3


class Host:
    """Worker and aggregator in threads, with a block each, so that all payloads cross a socket; and what crosses it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes: Counter[str] = Counter()
        self.orders = self.gradients = 0
        self.ordered = threading.Condition()
        self.reports: list[m.StepReport] = []
        send, pass_on, seal = AggregatorConnection.send, DataRouter.send, FrameWriter.begin

        def from_worker(connection: AggregatorConnection, message: Any, payload: Any = None) -> None:
            if isinstance(message, m.Chunk | m.GradientBucket):
                kind = "initial" if isinstance(message, m.Chunk) else "gradient"
                self.bytes[kind] += memoryview(payload).nbytes
            send(connection, message, payload)

        def sealed(writer: FrameWriter, header: bytes, payload: memoryview | None = None) -> None:
            self.bytes["sealed"] += 0 if payload is None else payload.nbytes
            seal(writer, header, payload)

        def from_aggregator(router: DataRouter, peer: str, message: Any, payload: Any = None) -> None:
            if isinstance(message, m.Chunk):
                self.bytes["weights"] += memoryview(payload).nbytes
            pass_on(router, peer, message, payload)
            if isinstance(message, m.Order):
                with self.ordered:
                    self.orders += 1
                    self.ordered.notify_all()

        monkeypatch.setattr(AggregatorConnection, "send", from_worker)
        monkeypatch.setattr(DataRouter, "send", from_aggregator)
        monkeypatch.setattr(FrameWriter, "begin", sealed)

    def slow(self, made: Worker) -> None:
        """Delay each gradient until the order for it has been repeated a few times."""
        compute = made._program.gradient

        def gradient(*arguments: Any, **options: Any) -> Any:
            self.gradients += 1
            with self.ordered:
                last = self.orders + REPEATS
                assert self.ordered.wait_for(lambda: self.orders >= last or not self.orders, 60.0)
            return compute(*arguments, **options)

        made._program.gradient = gradient  # type: ignore[method-assign]

    @contextmanager
    def run(self) -> Iterator[Worker]:
        """Train some steps."""
        context: Any = zmq.Context()
        hub_keys, worker_keys, aggregator_keys = new_keys(), new_keys(), new_keys()
        hub = Router(context, hub_keys)

        def boot(role: str, name: str, keys: tuple[bytes, bytes]) -> m.ProcessConfiguration:
            public, secret = keys[0].decode(), keys[1].decode()
            return m.ProcessConfiguration(
                role,
                name,
                hub.address,
                hub_keys[0].decode(),
                public,
                secret,
                memory_fd=-1,
                train="small:momentum",
                job_dir=str(JOBS),
                data_public_key=public,
                data_secret_key=secret,
            )

        def control(name: str, keys: tuple[bytes, bytes]) -> Dealer:
            return Dealer(context, name, hub.address, hub_keys[0], keys)

        own: Any = zmq.Context()  # an aggregator's process authenticates all that connect to its context
        aggregator = Aggregator(
            own,
            boot("aggregator", "aggregator-0", aggregator_keys),
            control("aggregator-0", aggregator_keys),
        )
        made = Worker(context, boot("worker", "w0", worker_keys), control("w0", worker_keys))
        self.slow(made)
        threads = [threading.Thread(target=one.run, daemon=True) for one in (aggregator, made)]
        for thread in threads:
            thread.start()
        manifest: m.Manifest | None = None
        while len(self.reports) < STEPS:
            hub.wait(60.0)
            for _, message, _ in hub.receive():
                match message:
                    case m.AggregatorReady():
                        hub.send("aggregator-0", m.Admit({"w0": worker_keys[0].decode()}))
                    case m.Hello():
                        manifest = message.manifest
                        hub.send("w0", m.Prepare(manifest, (aggregator._address,), False))
                    case m.Ready():
                        assert manifest is not None
                        hub.send(
                            "aggregator-0",
                            m.Initialise(manifest, (aggregator._address,), None, None, False, "w0", 0, 1, ()),
                        )
                    case m.Initialised():
                        members = (Member("w0", 0),)
                        hub.send(
                            "aggregator-0",
                            m.Announcement(Announce(1, members, 4, token=1, reason="the first")),
                        )
                    case m.StepReport():
                        self.reports.append(message)
                    case _:
                        pass
        yield made
        self.orders = 0  # lets a gradient that is waiting go
        with self.ordered:
            self.ordered.notify_all()
        for name in ("w0", "aggregator-0"):
            hub.send(name, m.Quit())
        for thread in threads:
            thread.join(60.0)
        assert not any(thread.is_alive() for thread in threads)
        context.destroy(linger=0)
        own.destroy(linger=0)


def test_a_slow_gradient_and_its_weights_cross_the_network_once_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_timer, "_REPEAT_S", 0.05)
    monkeypatch.setattr(worker, "_ASK_AGAIN_S", 0.05)
    host = Host(monkeypatch)
    with host.run() as made:
        sent = Counter(host.bytes)
        assert made._memory is not None
        layout = made._memory.layout

    part = layout.buckets[-1][1]
    assert sent["initial"] == part
    assert [report.step for report in host.reports] == list(range(1, STEPS + 1))
    # the step after the last that was reported may be under way
    gradient = sum(bucket.bytes for bucket in buckets(layout))
    assert part <= gradient + 64
    assert sent["gradient"] in [(STEPS + more) * gradient for more in (0, 1)]
    assert sent["weights"] in [(STEPS + more) * part for more in (0, 1)]
    assert host.gradients <= 2 * (STEPS + 1 + 1), (
        "of the batch and of its first half, whose noise it tells; so once to warm up"
    )
    # before there is a stream, payloads go by ZeroMQ
    assert sent["sealed"] >= (STEPS - 1) * (2 * part + layout.metric_bytes)


PIECES = [Piece(number, Share(number, number + 1), "w0", number) for number in range(3)]
ordered = st.builds(
    m.Order,
    st.sampled_from(["train", "evaluate", "idle"]),
    st.integers(0, 3),
    st.integers(1, 3),
    st.lists(st.sampled_from(PIECES), max_size=3, unique=True).map(tuple),
    st.just(()),
    st.booleans(),
)
summarise = st.builds(m.Summarise, st.integers(1, 3), st.integers(0, 3), st.just(()), st.just(()))


@given(st.lists(st.one_of(ordered, summarise), min_size=1, max_size=60))
def test_orders_that_wait_are_few_and_of_the_newest_step_with_all_pieces_that_it_named(
    said: list[m.Order | m.Summarise],
) -> None:
    orders = Orders("w0", 8)
    for message in said:
        orders.add(message)
        assert len(orders) <= 4

    newest = max((message.view, message.step) for message in said)
    current = [message for message in said if (message.view, message.step) == newest]
    taken = []
    while (message := orders.next()) is not None:
        taken.append(message)
    assert {(one.view, one.step) for one in taken} == {newest}
    for action in {one.action for one in current if isinstance(one, m.Order)}:
        (found,) = [one for one in taken if isinstance(one, m.Order) and one.action == action]
        wanted = {
            p.number
            for one in current
            if isinstance(one, m.Order) and one.action == action
            for p in one.pieces
        }
        assert {piece.number for piece in found.pieces} == wanted
        assert len(found.pieces) == len(wanted)
    assert sum(isinstance(one, m.Summarise) for one in taken) == any(
        isinstance(one, m.Summarise) for one in current
    )


views = st.builds(
    lambda number, first_step, workers, spare, names, consumed: View(
        number,
        first_step,
        workers + spare,
        tuple(Member(f"w{name}", worker_slot(f"w{name}")) for name in names[:workers]),
        Position(2, consumed),
    ),
    st.integers(1, 1 << 20),
    st.integers(1, 1 << 20),
    st.integers(1, 5),
    st.integers(0, 9),
    st.permutations(range(7)),
    st.integers(1, 99),
)


@given(views, st.integers(0, 50), st.booleans(), st.data())
def test_a_worker_takes_the_short_order_for_the_pieces_that_it_stands_for(
    view: View, later: int, lost: bool, data: st.DataObject
) -> None:
    """Every share that a step is cut into, and what others compute of one that was lost."""
    barrier = Barrier(100, step=view.first_step - 1, position=view.position, number=view.number - 1)
    told = [
        one
        for one in barrier.handle(Announce(view.number, view.members, view.global_batch_size))
        if isinstance(one, Proceed)
    ]
    for _ in range(later):
        told = [one for one in in_step(barrier, told) if isinstance(one, Proceed) and one.action == "train"]
        if not told:
            return  # the end of an epoch
    if lost and view.workers > 1:
        gone = data.draw(st.sampled_from(view.members))
        rest = tuple(member for member in view.members if member != gone)
        announced = Announce(view.number + 1, rest, view.global_batch_size, lost=(gone.worker,))
        told += [one for one in barrier.handle(announced) if isinstance(one, Proceed)]

    received = {member.worker: Orders(member.worker, 100) for member in view.members}
    sent: list[m.Message] = []

    def send(worker: str, message: Any) -> None:
        sent.append(message)
        received[worker].add(m.decode(m.encode(message)))  # type: ignore[arg-type]

    said, map_of_buckets = WorkerOrders(send, 100), BucketMap(0, 0, (0,))
    for one in told:
        said.order(one, Terms((), False, 1.0, map_of_buckets))

    for member in view.members:
        expected = {piece for one in told if one.worker == member.worker for piece in one.pieces}
        got = received[member.worker].next()
        assert isinstance(got, m.Order) or not expected
        assert {*(got.pieces if isinstance(got, m.Order) else ())} == expected
    assert sum(isinstance(message, m.Go) for message in sent) == sum(
        not one.pieces[0].slot % 64 for one in told
    )


def in_step(barrier: Barrier, told: Sequence[Proceed]) -> list[Instruction]:
    """What follows once all that is ordered is contributed and applied."""
    assert barrier.view is not None
    for one in told:
        for piece in one.pieces:
            barrier.handle(Contribution(one.worker, barrier.view.number, one.step + 1, piece.number))
    return barrier.handle(Applied(told[0].step + 1))


@pytest.mark.parametrize(
    "terms",
    [
        Terms((3,), False, 1.0, BucketMap(0, 0, (0,))),
        Terms((), True, 1.0, BucketMap(0, 0, (0,))),
        Terms((), False, 2.0, BucketMap(0, 0, (0,))),
    ],
    ids=["left out", "cautious", "scaled"],
)
def test_what_is_out_of_the_ordinary_is_in_the_order(terms: Terms) -> None:
    said: list[m.Message] = []
    (instruction,) = [
        one for one in Barrier(100).handle(Announce(1, (Member("w0", 0),), 4)) if isinstance(one, Proceed)
    ]
    WorkerOrders(lambda _, message: said.append(message), 100).order(instruction, terms)

    order = said[-1]
    assert isinstance(order, m.Order)
    assert (order.quarantined, order.cautious, order.loss_scale) == (
        terms.quarantined,
        terms.cautious,
        terms.loss_scale,
    )


def test_one_that_is_no_member_yet_is_told_the_share_of_one_that_was_lost() -> None:
    said: list[m.Message] = []
    (instruction,) = [
        one for one in Barrier(100).handle(Announce(1, (Member("w0", 0),), 4)) if isinstance(one, Proceed)
    ]
    orders = WorkerOrders(lambda _, message: said.append(message), 100)
    orders.order(
        msgspec.structs.replace(instruction, worker="w1"), Terms((), False, 1.0, BucketMap(0, 0, (0,)))
    )

    order = said[-1]
    assert isinstance(order, m.Order)
    assert order.pieces == instruction.pieces


def test_a_short_order_of_an_unknown_view_or_to_no_member_has_no_pieces() -> None:
    orders = Orders("w0", 8)
    orders.add(m.TakeView(WorkerView(2, 5, 4, Position(), 1, None)))
    for view in (2, 3):
        orders.add(m.Go(4, view, 1, 0))
        order = orders.next()
        assert isinstance(order, m.Order)
        assert order.pieces == ()
        assert (orders.view(view) is None) == (view == 3), "and then the worker asks for the view"


def test_an_order_is_superseded_by_one_of_a_later_step_and_by_no_repetition() -> None:
    orders = Orders("w0", 8)
    first = m.Order("train", 4, 2, (), (), False)
    orders.add(first)
    orders.add(first)
    assert not orders.superseded(first)
    orders.add(m.Order("train", 3, 2, (), (), False))
    assert not orders.superseded(first)
    orders.add(m.Order("train", 2, 3, (), (), False))
    assert orders.superseded(first), "a newer view may have gone back"


def test_the_newest_two_views_are_kept() -> None:
    orders = Orders("w0", 8)
    for number in (1, 2, 3):
        orders.add(m.TakeView(WorkerView(number, 1, 4, Position(), 1, 0)))
    assert [orders.view(number) is not None for number in (1, 2, 3)] == [False, True, True]


@pytest.fixture
def job() -> Iterator[tuple[SequencedJob, list[tuple[str, m.Message]]]]:
    """Many workers in a view, and the messages that were sent to them."""
    fd = create_block()
    made = SequencedJob(fd, 300, 3)
    said: list[tuple[str, m.Message]] = []
    send = made._sequencer._workers.send

    def note(worker: str, message: m.Message) -> None:
        said.append((worker, message))
        send(worker, message)

    made._sequencer._workers.send = note
    made.begin()
    yield made, said
    os.close(fd)


Job = tuple[SequencedJob, list[tuple[str, m.Message]]]


def test_a_view_is_sent_to_each_worker_once_and_orders_name_it(job: Job) -> None:
    made, said = job
    views = [(worker, message) for worker, message in said if isinstance(message, m.TakeView)]
    assert [worker for worker, _ in views] == [f"w{index}" for index in range(300)]
    assert [(message.view.workers, message.view.rank) for _, message in views] == [
        (300, rank) for rank in range(300)
    ]
    assert made.sent_bytes < 300 * 60, "bytes"
    said.clear()
    made.sent_bytes = 0

    made.step()
    made.step()

    assert [type(message) for _, message in said] == [m.Go] * 600
    assert made.sent_bytes < 2 * 300 * 20, "bytes"


def test_a_worker_that_has_missed_the_view_is_sent_it_with_its_order_and_nobody_else_is(job: Job) -> None:
    made, said = job
    said.clear()

    made._sequencer.from_worker("w7", m.AskView(1))

    made._sequencer.repeat_to("nobody")
    assert [(worker, type(message)) for worker, message in said] == [
        ("w7", kind) for kind in (m.TakeView, m.TakeMap, m.Go)
    ]
    said.clear()
    made._sequencer.repeat()
    assert [type(message) for _, message in said] == [m.Go] * 300
