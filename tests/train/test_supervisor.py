"""A supervisor without any process: slots of workers, and incomplete files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stubs import StubEngine, manifest, stub_supervisor

from scavenger.elastic.membership import worker_slot
from scavenger.errors import WorkersLostError
from scavenger.train.names import partial_model
from scavenger.train.supervisor.processes import Processes
from scavenger.train.supervisor.supervisor import Supervisor
from scavenger.train.transport import layout
from scavenger.train.transport import messages as m
from scavenger.train.transport.layout import Layout

SLOTS = 3


@pytest.fixture(autouse=True)
def _few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_WORKERS_MAX", SLOTS)


def slot_index(worker: str) -> int:
    return Layout.of(manifest()).place_of(worker_slot(worker))


def roster(
    supervisor: Supervisor, *forgotten: str, states: tuple[str, ...] = (), settled: bool = False
) -> None:
    """Receive a roster in which views without these workers have taken effect."""
    known = dict.fromkeys((*supervisor.alive, *states), "training")
    supervisor._incoming.take_roster(m.Roster(0, known, settled, 1, forgotten))


def test_a_job_may_have_any_number_of_workers_one_after_the_other(tmp_path: Path) -> None:
    with stub_supervisor(tmp_path, workers=1) as (supervisor, engine):
        for _ in range(5 * SLOTS):
            (name,) = supervisor.alive
            (other,) = supervisor.launch(1)
            engine.die(name)
            supervisor.poll(0.0)
            roster(supervisor, name)
            assert supervisor.alive == (other,)
            assert slot_index(other) != slot_index(name)
        assert int(other[1:]) >= 5 * SLOTS, "names, and so slot numbers, are never used twice"


def test_one_that_lives_long_keeps_its_slot_while_others_come_and_go(tmp_path: Path) -> None:
    with stub_supervisor(tmp_path, workers=2) as (supervisor, engine):
        for _ in range(5 * SLOTS):
            name = supervisor.alive[-1]
            engine.die(name)
            supervisor.poll(0.0)
            roster(supervisor, name)
            (other,) = supervisor.launch(1)
            assert slot_index(other) != slot_index("w0")
        assert supervisor.alive == ("w0", other)


@given(data=st.data())
@settings(max_examples=30)
def test_nobody_gets_a_place_where_another_could_still_write_or_be_read(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with stub_supervisor(tmp_path_factory.mktemp("supervisor"), workers=1) as (supervisor, engine):
        held = {"w0"}  # by one whose process is there, or whose gradients a step may count
        for _ in range(data.draw(st.integers(1, 25))):
            match data.draw(st.sampled_from(["launch", "expel", "die", "forget"])):
                case "launch" if len(held) == SLOTS:
                    with pytest.raises(WorkersLostError, match=f"room for the gradients of {SLOTS} workers"):
                        supervisor.launch(1)
                case "launch":
                    (name,) = supervisor.launch(1)
                    assert slot_index(name) not in {slot_index(other) for other in held}
                    held.add(name)
                case "expel" if supervisor.alive:
                    # it counts as lost, but its process may wake up and write
                    supervisor._recoveries.expel(
                        m.Expel(data.draw(st.sampled_from(supervisor.alive)), "was silent", hung=False)
                    )
                case "die" if alive := [name for name in engine.running if name.startswith("w")]:
                    engine.die(data.draw(st.sampled_from(alive)))
                    supervisor.poll(0.0)
                case "forget" if held:
                    name = data.draw(st.sampled_from(sorted(held)))
                    if name not in engine.running:
                        held.discard(name)
                        roster(supervisor, name, states=(name,))


def test_one_that_died_before_the_coordinator_did_gives_its_place_back_too(tmp_path: Path) -> None:
    with stub_supervisor(tmp_path, workers=SLOTS) as (supervisor, engine):
        engine.die("w1")
        supervisor.poll(0.0)
        roster(
            supervisor
        )  # another coordinator's, which has never heard of w1; the view found may not hold yet
        with pytest.raises(WorkersLostError):
            supervisor.launch(1)
        roster(supervisor, settled=True)
        assert [slot_index(name) for name in supervisor.launch(1)] == [slot_index("w1")]


def test_more_workers_than_a_model_has_room_for_are_refused_when_it_is_known(tmp_path: Path) -> None:
    with (
        pytest.raises(WorkersLostError, match=f"the gradients of {SLOTS} workers"),
        stub_supervisor(tmp_path, workers=SLOTS + 1),
    ):
        pass


@pytest.mark.parametrize("writes", ["here", "elsewhere"])
def test_what_a_worker_that_died_has_written_of_the_model_is_removed(
    tmp_path: Path, writes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if writes == "elsewhere":
        monkeypatch.setattr(StubEngine, "host", lambda self, name: "10.0.0.9")
    path = tmp_path / "model.keras"
    with stub_supervisor(tmp_path, workers=1) as (supervisor, engine):
        partial_model(path).write_bytes(b"half of it")
        engine.die("w0")
        supervisor._ending._save("w0", path, 7, supervisor._clock() + 60.0)
    assert not list(tmp_path.glob(".*")) + list(tmp_path.glob("*.keras*"))


def test_a_model_that_arrived_whole_is_put_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StubEngine, "host", lambda self, name: "10.0.0.9")
    path = tmp_path / "model.keras"
    with stub_supervisor(tmp_path, workers=1) as (supervisor, _):

        def send(peer: str, message: m.Message) -> None:
            for said in (m.SavedPart(4, b"5678"), m.SavedPart(0, b"1234"), m.Saved()):
                supervisor._incoming.from_process(peer, said)

        monkeypatch.setattr(Processes, "send", lambda self, peer, message: send(peer, message))
        supervisor._ending._save("w0", path, 7, supervisor._clock() + 60.0)
        monkeypatch.undo()
    assert path.read_bytes() == b"12345678"
    assert not partial_model(path).exists()
