"""Processes on VMs: here, agents on this machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from engine_conformance import (
    PATIENCE_S,
    SLEEP,
    EngineConformance,
    Start,
    boot,
    command,
    exits,
    running,
    said,
)
from processes import alive
from vm_driving import SOME_TYPE, Stage
from waiting import eventually

from scavenger.train.engines.base import PreemptionNotice
from scavenger.train.engines.vm.engine import HostEngine, Needs


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "stage", lost_s=2.0)
    yield made
    made.close()


@pytest.fixture
def start(stage: Stage, tmp_path: Path) -> Iterator[Start]:
    engines: list[HostEngine] = []

    def started(program: str) -> HostEngine:
        if not engines:
            stage.add("vm-0")
        engines.append(HostEngine(tmp_path / "logs", stage.hosts, command=command(program)))
        engines[-1].launch(boot("w0"))
        return engines[-1]

    yield started
    for engine in engines:
        engine.kill_all()
        engine.close()


@pytest.mark.slow
class TestVmEngine(EngineConformance):
    ends_within_s = 15.0
    leader = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from vm_driving import Stage
from scavenger.train.transport.messages.values import ProcessConfiguration
from scavenger.train.engines.vm.engine import HostEngine
stage = Stage(Path(sys.argv[1]) / "stage", silent_s=2.0, poweroff_s=4.0)
stage.add("vm-0")
engine = HostEngine(Path(sys.argv[1]), stage.hosts, command=(sys.executable, "-c", sys.argv[2]))
engine.launch(ProcessConfiguration("worker", "w0", "", "", "", "", memory_fd=-1))
while not engine.pid("w0"):
    engine.poll()
    time.sleep(0.02)
print("up", flush=True)
while True:
    engine.poll()
    time.sleep(0.02)
"""

    def test_a_process_waits_for_a_vm_of_its_role_and_type_and_takes_the_first_that_comes(
        self, stage: Stage, start: Start
    ) -> None:
        engine = start(SLEEP)
        assert isinstance(engine, HostEngine)
        running(engine, "w0")
        engine.launch(boot("w1"), vm="m5.large")
        aggregator = msgspec.structs.replace(boot("aggregator-0"), role="aggregator")
        engine.launch(aggregator, vm="whatever its type")
        assert [engine.pid(name) for name in ("w1", "aggregator-0")] == [0, 0]
        assert engine.needs() == Needs({"": 1, "m5.large": 1}, 1)

        stage.add("vm-1", vm="m5.large")
        stage.add("vm-2", "aggregator")

        running(engine, "w1")
        running(engine, "aggregator-0")
        assert {vm.spec.intent: vm.processes for vm in stage.hosts.vms()} == {
            "vm-0": ("w0",),
            "vm-1": ("w1",),
            "vm-2": ("aggregator-0",),
        }
        engine.kill_all()
        exits(engine, 3)
        assert engine.needs() == Needs({}, 0)

    def test_no_vm_gets_more_processes_than_it_has_places(self, stage: Stage, tmp_path: Path) -> None:
        stage.add("vm-0", places=1)
        stage.joined("vm-0")
        engine = HostEngine(tmp_path / "logs", stage.hosts, command=command(SLEEP))
        try:
            for name in ("w0", "w1"):
                engine.launch(boot(name))
            running(engine, "w0")
            engine.kill("w0")
            exits(engine)
            assert running(engine, "w1")
            assert stage.hosts.vms()[0].processes == ("w1",)
        finally:
            engine.kill_all()
            engine.close()

    def test_each_worker_of_a_vm_sees_a_gpu_of_its_own(self, stage: Stage, tmp_path: Path) -> None:
        stage.add("vm-0", places=2)
        stage.add("vm-1", "aggregator")
        stage.joined("vm-0")
        program = (
            "import os, time; print(os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True); time.sleep(600)"
        )
        engine = HostEngine(tmp_path / "logs", stage.hosts, command=command(program))
        try:
            engine.launch(msgspec.structs.replace(boot("aggregator-0"), role="aggregator"))
            engine.launch(boot("w0"))
            engine.launch(boot("w1"))
            seen = [said(engine, name) for name in ("w0", "w1", "aggregator-0")]
            engine.kill("w0")
            exits(engine)
            engine.launch(boot("w2"))

            assert [*seen, said(engine, "w2")] == ["0", "1", "-1", "0"]
        finally:
            engine.kill_all()
            engine.close()

    def test_a_vm_that_its_last_process_has_left_gets_another_only_if_no_other_has_room(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        stage.add("vm-0", places=2)
        stage.add("vm-1", places=2)
        stage.joined("vm-0", "vm-1")
        program = "import os, time; time.sleep(float(os.environ.get('FOR_S', '600')))"
        engine = HostEngine(tmp_path / "logs", stage.hosts, command=command(program))
        try:
            engine.launch(boot("w0"))
            running(engine, "w0")
            engine.launch(boot("w1"), env={"FOR_S": "0"})
            exits(engine)
            assert engine.released == {"vm-1"}
            for name in ("w2", "w3"):
                engine.launch(boot(name))
                running(engine, name)
            there = {vm.spec.intent: vm.processes for vm in stage.hosts.vms()}
            assert there == {"vm-0": ("w0", "w2"), "vm-1": ("w3",)}
        finally:
            engine.kill_all()
            engine.close()

    def test_a_vm_that_is_avoided_keeps_its_processes_and_gets_no_more(
        self, stage: Stage, start: Start
    ) -> None:
        engine = start(SLEEP)
        assert isinstance(engine, HostEngine)
        running(engine, "w0")
        bad, good = engine.host("w0"), "127.0.0.2"
        stage.add("vm-1", address=good)
        stage.joined("vm-1")
        engine.avoid([bad])
        engine.launch(boot("w1"))
        engine.launch(boot("w2"))
        running(engine, "w1")
        running(engine, "w2")
        assert [engine.host(name) for name in ("w0", "w1", "w2")] == [bad, good, good]
        engine.avoid([])
        engine.launch(boot("w3"))
        running(engine, "w3")
        assert engine.host("w3") == bad  # where there is most room

    def test_what_is_avoided_is_the_machine_where_several_vms_name_the_same(
        self, stage: Stage, start: Start
    ) -> None:
        engine = start(SLEEP)
        assert isinstance(engine, HostEngine)
        running(engine, "w0")
        assert engine.node("w0") == engine.host("w0")
        stage.add("vm-1", address="127.0.0.2", node="bad-node", places=1)
        stage.joined("vm-1")
        engine.avoid([engine.node("w0")])
        engine.launch(boot("w1"))
        running(engine, "w1")
        assert engine.node("w1") == "bad-node"
        engine.kill("w1")
        exits(engine)
        assert engine.node("w1") == "bad-node"  # failures are counted when the process is gone

        stage.add("vm-2", address="127.0.0.3", node="bad-node")
        stage.add("vm-3", address="127.0.0.4", node="good-node")
        stage.joined("vm-2", "vm-3")
        engine.avoid(["bad-node", engine.node("w0")])
        for name in ("w2", "w3"):
            engine.launch(boot(name))
            running(engine, name)
        assert {engine.node(name) for name in ("w2", "w3")} == {"good-node"}

    def test_who_waits_too_long_for_a_vm_has_ended(self, stage: Stage, tmp_path: Path) -> None:
        now = [0.0]
        engine = HostEngine(
            tmp_path, stage.hosts, place_max_s=60.0, command=command(""), clock=lambda: now[0]
        )
        engine.launch(boot("w0"), vm=SOME_TYPE)
        now[0] = 59.0
        assert engine.poll() == []
        now[0] = 61.0

        (ended,) = engine.poll()

        assert ended.cause == "no VM could be had for it within 60 s"
        engine.close()

    def test_the_coordinator_runs_beside_the_leader(self, stage: Stage, tmp_path: Path) -> None:
        engine = HostEngine(tmp_path, stage.hosts, command=command("print('here')"))
        pid = engine.launch(msgspec.structs.replace(boot("coordinator-1"), role="coordinator"))

        (ended,) = exits(engine)

        assert pid > 0
        assert (ended.name, engine.log("coordinator-1").read_text()) == ("coordinator-1", "here\n")
        assert engine.host("coordinator-1") == engine.leader_host
        assert engine.needs() == Needs({}, 0)
        engine.close()

    def test_a_host_that_is_none_of_the_vms_is_refused(self, start: Start) -> None:
        engine = start(SLEEP)
        running(engine, "w0")

        with pytest.raises(ValueError, match="no VM at"):
            engine.launch(boot("w1"), host="192.0.2.1")
        engine.launch(boot("w1"), host=engine.host("w0"))

        assert running(engine, "w1")

    def test_processes_of_a_vm_that_falls_silent_are_lost_and_it_may_come_back_without_them(
        self, stage: Stage, start: Start
    ) -> None:
        engine = start(SLEEP)
        pid = running(engine, "w0")
        stage.add("vm-1", vm="m5.large")  # it is heard, so that the network is not to blame
        stage.joined("vm-1")
        agent = stage.agents["vm-0"]
        agent.send_signal(signal.SIGSTOP)

        (ended,) = exits(engine)
        assert "has been silent for 2 s" in ended.cause
        engine.launch(boot("w1"), vm=SOME_TYPE)
        assert engine.poll() == []
        assert engine.pid("w1") == 0
        assert alive(pid), "nobody can have ended it yet"
        agent.send_signal(signal.SIGCONT)

        assert running(engine, "w1")
        assert eventually(lambda: not alive(pid))
        assert engine.poll() == []

    def test_processes_of_a_vm_that_is_seen_to_be_gone_are_lost_with_its_reason(
        self, stage: Stage, start: Start
    ) -> None:
        engine = start(SLEEP)
        running(engine, "w0")

        stage.kill("vm-0")
        stage.hosts.gone("vm-0", "the cloud took it")

        assert [ended.cause for ended in exits(engine)] == ["the cloud took it"]
        assert stage.hosts.vms() == ()

    def test_what_a_vm_is_told_of_its_end_is_known_within_a_second_and_it_gets_no_more_processes(
        self, stage: Stage, start: Start
    ) -> None:
        engine = start(SLEEP)
        running(engine, "w0")
        found: list[PreemptionNotice] = []

        def doomed() -> bool:
            engine.poll()
            found.extend(engine.preemption_notices())
            return bool(found)

        stage.agents["vm-0"].send_signal(signal.SIGUSR2)
        assert eventually(doomed, within_s=1.0)

        assert found == [PreemptionNotice("w0", 120.0, "the cloud takes its VM back")]
        assert engine.preemption_notices() == ()
        (vm,) = stage.hosts.vms()
        assert vm.preemption is not None
        assert vm.preemption.in_s is not None
        assert 100.0 < vm.preemption.in_s <= 120.0
        engine.launch(boot("w1"))
        engine.poll()
        assert engine.pid("w1") == 0

    def test_a_vm_that_is_shut_down_ends_its_processes_and_tells(self, stage: Stage, start: Start) -> None:
        engine = start(SLEEP)
        pid = running(engine, "w0")

        stage.agents["vm-0"].terminate()

        assert [ended.cause for ended in exits(engine)] == ["its VM is being shut down"]
        assert not alive(pid)
        assert stage.agents["vm-0"].wait(PATIENCE_S) == 0
        assert stage.names() == []

    def test_an_agent_that_fails_tells_why_before_it_ends(self, stage: Stage, start: Start) -> None:
        engine = start(SLEEP)
        pid = running(engine, "w0")

        stage.agents["vm-0"].send_signal(signal.SIGUSR1)  # see `AGENT`

        why = "its agent failed: RuntimeError: out of order"
        assert [ended.cause for ended in exits(engine)] == [why]
        assert stage.hosts.alarms() == (f"VM vm-0: {why}",)
        assert not alive(pid)
        assert stage.agents["vm-0"].wait(PATIENCE_S) == 1

    def test_an_engine_that_is_closed_leaves_its_vms_to_the_next(
        self, stage: Stage, start: Start, tmp_path: Path
    ) -> None:
        engine = start(SLEEP)
        running(engine, "w0")
        engine.close()

        again = start(SLEEP)

        assert running(again, "w0") != engine.pid("w0")
        assert stage.names() == ["vm-0"]


class TestWhenMostVmsFallSilentAtOnce:
    """Their agents stand still: that is what a broken network of the leader's looks like."""

    LOST_S = 6.0

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Iterator[HostEngine]:
        stage = self.stage = Stage(tmp_path / "stage", lost_s=self.LOST_S)
        engine = HostEngine(tmp_path / "logs", stage.hosts, command=command(SLEEP))
        try:
            for number in (0, 1):
                stage.add(f"vm-{number}", places=1)
                engine.launch(boot(f"w{number}"))
            for name in ("w0", "w1"):
                running(engine, name)
            yield engine
        finally:
            self.send(signal.SIGCONT)
            engine.kill_all()
            engine.close()
            stage.close()

    def send(self, number: signal.Signals) -> None:
        for agent in self.stage.agents.values():
            agent.send_signal(number)

    @pytest.mark.slow
    def test_nothing_is_given_up_and_the_user_is_told(self, engine: HostEngine) -> None:
        pids = {name: engine.pid(name) for name in engine.running}
        told: list[str] = []

        def was_told(words: str) -> bool:
            assert engine.poll() == []
            told.extend(self.stage.hosts.alarms())
            return any(text.startswith(words) for text in told)

        self.send(signal.SIGSTOP)
        assert eventually(lambda: was_told("not hearing the VMs (2 of 2 are silent)"), within_s=60.0)
        assert eventually(
            lambda: all(vm.heard_s_ago > 2 * self.LOST_S for vm in self.stage.hosts.vms()), within_s=60.0
        )
        assert engine.in_doubt
        self.send(signal.SIGCONT)

        assert eventually(lambda: was_told("hearing the VMs again, after"), within_s=60.0)
        assert eventually(lambda: not engine.in_doubt, within_s=60.0)
        assert {name: engine.pid(name) for name in engine.running} == pids
        assert all(map(alive, pids.values()))

    @pytest.mark.slow
    def test_a_process_that_is_to_end_anyway_is_not_waited_for(self, engine: HostEngine) -> None:
        self.send(signal.SIGSTOP)
        assert eventually(lambda: engine.in_doubt, within_s=60.0)

        engine.stop(["w0"], grace_s=0.1)

        assert engine.running == ("w1",)
