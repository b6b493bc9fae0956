"""A VM joins once, with a key that is good for nothing else; whoever else tries is refused, and told of."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from vm_driving import Stage
from waiting import eventually

from scavenger import __version__
from scavenger.errors import ConfigurationError, MessageError
from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.agent import read_ticket
from scavenger.train.engines.vm.agent_server import AgentServer, one_time_keys
from scavenger.train.engines.vm.values import ALARMS_MAX, Gone
from scavenger.train.transport.messages.values import ProcessConfiguration
from scavenger.train.transport.sockets import new_keys

pytestmark = pytest.mark.slow

SILENCE_MS = 400


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "stage", lost_s=2.0)
    yield made
    made.close()


class Peer:
    """Whoever connects."""

    def __init__(self, hosts: AgentServer, keys: tuple[bytes, bytes], name: bytes = b"") -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        if name:
            self.socket.setsockopt(zmq.IDENTITY, name)
        self.socket.curve_serverkey = hosts.server_key.encode()
        self.socket.curve_publickey, self.socket.curve_secretkey = keys
        self.socket.connect(hosts.endpoint)

    def send(self, message: m.SocketMessage) -> None:
        """Send as agents do: a socket whose key was refused already has no connection, and would block."""
        with contextlib.suppress(zmq.Again):
            self.socket.send(m.encode(message), zmq.NOBLOCK)

    def ask(self, message: m.SocketMessage, within_ms: int = 5000) -> m.SocketMessage | None:
        self.send(message)
        return m.decode(self.socket.recv()) if self.socket.poll(within_ms) else None

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
def peer(stage: Stage) -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def made(keys: tuple[bytes, bytes], name: bytes = b"") -> Peer:
        peers.append(Peer(stage.hosts, keys, name))
        return peers[-1]

    yield made
    for one in peers:
        one.close()


def one_time(stage: Stage, intent: str) -> tuple[bytes, bytes]:
    secret = stage.expect(intent).encode()
    return zmq.curve_public(secret), secret


def join(public: bytes, version: str = __version__) -> m.Join:
    return m.Join(m.PROTOCOL, version, public.decode())


def test_the_key_of_an_intent_is_the_same_however_often_it_is_asked_for_and_no_other_s(stage: Stage) -> None:
    secrets = [stage.expect(intent) for intent in ("a", "b", "a")]

    assert secrets[0] == secrets[2] != secrets[1]
    assert one_time_keys(stage.hosts.boot_key, "a")[1] == secrets[0]
    assert one_time_keys(bytes(32), "a")[1] != secrets[0]


def test_a_vm_joins_is_heard_and_is_renewed(stage: Stage) -> None:
    stage.add("vm-0")
    assert not stage.hosts.renew("vm-0", 900.0), "nobody has heard of it"
    stage.joined("vm-0")

    assert eventually(lambda: stage.hosts.heard() == {"vm-0"})
    assert stage.hosts.renew("vm-0", 900.0)
    assert (stage.folder / "vm-0.renewed").exists()
    assert not stage.hosts.renew("vm-9", 900.0)
    assert stage.hosts.alarms() == ()


def test_a_vm_whose_timer_does_not_start_anew_is_not_renewed(stage: Stage) -> None:
    stage.add("vm-0", renew="false")
    stage.joined("vm-0")

    assert not stage.hosts.renew("vm-0", 900.0)
    assert any("`false` ended with status 1" in told for told in stage.hosts.alarms())


def ended(stage: Stage, intent: str, why: str) -> bool:
    """Whether a VM is shut out, so that the fleet replaces it, and nobody can speak for it any more."""
    (seen,) = (vm for vm in stage.hosts.vms() if vm.spec.intent == intent)
    told = [one for one in stage.hosts.alarms() if why in one]
    return seen.preemption is not None and seen.preemption.in_s == 0.0 and len(told) == 1


def test_a_key_that_is_used_a_second_time_ends_both_whoever_was_first(
    stage: Stage, peer: Callable[..., Peer]
) -> None:
    keys, first = one_time(stage, "vm-0"), new_keys()
    one, other = peer(keys), peer(keys)

    assert one.ask(join(first[0])) == m.Admitted()
    assert one.ask(join(first[0])) == m.Admitted(), "a repetition is taken for what it is"
    assert other.ask(join(new_keys()[0]), SILENCE_MS) is None

    assert ended(stage, "vm-0", "used a second time")
    assert one.ask(join(first[0]), SILENCE_MS) is None
    mine = peer(first)
    mine.send(m.Packet(1, 0, m.Hello("192.0.2.6")))
    assert not mine.socket.poll(SILENCE_MS)
    assert stage.hosts.free() == ()
    assert stage.hosts.alarms() == (), "told once"


def test_a_key_that_is_used_after_its_vm_has_joined_ends_that_vm(
    stage: Stage, peer: Callable[..., Peer]
) -> None:
    keys = one_time(stage, "vm-0")
    stage.add("vm-0")
    stage.joined("vm-0")

    assert peer(keys).ask(join(new_keys()[0]), SILENCE_MS) is None

    assert ended(stage, "vm-0", "used a second time")
    assert not stage.hosts.renew("vm-0", 900.0)


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path / "strict", verified=True)
    yield made
    made.close()


def test_where_vms_prove_their_identity_an_agent_waits_until_its_proof_is_verified(
    strict: Stage,
) -> None:
    strict.add("vm-0", identity="what its cloud signed")

    assert eventually(lambda: bool(strict.hosts.candidates()))
    (candidate,) = strict.hosts.candidates()
    assert (candidate.intent, candidate.identity) == ("vm-0", "what its cloud signed")
    assert strict.names() == []

    strict.hosts.accept(candidate)
    strict.joined("vm-0")
    assert strict.hosts.candidates() == ()


def test_a_stolen_key_that_joins_first_gets_nothing_and_ends_its_vm(strict: Stage) -> None:
    stage, peers = strict, list[Peer]()

    def thief(intent: str) -> Peer:
        peers.append(Peer(stage.hosts, one_time(stage, intent)))
        return peers[-1]

    try:
        assert thief("vm-0").ask(join(new_keys()[0]), SILENCE_MS) is None
        (candidate,) = stage.hosts.candidates()
        stage.hosts.refuse(candidate, "is missing")
        assert ended(stage, "vm-0", "proof of identity that came with its one-time key is missing")

        assert thief("vm-1").ask(join(new_keys()[0]), SILENCE_MS) is None
        stage.add("vm-1", identity="what its cloud signed")
        assert eventually(lambda: ended(stage, "vm-1", "used a second time"))
        assert stage.hosts.candidates() == ()
        assert stage.hosts.free() == ()
    finally:
        for one in peers:
            one.close()


def test_with_a_one_time_key_nobody_speaks_as_a_vm_or_takes_what_is_meant_for_it(
    stage: Stage, peer: Callable[..., Peer]
) -> None:
    stage.add("vm-0")
    stage.joined("vm-0")

    for name in (b"", b"vm.vm-0", b"vm-0"):
        thief = peer(one_time(stage, "vm-1"), name)
        thief.send(m.Packet(1, 0, m.Hello("192.0.2.6")))
        assert not thief.socket.poll(SILENCE_MS)

    assert stage.hosts.renew("vm-0", 900.0)
    assert {vm.spec.intent: vm.joined for vm in stage.hosts.vms()} == {"vm-0": True, "vm-1": False}


@pytest.mark.parametrize("intent", ["vm-0", "never"])
def test_nobody_joins_for_a_vm_that_is_gone_or_was_never_expected(
    stage: Stage, peer: Callable[..., Peer], intent: str
) -> None:
    one_time(stage, "vm-0")
    stage.hosts.gone("vm-0", "seen gone")
    public, secret = one_time_keys(stage.hosts.boot_key, intent)

    assert peer((public.encode(), secret.encode())).ask(join(new_keys()[0]), SILENCE_MS) is None
    assert stage.hosts.vms() == ()


def test_another_version_is_refused_with_one_alarm(stage: Stage, peer: Callable[..., Peer]) -> None:
    old = peer(one_time(stage, "vm-0"))

    for _ in range(2):
        answer = old.ask(join(new_keys()[0], "0.0.1"))

    assert isinstance(answer, m.Refused)
    (told,) = stage.hosts.alarms()
    assert "has Scavenger 0.0.1" in told
    assert __version__ in told


def test_agents_of_a_leader_that_ends_power_off(stage: Stage) -> None:
    stage.add("vm-0")
    stage.joined("vm-0")

    stage.hosts.close()

    assert stage.agents["vm-0"].wait(60.0) == 0
    assert (stage.folder / "vm-0.off").exists()


def test_an_agent_whose_leader_falls_silent_powers_off_and_leaves_no_file(tmp_path: Path) -> None:
    with contextlib.closing(Stage(tmp_path, silent_s=1.0, poweroff_s=2.0)) as stage:
        stage.add("vm-0")
        stage.joined("vm-0")

        stage.hosts.gone("vm-0", "as the leader believes")

        assert stage.agents["vm-0"].wait(60.0) == 0
        assert (stage.folder / "vm-0.off").exists()
        assert not list((stage.folder / "vm-0.tmp").iterdir())


def test_a_join_file_is_removed_and_its_key_is_never_shown(stage: Stage) -> None:
    secret = stage.expect("vm-0")
    path = stage.ticket("vm-0", secret)

    ticket = read_ticket(path)

    assert not path.exists()
    assert secret not in repr(ticket)
    stage.add("vm-0")
    stage.joined("vm-0")
    assert secret not in stage.said("vm-0")


@pytest.mark.parametrize(
    "change",
    [{"endpoint": "ipc:///tmp/x"}, {"secret": "short"}, {"more": 1}, {"renew": ""}, {"intent": "a b"}, None],
)
def test_a_join_file_that_is_none_is_one_line_without_its_key(
    stage: Stage, change: dict[str, object] | None
) -> None:
    secret = stage.expect("vm-0")
    path = stage.ticket("vm-0", secret)
    path.write_text("{" if change is None else json.dumps({**json.loads(path.read_text()), **change}))

    with pytest.raises(ConfigurationError) as failure:
        read_ticket(path)

    assert "\n" not in str(failure.value)
    assert secret not in str(failure.value)


def test_a_vm_runs_the_agent_from_its_join_file_and_says_that_it_hears_no_notices(stage: Stage) -> None:
    ticket = stage.ticket("vm-0", stage.expect("vm-0"), provider="none")
    agent = subprocess.Popen(
        [sys.executable, "-m", "scavenger.control.provisioning.on_vm", str(ticket)], stdout=subprocess.DEVNULL
    )
    told: list[str] = []

    def warned() -> bool:
        told.extend(stage.hosts.alarms())
        return bool(told)

    try:
        stage.joined("vm-0")
        assert eventually(warned, within_s=60.0)
        agent.terminate()
        assert agent.wait(60.0) == 0
    finally:
        agent.kill()
        agent.wait()
    assert "it will receive no preemption notices" in told[0]


class Rogue:
    """A VM that has joined as any other, and then says what it likes, each word as the next one."""

    def __init__(self, stage: Stage, peer: Callable[..., Peer], intent: str = "rogue") -> None:
        self._hosts, self.intent, self._number = stage.hosts, intent, 0
        own = new_keys()
        assert peer(one_time(stage, intent)).ask(join(own[0])) == m.Admitted()
        self._line = peer(own).socket
        self.say(m.Hello("192.0.2.6"))
        stage.joined(intent)

    def say(self, *words: m.AgentMessage) -> None:
        for word in words:
            self._number += 1
            self._line.send(m.encode(m.Packet(self._number, 0, word)))

    def babble(self, data: bytes) -> None:
        self._line.send(data)

    def run(self) -> int:
        boot = ProcessConfiguration("worker", "w0", "", "", "", "", memory_fd=-1)
        return self._hosts.launch(self.intent, boot, {}, (), folder=False)


def shut_out(stage: Stage, told: list[str]) -> bool:
    told.extend(stage.hosts.alarms())
    return any("VM rogue (192.0.2.6) is shut out" in one for one in told)


@pytest.mark.parametrize(
    "words",
    [
        [m.Fetch(2**63 - 1)],
        [m.Fetch(1 << 30)],
        [m.Fetch(0)] * 400,
    ],
    ids=["the-last-offset", "an-offset-behind-the-end", "all-at-once"],
)
def test_a_vm_that_misbehaves_is_shut_out_with_one_alarm_and_no_other_vm_is_hurt(
    stage: Stage, peer: Callable[..., Peer], words: list[m.AgentMessage]
) -> None:
    stage.add("vm-0")
    stage.joined("vm-0")
    rogue, told = Rogue(stage, peer), list[str]()
    launch = rogue.run()

    rogue.say(*words)

    assert eventually(lambda: shut_out(stage, told))
    ((number, lost),) = stage.hosts.take_events()
    assert (number, type(lost)) == (launch, Gone)
    assert "its VM (192.0.2.6) was shut out" in lost.reason
    assert stage.hosts.renew("vm-0", 900.0), "the others are served as ever"
    assert not stage.hosts.renew("rogue", 900.0)
    assert [vm.spec.intent for vm in stage.hosts.free()] == ["vm-0"]
    (seen,) = (vm for vm in stage.hosts.vms() if vm.spec.intent == "rogue")
    assert seen.preemption is not None, "whoever rents VMs must see that this one is of no more use"
    assert (seen.joined, seen.preemption.in_s, seen.processes) == (True, 0.0, ())
    rogue.say(m.Warned("once more"))
    assert not peer(new_keys()).socket.poll(SILENCE_MS)
    assert sum("rogue" in one for one in (*told, *stage.hosts.alarms())) == 1


def test_whatever_the_handling_of_a_message_raises_costs_that_vm_alone(
    stage: Stage, peer: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    rogue, told = Rogue(stage, peer), list[str]()

    def failing(_offset: int, _size: int) -> bytes:
        raise OSError("as nobody foresaw")

    monkeypatch.setattr(
        "scavenger.train.engines.vm.job_archive.Archive.read", lambda _self, *part: failing(*part)
    )
    rogue.say(m.Fetch(0))

    assert eventually(lambda: shut_out(stage, told))
    assert "OSError: as nobody foresaw" in told[0]
    stage.add("vm-0")
    stage.joined("vm-0")


@pytest.mark.parametrize("malformed", [False, True])
def test_what_one_vm_says_is_a_bounded_number_of_printable_alarms(
    stage: Stage, peer: Callable[..., Peer], malformed: bool
) -> None:
    rogue, told = Rogue(stage, peer), list[str]()

    def over() -> bool:
        told.extend(stage.hosts.alarms())
        return any("further ones are left out" in one for one in told)

    for number in range(5 * ALARMS_MAX):
        if malformed:
            rogue.babble(msgspec.msgpack.encode([f"\x1b[2J{number}"]))
        else:
            rogue.say(m.Warned(f"\x1b[2J{number}"))
    rogue.say(m.Renewed(1, ""))

    assert eventually(over)
    assert stage.hosts.alarms() == ()
    assert len(told) == ALARMS_MAX + 1
    assert all(one.isprintable() for one in told)


def test_a_report_holds_no_more_than_agents_send(stage: Stage, peer: Callable[..., Peer]) -> None:
    part = b"x" * m.LOG_PART_BYTES

    assert m.decode(m.encode(m.Packet(1, 0, m.Report(1, part))))
    for report in (m.Report(1, part + b"x"), m.Report(1, status=-(2**40)), m.Report(1, status=256)):
        with pytest.raises(MessageError):
            m.decode(m.encode(m.Packet(1, 0, report)))


def test_news_that_nobody_takes_is_bounded_by_its_bytes_for_each_vm_by_itself(
    stage: Stage, peer: Callable[..., Peer]
) -> None:
    rogue = Rogue(stage, peer)
    launch, quiet = rogue.run(), Rogue(stage, peer, "quiet")
    other = quiet.run()
    part = b"x" * m.LOG_PART_BYTES

    rogue.say(*[m.Report(launch, part)] * 300)
    quiet.say(m.Placed(other, 7))
    kept = []

    def both() -> bool:
        kept.extend(stage.hosts.take_events())
        return any(number == other for number, _ in kept)

    assert eventually(lambda: stage.hosts._sessions["rogue"].unread.log_bytes > 8 << 20)
    assert eventually(both)
    total = sum(len(news.log) for _, news in kept if isinstance(news, m.Report))
    assert total <= (8 << 20) + 2 * m.LOG_PART_BYTES


def test_two_leaders_cannot_listen_at_one_port(stage: Stage, tmp_path: Path) -> None:
    port = int(stage.hosts.endpoint.rpartition(":")[2])

    with pytest.raises(ConfigurationError, match="cannot listen at"):
        AgentServer("127.0.0.1", tmp_path / "stage" / "nothing", port=port).start()
