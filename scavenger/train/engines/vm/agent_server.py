"""The leader's server for the agents on its VMs: admits each agent once, and keeps a channel to it.

A VM's user data holds a one-time key for joining. With it, the VM first fetches the package that it installs, unless
its image has it. The agent then generates its own keys, and sends the public one under the
one-time key, with its cloud's proof that it is on that VM. If the proof is not valid, or the one-time key is used a
second time for another public key, another party must have read the user data: then the VM is shut out, whoever has
joined first, and the fleet replaces it. The server identifies a peer by the key of each message, never by the name that
a peer claims, so that the holder of a one-time key cannot impersonate another peer.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path

import zmq

from scavenger.errors import ConfigurationError, MessageError
from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.admission import Admission
from scavenger.train.engines.vm.agent_socket import AgentSocket
from scavenger.train.engines.vm.channel import Channel
from scavenger.train.engines.vm.event_queue import EventQueue
from scavenger.train.engines.vm.file_server import FileServer
from scavenger.train.engines.vm.job_archive import Archive
from scavenger.train.engines.vm.silence_watch import LOST_S, SilenceWatch, silent_for
from scavenger.train.engines.vm.values import (
    AgentSession,
    AgentSpec,
    AgentStatus,
    Alarms,
    Gone,
    JoiningAgent,
    MachineSize,
    MisbehavedError,
    ProcessEvent,
    Role,
    one_time_keys,
)
from scavenger.train.transport.messages.values import ProcessConfiguration

__all__ = ["LOST_S", "AgentServer", "AgentStatus", "one_time_keys"]

RENEW_S = 2.0
"""How long `renew` waits for the VM's answer."""
_TICK_MS = 20
_CHUNKS_MAX = 2
"""Chunks of the job's folder in flight to a VM; an agent requests the next one when it has received one."""
_BACKLOG_MAX = 2000
"""Unacknowledged messages to a VM that sends requests: far more than its file operations can cause."""
_PACKAGES_MAX = 10
"""How often one VM may fetch the package: its boot script tries six times."""
_WITH_FILES = ("aggregator", "command")
"""Roles whose processes use the folders that the leader shares: they write checkpoints."""
_TURN_MAX = 1000
"""Largest number of messages received from all VMs before the leader sends."""


