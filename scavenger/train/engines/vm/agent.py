"""The agent on a VM: joins the leader, runs processes on its order, and ends them when the leader is gone.

The agent opens all connections itself. It stores nothing: it generates its keys at its start and never writes them to
a file, and the one-time key for joining is useless afterwards.
"""

from __future__ import annotations

import os
import queue
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import psutil
import zmq

from scavenger.domain.boot import NO_ANSWER, NODE, REFUSED
from scavenger.errors import ConfigurationError
from scavenger.train.checkpoints.remote_folder import VARIABLE
from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.file_proxy import FileProxy
from scavenger.train.engines.vm.job_folder import JobFolder
from scavenger.train.engines.vm.leader_line import LeaderConnection
from scavenger.train.engines.vm.process_runner import ProcessRunner
from scavenger.train.engines.vm.values import LEADER_SILENT_S
from scavenger.train.transport.sockets import address_towards

POWEROFF_S = 300.0
"""Silence of the leader after which the VM ends: the leader will not come back, or has replaced the VM."""
JOIN_S = 180.0
"""Time without an answer after which a VM that has not joined ends: nobody can use it, and its user pays for it."""
_TICK_MS = 50
_PAUSE_S = 5.0
"""Longest time between two polls; after a longer pause of the VM, silence is not held against the leader."""
_COMMAND_S = 30.0
_GRACE_S = 3.0
_LAST_WORDS_S = 5.0
_REPORT_MAX = 2000
"""Characters of a message to the leader."""
_BACKLOG_MAX = 32
"""Words on the line at which logs wait."""

