"""What runs on a VM: joins the leader, runs the processes that it orders, and ends them when the leader is gone.

Every connection goes out from here. Nothing that the agent holds lasts: its keys are made at its start and never
written down, and the key that it joins with is good for nothing afterwards.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import zmq

from scavenger import __version__
from scavenger.errors import ConfigurationError
from scavenger.train.checkpoints.remote_folder import VARIABLE
from scavenger.train.engines.vm import messages as m
from scavenger.train.engines.vm.channel import Channel
from scavenger.train.engines.vm.file_proxy import FileProxy
from scavenger.train.engines.vm.job_archive import unpack
from scavenger.train.engines.vm.process_runner import ProcessRunner
from scavenger.train.transport.sockets import address_towards, new_keys

__all__ = ["Agent", "Ticket", "read_ticket"]

SILENT_S = 120.0
"""Silence of the leader after which nothing trains any more: what it would push is refused by then."""
POWEROFF_S = 300.0
"""Silence after which the VM is given up: its leader will not come back, or has replaced it."""
_TICK_MS = 50
_JOIN_S, _JOIN_MAX_S = 1.0, 15.0
"""Between two times of asking to be let in, at first and at most."""
_CONNECT_S = 10.0
"""Silence after which a connection is made anew: it may have broken without a word."""
_PAUSE_S = 5.0
"""Between two looks; if more, the VM stood still, and nobody was silent."""
_COMMAND_S = 30.0
_GRACE_S = 3.0
_LAST_WORDS_S = 5.0
_BACKLOG_MAX = 32
"""Words on the line at which logs wait."""

_Key = Annotated[str, msgspec.Meta(min_length=40, max_length=40)]


class Ticket(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to join.

    Attributes:
        endpoint: Of the leader, `tcp://host:port`.
        server_key: The leader's public key, Z85.
        intent: The id of the VM's intent.
        secret: The secret one-time key, Z85.
        provider: Whose VM this is.
        renew: What starts the VM's time limit anew; finds the seconds in `SCAVENGER_LIFE_S`.
        poweroff: What ends the VM.
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
        ConfigurationError: If it is none; it says nothing of what stands in it.
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
    except (ValueError, zmq.ZMQError) as error:  # msgspec's among them, which name the field alone
        raise ConfigurationError(f"{path}: not how to join a leader: {error}") from None
    return ticket


@dataclass(slots=True)
class _Folder:
    """The job's folder on its way here."""

    sha256: str
    waiting: list[m.Start] = field(default_factory=list)
    told: list[m.Tell] = field(default_factory=list)
    ready: Path | None = None