class AgentServer:
    """Server for the agents of one job. `start` starts its thread; methods may be called from any other thread.

    Args:
        address: Host name or address by which VMs reach this machine.
        job_dir: Folder of the training code, which is sent to the workers' VMs.
        port: Port to listen at; 0 for any.
        boot_key: Secret from which one-time keys are derived; None for a new one.
        leave_out: Paths in the folder that are not sent, see `Archive`.
        package: The wheel that VMs may fetch before they join; empty for none.
        lost_s: Silence after which the processes of a VM count as lost.
        verified: See `Admission`.
        clock: Returns monotonic seconds.

    Attributes:
        boot_key: The secret, as given or generated.

    Raises:
        ConfigurationError: If the folder cannot be packed.
    """

    def __init__(
        self,
        address: str,
        job_dir: Path,
        *,
        port: int = 0,
        boot_key: bytes | None = None,
        leave_out: Collection[Path] = (),
        package: bytes = b"",
        lost_s: float = LOST_S,
        verified: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._silence = SilenceWatch(lost_s, clock())
        self.boot_key = boot_key or secrets.token_bytes(32)
        self._archive, self._package = Archive(job_dir, leave_out=leave_out), package
        self._socket = AgentSocket(address, port)
        self._admission = Admission(self._socket, self.boot_key, verified=verified)
        self._sessions: dict[str, AgentSession] = {}
        self._gone: set[str] = set()
        self._heard: set[str] = set()
        self._launches = 0
        self._events = EventQueue()
        self._alarms = Alarms(
            f"{link}, a link that leads out of the folder of the training code, is not sent to VMs"
            for link in self._archive.left_out
        )
        self._lock = threading.Condition(
            threading.RLock()
        )  # re-entrant, because a signal handler may interrupt a method
        self._wakeup = -1
        self._files = FileServer(self._answer, self._may_have_files)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scavenger-hosts", daemon=True)

    def start(self) -> None:
        """Listen for agents, and serve them.

        Raises:
            ConfigurationError: If the port is not available; the server is then closed.
        """
        try:
            self._socket.open()
        except ConfigurationError:
            self.close()
            raise
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._silence.started(self._clock())
        self._thread.start()

    @property
    def address(self) -> str:
        """Address by which VMs reach this machine."""
        return self._socket.address

    @property
    def port(self) -> int:
        """The requested port for VMs; 0: any."""
        return self._socket.port

    @property
    def endpoint(self) -> str:
        """Endpoint at which VMs join, `tcp://host:port`."""
        return self._socket.endpoint

    @property
    def server_key(self) -> str:
        """Public key by which agents authenticate this leader, Z85."""
        return self._socket.server_key

    @property
    def in_doubt(self) -> bool:
        """Whether all VMs are silent, or were until recently, so that the network is the likely cause."""
        return self._silence.in_doubt

    @property
    def unheard(self) -> bool:
        """Whether all VMs with processes are silent, too briefly to tell whether the network is broken."""
        return self._silence.unheard

    # ---- for the fleet -------------------------------------------------------------------------------------

    def expect(self, intent: str, *, role: Role, vm: str, threads: int, slots: int = 1) -> str:
        """Allow the VM of an intent to join, once. Idempotent.

        Args:
            intent: Id of the intent.
            role: Role of the processes that the VM may run.
            vm: VM type.
            threads: Number of processors.
            slots: Number of processes that the VM may run.

        Returns:
            The secret one-time key for the VM's user data, Z85.
        """
        with self._lock:
            if intent not in self._sessions and intent not in self._gone:
                self._sessions[intent] = AgentSession(AgentSpec(intent, vm, role, threads, slots))
                self._admission.expect(intent)
        return one_time_keys(self.boot_key, intent)[1]

    def candidates(self) -> tuple[JoiningAgent, ...]:
        """Return the agents that wait for `accept` or `refuse`."""
        with self._lock:
            waiting = (session.link.candidate for session in self._sessions.values())
            return tuple(candidate for candidate in waiting if candidate is not None)

    def accept(self, candidate: JoiningAgent) -> None:
        """Admit an agent, whose VM's identity has been verified."""
        with self._lock:
            session = self._sessions.get(candidate.intent)
            if session is not None and session.link.candidate == candidate:
                self._admission.accept(session, candidate)

    def refuse(self, candidate: JoiningAgent, why: str) -> None:
        """Shut out the VM for which an agent without a valid proof of identity has asked to join.

        Args:
            candidate: The agent.
            why: What is wrong with its proof, as the predicate of a sentence.
        """
        with self._lock:
            session = self._sessions.get(candidate.intent)
            if session is not None and session.link.candidate == candidate:
                self._shut_out(session, f"the proof of identity that came with its one-time key {why}")

    def gone(self, intent: str, reason: str) -> None:
        """Record the end of a VM: its processes are lost, and its keys are revoked."""
        with self._lock:
            self._gone.add(intent)
            session = self._sessions.pop(intent, None)
            if session is not None:
                self._lose(session, reason)
                self._admission.revoke(intent)
            self._alarms.forget(intent)

    def heard(self) -> frozenset[str]:
        """Return the intents whose agents sent a message since the last call."""
        with self._lock:
            heard, self._heard = frozenset(self._heard), set()
        return heard

    def renew(self, intent: str, life_s: float) -> bool:
        """Restart a VM's time limit.

        Args:
            intent: Id of the VM's intent.
            life_s: New limit, seconds from now.

        Returns:
            Whether the VM has confirmed; False at once if the VM is silent.
        """
        with self._lock:
            session = self._sessions.get(intent)
            if session is None or not (session.link.address and session.link.route):
                return False
            if self._clock() - session.link.heard_at >= self._silence.limits.doubt_s:
                return False
            session.renewals.requested += 1
            number = session.renewals.requested
            session.link.channel.put(m.Renew(number, life_s))
            return self._lock.wait_for(lambda: session.renewals.confirmed >= number, RENEW_S)

    def move(self, intent: str, to: m.Move) -> None:
        """Have an agent join another leader; nothing is placed on its VM any more. No effect if its VM is gone."""
        with self._lock:
            session = self._sessions.get(intent)
            if session is not None and not session.moved:
                self._lose(session, "was ended: its VM is for another job now")
                session.moved = True
                session.link.channel.put(to)

    def await_moves(self, within_s: float) -> None:
        """Wait until the agents that move have acknowledged that; forgets those that have."""
        with self._lock:
            moved = [one for one in self._sessions.values() if one.moved]
            self._lock.wait_for(lambda: not any(one.link.channel.backlog for one in moved), within_s)
            for session in moved:
                if not session.link.channel.backlog:
                    self.gone(session.spec.intent, "moved")

    def vms(self) -> tuple[AgentStatus, ...]:
        """Return every VM that is expected or has joined, until it is gone."""
        with self._lock:
            now = self._clock()
            return tuple(session.status_at(now) for session in self._sessions.values())

    def alarms(self) -> tuple[str, ...]:
        """Return the alarms for users since the last call."""
        with self._lock:
            return self._alarms.take()

    def close(self) -> None:
        """Send every agent a farewell, and stop. Idempotent."""
        if self._closing.is_set():
            return
        with self._lock:
            for session in self._sessions.values():
                if not session.moved:
                    session.link.channel.put(m.Farewell())
        self._closing.set()
        if self._thread.ident:
            self._thread.join()
        self._files.close()
        with self._lock:
            if self._wakeup >= 0:
                os.close(self._wakeup)
            self._wakeup = -1
        self._socket.close()
        self._archive.close()

    # ---- for the engine ------------------------------------------------------------------------------------

    def free(self, role: Role = "worker") -> tuple[AgentStatus, ...]:
        """Return the VMs that can run another process of a role now: responsive, with room and no preemption notice."""
        return tuple(vm for vm in self.vms() if self._is_free(vm, role))

    def _is_free(self, vm: AgentStatus, role: Role) -> bool:
        able = vm.joined and vm.preemption is None and vm.heard_s_ago < self._silence.limits.doubt_s
        return able and vm.has_room(role)

    def launch(
        self,
        intent: str,
        config: ProcessConfiguration,
        env: dict[str, str],
        command: tuple[str, ...],
        *,
        folder: bool,
    ) -> int:
        """Start a process on a VM.

        Args:
            intent: Id of the VM's intent.
            env: Variables in addition to the agent's own.
            command: Command to run; empty: the training process.
            folder: Whether the process needs the folder of the training code.

        Returns:
            The launch number, which its events carry; 0 if the VM is no longer available.
        """
        with self._lock:
            session = self._sessions.get(intent)
            if session is None:
                return 0
            status = session.status_at(self._clock())
            # whatever else it is, as a tenant of a pool, is what this VM is for
            role: Role = "aggregator" if config.role == "aggregator" else status.spec.role
            if not self._is_free(status, role):
                return 0
            self._launches += 1
            session.launches[self._launches] = config.name
            if config.role in _WITH_FILES:
                session.with_files.add(self._launches)
            sha256 = self._archive.sha256 if folder else ""
            session.link.channel.put(m.Start(self._launches, config, env, sha256, command))
            return self._launches

    def give_up(self, intent: str, launch: int) -> None:
        """Count a process that should end as lost if its VM is silent, even in an outage of the network."""
        with self._lock:
            session, now = self._sessions.get(intent), self._clock()
            if (
                session is None
                or launch not in session.launches
                or now - session.link.heard_at < self._silence.limits.lost_s
            ):
                return
            self._events.record(session, launch, Gone(silent_for(session, now)))
            session.link.channel.put(m.Kill(launch))  # in case the VM comes back
            del session.launches[launch]

    def send(self, intent: str, message: m.AgentMessage) -> None:
        """Send a message to an agent; no effect if its VM is gone."""
        with self._lock:
            if intent in self._sessions:
                self._sessions[intent].link.channel.put(message)

    def share(self, folder: str) -> None:
        """Share a folder of this machine, given by absolute path, for checkpoints; thread-safe."""
        self._files.share(folder)

    def take_events(self) -> list[tuple[int, ProcessEvent]]:
        """Return events of processes since the last call, with launch numbers; shows that the engine is alive."""
        with self._lock:
            return self._events.take(self._sessions.values(), self._clock())

    def unattended(self) -> None:
        """Record that no engine calls `take_events` any more."""
        with self._lock:
            self._events.unattended()

    # ---- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        self._socket.register(poller)
        poller.register(self._wakeup, zmq.POLLIN)
        while True:
            last = self._closing.is_set()
            poller.poll(_TICK_MS)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wakeup)
            with self._lock:
                now = self._clock()
                self._silence.allow_for_pause(self._sessions.values(), now)
                self._socket.answer_connections()
                self._receive(now)
                self._judge_silence(now)
                for session in self._sessions.values():
                    self._send(session, now)
                self._lock.notify_all()
            if last:
                return

    def _judge_silence(self, now: float) -> None:
        """Give up the processes of silent VMs, unless the leader's own network is the likelier cause."""
        alarm, lost = self._silence.judge(self._sessions.values(), now)
        if alarm:
            self._alarms.add(alarm)
        for session in lost:
            if session.launches:
                self._lose(session, silent_for(session, now))

    def _receive(self, now: float) -> None:
        for _ in range(_TURN_MAX):
            received = self._socket.receive()
            if received is None:
                return
            name, route, body = received
            name, _, intent = name.partition(".")
            session = self._sessions.get(intent)
            if session is None:
                continue
            try:
                self._handle_message(session, name, route, body, now)
            except MisbehavedError as error:
                self._shut_out(session, f"it {error}")
            except Exception as error:  # noqa: BLE001 - one VM must not end the server of all
                self._shut_out(session, f"its message cannot be handled: {type(error).__name__}: {error}")

    def _handle_message(
        self, session: AgentSession, name: str, route: bytes, body: bytes, now: float
    ) -> None:
        try:
            message = m.decode(body)
        except MessageError as error:
            self._alarms.add_from(
                session.spec.intent, f"VM {session.spec.intent}: received an invalid message: {error}"
            )
            return
        match name, message:
            case "join", m.Join():
                answer = self._admission.answer(session, message)
                if isinstance(answer, m.Refused):
                    self._alarms.add_from(session.spec.intent, answer.reason)
                if answer is not None:
                    self._socket.send(route, answer)
            case "join", m.Fetch():
                self._socket.send(route, self._package_chunk(session, message.offset))
            case "vm", m.Packet():
                self._handle_packet(session, route, message, now)
            case _:
                pass

    def _package_chunk(self, session: AgentSession, offset: int) -> m.Chunk | m.Refused:
        """A chunk of the package, for whoever has the one-time key of a VM; there is no other file to choose."""
        data = self._package[offset : offset + m.CHUNK_BYTES]
        if not data or session.package_bytes + len(data) > _PACKAGES_MAX * len(self._package):
            return m.Refused("there is no more of the package for this VM")
        session.package_bytes += len(data)
        return m.Chunk(offset, len(self._package), data)

    def _handle_packet(self, session: AgentSession, route: bytes, packet: m.Packet, now: float) -> None:
        session.link.route, session.link.heard_at = route, now
        self._heard.add(session.spec.intent)
        if self._events.is_full(session):  # the agent resends them after the engine has taken events
            packet = m.Packet(0, packet.heard)
        message = session.link.channel.take(packet, now)
        if message is not None:
            self._handle(session, message, now)

    def _handle(self, session: AgentSession, message: m.AgentMessage, now: float) -> None:
        """Handle an agent's message.

        Raises:
            MisbehavedError: If the message breaks the protocol.
        """
        if session.link.channel.backlog > _BACKLOG_MAX:
            raise MisbehavedError("asks for more than it takes")
        match message:
            case m.Hello() if not session.link.address:
                with contextlib.suppress(ValueError):
                    session.link.address = str(ipaddress.ip_address(message.address))
                session.link.machine = MachineSize(message.cpus, message.memory_bytes, message.bytes_per_s)
                session.link.node = message.node
            case m.Placed() | m.Report() if message.launch in session.launches:
                self._events.record(session, message.launch, message)
                if isinstance(message, m.Report) and message.status is not None:
                    del session.launches[message.launch]
            case m.Fetch():
                if message.offset >= self._archive.bytes:
                    raise MisbehavedError("asks for what is not in the folder of the training code")
                if session.link.channel.unacknowledged(m.Chunk) >= _CHUNKS_MAX:
                    raise MisbehavedError("asks for the folder of the training code faster than it takes it")
                data = self._archive.read(message.offset, m.CHUNK_BYTES)
                session.link.channel.put(m.Chunk(message.offset, self._archive.bytes, data))
            case m.FileAsk():
                self._files.ask(session.spec.intent, message.number, message.body)
            case m.FileEnd():
                self._files.end(session.spec.intent, message.number)
            case m.Preemption():
                self._preempt(session, message, now)
            case m.Renewed():
                if message.error:
                    self._alarms.add_from(
                        session.spec.intent,
                        f"VM {session.spec.intent}: its time limit cannot be restarted: {message.error}",
                    )
                else:
                    session.renewals.confirmed = max(session.renewals.confirmed, message.number)
            case m.Ending():
                session.ending = message.reason
            case m.Warned():
                self._alarms.add_from(session.spec.intent, f"VM {session.spec.intent}: {message.text}")
            case _:
                pass

    def _send(self, session: AgentSession, now: float) -> None:
        reachable = now - session.link.heard_at <= self._silence.limits.lost_s
        if session.link.route and reachable and not self._events.engine_hangs(now):
            for packet in session.link.channel.due(now):
                self._socket.send(session.link.route, packet)

    def _lose(self, session: AgentSession, reason: str) -> None:
        for launch in session.launches:
            self._events.record(session, launch, Gone(session.ending or reason))
            session.link.channel.put(m.Kill(launch))  # in case the VM comes back
        session.launches.clear()
        self._files.lose(session.spec.intent)

    def give_notice(self, intent: str, in_s: float, reason: str) -> None:
        """Have the processes of a VM leave it in so many seconds, as if its cloud took it back then; once."""
        with self._lock:
            session = self._sessions.get(intent)
            if session is not None and session.preemption is None:
                self._preempt(session, m.Preemption(in_s, reason), self._clock())

    def _preempt(self, session: AgentSession, notice: m.Preemption, now: float) -> None:
        session.preemption = notice, now
        for launch in session.launches:
            self._events.record(session, launch, notice)

    def _shut_out(self, session: AgentSession, why: str) -> None:
        """Exclude a VM: its processes are lost, it gets no answers, and it counts as about to end."""
        self._alarms.add(f"VM {session.spec.intent} ({session.link.address}) is shut out: {why}")
        session.ending, session.shut_out = "", True
        session.preemption = m.Preemption(0.0, f"its VM was shut out: {why}"), self._clock()
        self._lose(session, f"was lost: its VM ({session.link.address}) was shut out: {why}")
        self._admission.revoke(session.spec.intent)
        session.link.route, session.link.channel, session.link.candidate = b"", Channel(), None

    # ---- for the leader's files ----------------------------------------------------------------------------

    def _may_have_files(self, intent: str, launch: int) -> bool:
        with self._lock:
            session = self._sessions.get(intent)
            return session is not None and launch in session.launches and launch in session.with_files

    def _answer(self, intent: str, number: int, body: bytes) -> None:
        with self._lock:
            self.send(intent, m.FileAnswer(number, body))
            if self._wakeup >= 0:
                os.eventfd_write(self._wakeup, 1)