_Key = Annotated[str, msgspec.Meta(min_length=40, max_length=40)]


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent needs to join its leader.

    Attributes:
        endpoint: Endpoint of the leader, `tcp://host:port`.
        server_key: The leader's public key, Z85.
        intent: Id of the VM's intent.
        secret: The secret one-time key, Z85.
        provider: Cloud provider of the VM.
        renew: Command that restarts the VM's time limit; it gets the seconds in `SCAVENGER_LIFE_S`.
        poweroff: Command that shuts down the VM.
    """

    endpoint: Annotated[str, msgspec.Meta(pattern=r"^tcp://[^\s/]+:\d{1,5}\Z")]
    server_key: _Key
    intent: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
    secret: _Key
    provider: str
    renew: str = "systemctl restart scavenger-limit.timer"
    poweroff: str = "systemctl poweroff"

    def __repr__(self) -> str:
        return f"Ticket({self.intent} to {self.endpoint})"  # never the key


def read_ticket(path: Path) -> Ticket:
    """Read a join file, then remove it.

    Raises:
        ConfigurationError: If the file is invalid; the message does not quote its content.
    """
    try:
        data = path.read_bytes()
        path.unlink()
        ticket = msgspec.json.decode(data, type=Ticket)
        zmq.curve_public(ticket.secret.encode())
        if not (shlex.split(ticket.renew) and shlex.split(ticket.poweroff)):
            raise ValueError("an empty command")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except (ValueError, zmq.ZMQError) as error:  # including msgspec's errors, which name only the field
        raise ConfigurationError(f"{path}: not how to join a leader: {error}") from None
    return ticket


class Agent:
    """The agent of one VM. Other threads and handlers may call `report_preemption`, `warn`, `end`.

    Args:
        ticket: What the agent needs to join.
        folder: A private folder, in which the agent leaves nothing behind.
        show: Called with lines for users.
        identify: Returns the cloud's proof that the holder of a public key (Z85) is on this VM; empty for none.
        silent_s: Silence of the leader after which processes end.
        poweroff_s: Silence of the leader after which the VM ends.
        join_s: Time without an answer after which the VM ends if it has not joined.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        ticket: Ticket,
        folder: Path,
        *,
        show: Callable[[str], None] = lambda line: print(line, flush=True),
        identify: Callable[[str], str] = lambda public_key: "",
        silent_s: float = LEADER_SILENT_S,
        poweroff_s: float = POWEROFF_S,
        join_s: float = JOIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ticket, self._show, self._clock = ticket, show, clock
        self._identify = identify
        self._silent_s, self._poweroff_s, self._join_s = silent_s, poweroff_s, join_s
        self._parent = folder
        self._prepare()
        self._notices: queue.SimpleQueue[m.Preemption | m.Warned | m.Ending] = queue.SimpleQueue()
        self._renewals: list[tuple[int, float, subprocess.Popen[bytes]]] = []
        self._turned_at = clock()
        self._ends_at: float | None = None
        self._status: int | None = None

    def _prepare(self) -> None:
        """Have all that belongs to one leader anew: keys, connection, folder and processes."""
        ticket = self._ticket
        self._directory = Path(tempfile.mkdtemp(prefix="scavenger-vm-", dir=self._parent))
        self._leader = LeaderConnection(
            ticket.endpoint, ticket.server_key, ticket.secret, show=self._show, now=self._clock()
        )
        self._runner = ProcessRunner(self._leader.channel.put)
        self._file_proxy = FileProxy(self._directory, self._leader.channel.put)
        self._folder = JobFolder(self._directory, self._runner, self._leader.channel.put)
        self._stopped = False

    def _open(self) -> None:
        self._file_proxy.open()
        self._leader.identity = self._identify(self._leader.public_key)
        self._leader.open(self._clock())

    def _leave(self) -> None:
        """End all that belongs to the leader."""
        self._runner.close()
        self._file_proxy.close()
        self._leader.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    # ---- other threads -------------------------------------------------------------------------------------

    def report_preemption(self, in_s: float | None, reason: str) -> None:
        """Pass on a preemption notice: the VM ends in `in_s` seconds; None if no time is set."""
        self._notices.put(m.Preemption(None if in_s is None else max(0.0, in_s), reason))

    def warn(self, text: str) -> None:
        """Send the leader a warning for users."""
        self._notices.put(m.Warned(text[:_REPORT_MAX]))

    @property
    def busy(self) -> bool:
        """Whether a process runs here."""
        return self._runner.busy

    def end(self, reason: str) -> None:
        """Report the end to the leader, end all processes and return from `run`."""
        self._notices.put(m.Ending(reason))

    # ---- the loop ------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until asked to end or the leader is gone; return the exit status."""
        try:
            self._open()
            while self._status is None:
                self._serve_once()
        except Exception as error:
            self._report_failure(f"its agent failed: {type(error).__name__}: {error}"[:_REPORT_MAX])
            raise
        finally:
            for _, _, process in self._renewals:
                process.kill()
                process.wait()
            self._leave()
        return self._status

    def _report_failure(self, reason: str) -> None:
        """Send the leader the reason of this agent's end, which nobody could learn from its VM afterwards."""
        self._show(reason)
        self._runner.close()
        if not self._leader.joined:
            return
        self._leader.channel.put(m.Warned(reason))
        self._leader.channel.put(m.Ending(reason))
        until = self._clock() + _LAST_WORDS_S
        while self._leader.channel.backlog and self._clock() < until:
            self._leader.send_due(self._clock())
            self._leader.wait(timeout_s=_TICK_MS / 1000)
            while (message := self._leader.receive()) is not None:
                if isinstance(message, m.Packet):
                    self._leader.take(message, self._clock())

    def _serve_once(self) -> None:
        self._leader.wait(self._file_proxy, timeout_s=_TICK_MS / 1000)
        now = self._clock()
        if now - self._turned_at > _PAUSE_S:
            self._leader.heard_at += now - self._turned_at
        self._turned_at = now
        self._receive(now)
        while not self._notices.empty():
            self._pass_on(self._notices.get(), now)
        self._file_proxy.step()
        self._runner.step(now, room=self._leader.channel.backlog < _BACKLOG_MAX)
        self._look_at_renewals(now)
        self._leader.send_due(now)
        if self._leader.joined:
            self._watch_leader(now)
        elif now - self._leader.heard_at > self._join_s:
            self._show(f"{NO_ANSWER} at {self._ticket.endpoint} for {self._join_s:.0f} s: this VM ends")
            self._power_off(1)
        if self._ends_at is not None:
            reported = not self._runner.busy and (
                self._leader.channel.backlog == 0 or not self._leader.joined
            )
            if reported or now > self._ends_at:
                self._status = 0 if self._status is None else self._status

    def _watch_leader(self, now: float) -> None:
        silent_s = now - self._leader.heard_at
        if silent_s > self._silent_s and self._runner.busy and not self._stopped:
            self._stopped = True
            self._show(f"the leader has been silent for {silent_s:.0f} s: what runs here ends")
            self._runner.stop_all(_GRACE_S, now, "its VM had no contact with the leader for too long")
        if silent_s > self._poweroff_s:
            self._show(f"the leader has been silent for {silent_s:.0f} s: this VM ends")
            self._power_off()

    # ---- what the leader orders ----------------------------------------------------------------------------

    def _receive(self, now: float) -> None:
        while self._status is None:
            message = self._leader.receive()
            match message:
                case None:
                    return
                case m.Admitted() if not self._leader.joined:
                    self._leader.enter(now)
                    self._leader.channel.put(_hello(address_towards(self._ticket.endpoint)))
                    self._show(f"joined {self._ticket.endpoint}")
                case m.Refused() if not self._leader.joined:
                    self._show(f"{REFUSED}: {message.reason}")
                    self._power_off(1)
                case m.Packet() if self._leader.joined:
                    self._stopped = False
                    inner = self._leader.take(message, now)
                    if inner is not None:
                        self._handle(inner, now)
                case _:
                    pass

    def _handle(self, message: m.AgentMessage, now: float) -> None:
        match message:
            case m.Start():
                self._start(message)
            case m.Kill():
                self._folder.forget(message.launch)
                self._runner.kill(message.launch)
            case m.Stop():
                self._folder.forget(message.launch)
                self._runner.stop(message.launch, message.grace_s, now)
            case m.ShowStack():
                self._runner.show_stack(message.launch)
            case m.Chunk():
                self._folder.receive(message)
            case m.FileAnswer():
                self._file_proxy.answer(message)
            case m.Renew():
                self._renew(message, now)
            case m.Farewell():
                self._show("the leader has ended: this VM ends")
                self._power_off()
            case m.Move() if self._ends_at is None:
                self._move(message, now)
            case _:
                pass

    def _start(self, order: m.Start) -> None:
        env = {**order.env, VARIABLE: f"{order.launch}@{self._file_proxy.path}"}
        order = msgspec.structs.replace(order, env=env)
        if self._ends_at is not None:
            self._runner.refuse(order.launch, "its VM is ending")
        elif not order.folder:
            self._runner.start(order, None)
        else:
            self._folder.start(order)

    def _move(self, order: m.Move, now: float) -> None:
        """Leave this leader for another; if that one does not answer, the VM ends as one that was not admitted."""
        self._show(f"moves to {order.endpoint}")
        self._leader.send_due(now)  # acknowledges the order
        self._leave()
        self._ticket = msgspec.structs.replace(
            self._ticket,
            endpoint=order.endpoint,
            server_key=order.server_key,
            intent=order.intent,
            secret=order.secret,
        )
        self._prepare()
        self._open()

    # ---- the VM --------------------------------------------------------------------------------------------

    def _pass_on(self, message: m.Preemption | m.Warned | m.Ending, now: float) -> None:
        self._show(msgspec.json.encode(message).decode())
        self._leader.channel.put(message)
        if isinstance(message, m.Ending) and self._ends_at is None:
            self._ends_at = now + _GRACE_S + _LAST_WORDS_S
            self._runner.stop_all(_GRACE_S, now, message.reason)

    def _renew(self, order: m.Renew, now: float) -> None:
        try:
            process = subprocess.Popen(
                shlex.split(self._ticket.renew),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "SCAVENGER_LIFE_S": f"{order.life_s:.0f}"},
            )
        except OSError as error:
            self._leader.channel.put(m.Renewed(order.number, str(error)))
            return
        self._renewals.append((order.number, now, process))

    def _look_at_renewals(self, now: float) -> None:
        for renewal in list(self._renewals):
            number, began_at, process = renewal
            if process.poll() is None and now - began_at < _COMMAND_S:
                continue
            process.kill()
            status = process.wait()
            error = "" if status == 0 else f"`{self._ticket.renew}` ended with status {status}"
            self._leader.channel.put(m.Renewed(number, error))
            self._renewals.remove(renewal)

    def _power_off(self, status: int = 0) -> None:
        """Shut down the VM by its own command; the service that started the agent does the same afterwards."""
        self._status = status
        self._runner.close()  # at once: training must end even if the VM does not
        try:
            subprocess.run(
                shlex.split(self._ticket.poweroff),
                stdin=subprocess.DEVNULL,
                check=True,
                timeout=_COMMAND_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._show(f"this VM cannot be ended from here: {error}")


def _hello(address: str) -> m.Hello:
    """Tell this machine's address and what it has."""
    speeds = {name: found.speed for name, found in psutil.net_if_stats().items()}  # Mbit/s
    interfaces = [
        name for name, found in psutil.net_if_addrs().items() if address in {one.address for one in found}
    ]
    mbit_per_s = max((speeds.get(name, 0) for name in interfaces), default=0)
    return m.Hello(
        address,
        len(os.sched_getaffinity(0)),
        psutil.virtual_memory().total,
        max(0, mbit_per_s) * 1_000_000 // 8,
        os.environ.get(NODE, ""),
    )