class Agent:
    """One VM's. `run` owns the thread; `doom`, `warn` and `end` may be called from any other, and from handlers.

    Args:
        ticket: How to join.
        folder: A private one, which the agent empties at its end.
        say: Where lines for a person go.
        silent_s: Silence of the leader after which processes end.
        poweroff_s: Silence of the leader after which the VM does.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        ticket: Ticket,
        folder: Path,
        *,
        say: Callable[[str], None] = lambda line: print(line, flush=True),
        silent_s: float = SILENT_S,
        poweroff_s: float = POWEROFF_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ticket, self._say, self._clock = ticket, say, clock
        self._silent_s, self._poweroff_s = silent_s, poweroff_s
        self._place = Path(tempfile.mkdtemp(prefix="scavenger-vm-", dir=folder))
        self._context = zmq.Context()
        one_time = ticket.secret.encode()
        self._one_time = (zmq.curve_public(one_time), one_time)
        self._own = new_keys()
        self._socket: Any = None
        self._joined = False
        self._channel = Channel()
        self._work = ProcessRunner(self._channel.put)
        self._relay = FileProxy(self._place, self._channel.put)
        self._outside: queue.SimpleQueue[m.Doom | m.Warned | m.Ending] = queue.SimpleQueue()
        self._renewals: list[tuple[int, float, subprocess.Popen[bytes]]] = []
        self._folder: _Folder | None = None
        now = clock()
        self._heard_at = self._connected_at = self._turned_at = now
        self._ask_at, self._pause_s = now, _JOIN_S
        self._gave_up = False
        self._ends_at: float | None = None
        self._status: int | None = None

    # ---- from outside --------------------------------------------------------------------------------------

    def doom(self, in_s: float | None, reason: str) -> None:
        """The cloud has told of the VM's end, in so many seconds; None where no time is set."""
        self._outside.put(m.Doom(None if in_s is None else max(0.0, in_s), reason))

    def warn(self, text: str) -> None:
        """Tell the leader what a person should know."""
        self._outside.put(m.Warned(text[:2000]))

    def end(self, reason: str) -> None:
        """Tell the leader of the end, and come to it."""
        self._outside.put(m.Ending(reason))

    # ---- the loop ------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until told to end, or the leader is gone; the exit status."""
        try:
            self._connect()
            while self._status is None:
                self._turn()
        finally:
            self._work.close()
            self._relay.close()
            for _, _, process in self._renewals:
                process.kill()
                process.wait()
            if self._socket is not None:
                self._socket.close()
            self._context.term()
            shutil.rmtree(self._place, ignore_errors=True)
        return self._status

    def _turn(self) -> None:
        zmq.select([self._socket, self._relay], [], [], _TICK_MS / 1000)
        now = self._clock()
        if now - self._turned_at > _PAUSE_S:
            self._heard_at += now - self._turned_at
        self._turned_at = now
        self._take(now)
        while not self._outside.empty():
            self._from_outside(self._outside.get(), now)
        self._relay.step()
        self._work.step(now, room=self._channel.backlog < _BACKLOG_MAX)
        self._look_at_renewals(now)
        self._speak(now)
        if self._joined:
            self._watch_leader(now)
        if self._ends_at is not None:
            told = not self._work.busy and (self._channel.backlog == 0 or not self._joined)
            if told or now > self._ends_at:
                self._status = 0 if self._status is None else self._status

    def _watch_leader(self, now: float) -> None:
        silent_s = now - self._heard_at
        if silent_s > self._silent_s and self._work.busy and not self._gave_up:
            self._gave_up = True
            self._say(f"the leader has been silent for {silent_s:.0f} s: what runs here ends")
            self._work.stop_all(_GRACE_S, now, "its VM had not heard of the leader for too long")
        if silent_s > self._poweroff_s:
            self._say(f"the leader has been silent for {silent_s:.0f} s: this VM ends")
            self._power_off()

    # ---- the line ------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.setsockopt(zmq.MAXMSGSIZE, m.MESSAGE_BYTES_MAX)
        self._socket.curve_serverkey = self._ticket.server_key.encode()
        keys = self._own if self._joined else self._one_time
        self._socket.curve_publickey, self._socket.curve_secretkey = keys
        self._socket.connect(self._ticket.endpoint)
        self._connected_at = self._clock()

    def _speak(self, now: float) -> None:
        quiet_since = max(self._heard_at, self._connected_at) if self._joined else self._connected_at
        if now - quiet_since > _CONNECT_S:
            self._connect()
        if self._joined:
            for packet in self._channel.due(now):
                self._post(packet)
        elif now >= self._ask_at:
            self._post(m.Join(m.PROTOCOL, __version__, self._own[0].decode()))
            self._ask_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, _JOIN_MAX_S)

    def _post(self, message: m.Wire) -> None:
        with contextlib.suppress(zmq.Again):  # there is no connection: it is said again
            self._socket.send(m.encode(message), zmq.NOBLOCK)

    def _take(self, now: float) -> None:
        while self._status is None:
            try:
                message = m.decode(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            except msgspec.DecodeError as error:
                self._say(f"dropped what is no message: {error}")
                continue
            match message:
                case m.Admitted() if not self._joined:
                    self._joined, self._heard_at = True, now
                    self._connect()
                    self._channel.put(m.Hello(address_towards(self._ticket.endpoint)))
                    self._say(f"joined {self._ticket.endpoint}")
                case m.Refused() if not self._joined:
                    self._say(f"refused: {message.reason}")
                    self._power_off(1)
                case m.Packet() if self._joined:
                    self._heard_at, self._gave_up = now, False
                    word = self._channel.take(message, now)
                    if word is not None:
                        self._obey(word, now)
                case _:
                    pass

    def _obey(self, word: m.Word, now: float) -> None:
        match word:
            case m.Start():
                self._start(word)
            case m.Kill():
                self._forget(word.launch)
                self._work.kill(word.launch)
            case m.Stop():
                self._forget(word.launch)
                self._work.stop(word.launch, word.grace_s, now)
            case m.Tell() if self._folder is not None and self._folder.ready is None:
                self._folder.told.append(word)
            case m.Tell():
                self._work.tell(word.launch, word.line)
            case m.ShowStack():
                self._work.show_stack(word.launch)
            case m.Chunk():
                self._receive(word)
            case m.FileAnswer():
                self._relay.answer(word)
            case m.Renew():
                self._renew(word, now)
            case m.Farewell():
                self._say("the leader has ended: this VM ends")
                self._power_off()
            case _:
                pass

    # ---- processes and their folder ------------------------------------------------------------------------

    def _start(self, order: m.Start) -> None:
        env = {**order.env, VARIABLE: f"{order.launch}@{self._relay.path}"}
        order = msgspec.structs.replace(order, env=env)
        if self._ends_at is not None:
            self._work.refuse(order.launch, "its VM is ending")
        elif not order.folder:
            self._work.start(order, None)
        elif self._folder is None:
            self._folder = _Folder(order.folder, [order])
            (self._place / "job.tar").touch()
            self._channel.put(m.Fetch(0))
        elif self._folder.ready is None:
            self._folder.waiting.append(order)
        else:
            self._work.start(order, self._folder.ready)

    def _forget(self, launch: int) -> None:
        """One that still waits for its folder will not be started."""
        waiting = [] if self._folder is None else self._folder.waiting
        for order in [order for order in waiting if order.launch == launch]:
            waiting.remove(order)
            self._work.refuse(launch, "")

    def _receive(self, chunk: m.Chunk) -> None:
        folder, archive = self._folder, self._place / "job.tar"
        if folder is None or folder.ready is not None:
            return
        try:
            with archive.open("rb+") as file:
                file.seek(chunk.offset)
                file.write(chunk.data)
            end = chunk.offset + len(chunk.data)
            if end < chunk.total and chunk.data:
                self._channel.put(m.Fetch(end))
                return
            target = self._place / "job"
            target.mkdir(exist_ok=True)
            unpack(archive, folder.sha256, target)
            archive.unlink()
        except (OSError, ValueError, tarfile.TarError) as error:
            self._folder = None  # the next process has it fetched again
            for order in folder.waiting:
                self._work.refuse(order.launch, f"the job's folder did not come to its VM: {error}")
            return
        folder.ready = target
        for order in folder.waiting:
            self._work.start(order, target)
        for word in folder.told:
            self._work.tell(word.launch, word.line)
        folder.waiting.clear()
        folder.told.clear()

    # ---- the VM --------------------------------------------------------------------------------------------

    def _from_outside(self, word: m.Doom | m.Warned | m.Ending, now: float) -> None:
        self._say(msgspec.json.encode(word).decode())
        self._channel.put(word)
        if isinstance(word, m.Ending) and self._ends_at is None:
            self._ends_at = now + _GRACE_S + _LAST_WORDS_S
            self._work.stop_all(_GRACE_S, now, word.reason)

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
            self._channel.put(m.Renewed(order.number, str(error)))
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
            self._channel.put(m.Renewed(number, error))
            self._renewals.remove(renewal)

    def _power_off(self, status: int = 0) -> None:
        """End the VM, by its own command; whoever started the agent does so too when it has ended."""
        self._status = status
        self._work.close()  # at once: training must not outlive the order if the VM does
        try:
            subprocess.run(
                shlex.split(self._ticket.poweroff),
                stdin=subprocess.DEVNULL,
                check=True,
                timeout=_COMMAND_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._say(f"this VM cannot be ended from here: {error}")
