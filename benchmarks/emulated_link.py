"""A link between two hosts, emulated: rate, delay and a bounded queue in each direction, on kernels without netem.

`python -m benchmarks.emulated_link SPACE SPACE --addresses A B --rate BITS_PER_S --round_trip SECONDS --queue BYTES`,
as root, joins two network namespaces, of which the first may be empty for this process's own: each gets a TUN device,
and this process carries packets from one to the other. It is driven by lines on its standard input: `down` and `up`
break and restore the link (packets are lost, and nobody is told), and a number is its rate from then on, bits a second.
It answers each with a line of JSON, and ends with its input.

TCP hands over up to 64 kB at once to be cut into segments by the device, and gets as much put together, as with
network cards: so the process can carry 1 Gbit/s, while TCP's windows still grow by segments of the link's MTU. What a
packet takes on the link is computed from its segments, with the framing of Ethernet.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

MTU = 1500
_FRAMING_BYTES = 38
"""Of Ethernet, for each segment: header, check sequence, preamble and gap."""
_PACKET_BYTES_MAX = 1 << 17
_TURN_PACKETS = 32
_NET_HEADER = struct.Struct("=BBHHHH")
"""`struct virtio_net_hdr`: flags, kind of segmentation, sizes of headers and segments, start and place of the sum."""
_SET_INTERFACE, _SET_OFFLOAD = 0x400454CA, 0x400454D0  # TUNSETIFF, TUNSETOFFLOAD
_TUN, _NO_INFORMATION, _WITH_NET_HEADER = 0x0001, 0x1000, 0x4000
_CHECKSUM_AND_TCP = 0x01 | 0x02 | 0x04
_NUMBERS = itertools.count()


def wire_bytes(packet: bytes) -> int:
    """Return what a packet, behind its `virtio_net_hdr`, takes on an Ethernet: its segments with their framing."""
    at = _NET_HEADER.size
    size = len(packet) - at
    kind, _, segment = map(int, _NET_HEADER.unpack_from(packet)[1:4])
    if not kind or not segment:
        return size + _FRAMING_BYTES
    # of a packet that is passed on, the length of headers that it names is that of what lies in one piece
    internet = 4 * (packet[at] & 0x0F)
    header = internet + 4 * (packet[at + internet + 12] >> 4)
    count = -(-(size - header) // segment)
    return size + (count - 1) * header + count * _FRAMING_BYTES


@dataclass(slots=True)
class Lane:
    """One direction of a link.

    Args:
        rate: Bytes per second.
        delay_s: From the end of a packet's sending to its arrival.
        queue_bytes: What may wait to be sent; more is lost.
    """

    rate: float
    delay_s: float
    queue_bytes: int
    _free_at: float = 0.0

    def send(self, now: float, size: int) -> float | None:
        """Return when a packet of `size` bytes that comes now arrives; None if it is lost."""
        begin = max(now, self._free_at)
        if (begin - now) * self.rate + size > self.queue_bytes:
            return None
        self._free_at = begin + size / self.rate
        return self._free_at + self.delay_s


class _End:
    """A TUN device in a namespace, and the lane that leads away from it."""

    def __init__(self, name: str, space: str, address: str, lane: Lane, congestion: str) -> None:
        self.lane, self.way = lane, deque[tuple[float, bytes]]()
        self.bytes = self.lost = 0
        self._fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        flags = _TUN | _NO_INFORMATION | _WITH_NET_HEADER
        fcntl.ioctl(self._fd, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), flags))
        fcntl.ioctl(self._fd, _SET_OFFLOAD, _CHECKSUM_AND_TCP)
        within = ("-n", space) if space else ()
        if space:
            _run("ip", "link", "set", name, "netns", space)
        _run("ip", *within, "addr", "add", f"{address}/24", "dev", name)
        _run("ip", *within, "link", "set", name, "mtu", str(MTU), "up")
        if congestion:
            route = (f"{address.rpartition('.')[0]}.0/24", "dev", name, "src", address)
            _run("ip", *within, "route", "change", *route, "congctl", congestion)

    def fileno(self) -> int:
        return self._fd

    def take(self, *, is_up: bool) -> None:
        """Take what the namespace sends onto the lane, or lose it."""
        for _ in range(_TURN_PACKETS):
            try:
                packet = os.read(self._fd, _PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            size = wire_bytes(packet)
            at = self.lane.send(time.monotonic(), size) if is_up else None
            if at is None:
                self.lost += 1
                continue
            self.bytes += size
            self.way.append((at, packet))

    def deliver(self, far: _End) -> None:
        """Hand over what has arrived at the far end."""
        while self.way and self.way[0][0] <= time.monotonic():
            try:
                os.write(far.fileno(), self.way.popleft()[1])
            except OSError:  # the device does not take it, as while it is down
                self.lost += 1


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def _carry(ends: tuple[_End, _End]) -> None:
    """Carry packets until the input ends."""
    near, far = ends
    is_up = True
    while True:
        due = min((end.way[0][0] for end in ends if end.way), default=None)
        wait_s = None if due is None else max(0.0, due - time.monotonic())
        ready, _, _ = select.select((near, far, sys.stdin), (), (), wait_s)
        if sys.stdin in ready:
            word = sys.stdin.readline().strip()
            if not word:
                return
            is_up = word == "up" or (is_up and word != "down")
            for end in ends if word.replace(".", "", 1).isdigit() else ():
                end.lane.rate = float(word) / 8
            counts = [{"bytes": end.bytes, "lost": end.lost} for end in ends]
            print(json.dumps({"at_s": time.monotonic(), "ends": counts}), flush=True)
        for end in (near, far):
            if end in ready:
                end.take(is_up=is_up)
        near.deliver(far)
        far.deliver(near)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spaces", nargs=2)
    parser.add_argument("--addresses", nargs=2, required=True)
    parser.add_argument("--rate", type=float, required=True, help="bits a second")
    parser.add_argument("--round_trip", type=float, required=True, help="seconds")
    parser.add_argument("--queue", type=int, required=True, help="bytes")
    parser.add_argument("--congestion", default="", help="congestion control of TCP")
    options = parser.parse_args()
    near, far = (
        _End(
            f"scavt{os.getpid()}{side}",
            space,
            address,
            Lane(options.rate / 8, options.round_trip / 2, options.queue),
            options.congestion,
        )
        for side, space, address in zip("ab", options.spaces, options.addresses, strict=True)
    )
    print("ready", flush=True)
    _carry((near, far))


# ---- for those who need one --------------------------------------------------------------------------------


class EmulatedLink:
    """Two namespaces and the process that joins them.

    Attributes:
        spaces: Names of the namespaces; empty for this process's own.
        addresses: Of the two ends.
    """

    def __init__(
        self, spaces: tuple[str, str], addresses: tuple[str, str], process: subprocess.Popen[str]
    ) -> None:
        self.spaces, self.addresses, self._process = spaces, addresses, process

    def within(self, end: int) -> tuple[str, ...]:
        """What a command begins with that is to run at an end."""
        return ("ip", "netns", "exec", self.spaces[end]) if self.spaces[end] else ()

    def down(self) -> None:
        """From now on nothing gets through, and nobody is told."""
        self._say("down")

    def up(self) -> None:
        """Carry packets again."""
        self._say("up")

    def throttle(self, rate_bits_per_s: float) -> None:
        """From now on the link has another rate."""
        self._say(f"{rate_bits_per_s:f}")

    def carried(self) -> tuple[int, int]:
        """The bytes that each end has sent, with all headers."""
        near, far = json.loads(self._say("count"))["ends"]
        return near["bytes"], far["bytes"]

    def _say(self, word: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


@contextmanager
def emulated_link(
    *,
    rate_bits_per_s: float = 1e9,
    round_trip_s: float = 0.02,
    queue_bytes: int = 5 << 20,
    from_here: bool = False,
    at: str = "",
    congestion: str = "cubic",
) -> Iterator[EmulatedLink]:
    """Make two namespaces and a link between them.

    Args:
        rate_bits_per_s, round_trip_s: Of the link.
        queue_bytes: What waits at each end, beyond which packets are lost; by default two products of the default rate
            and round trip.
        from_here: Whether the first end is this process's own namespace.
        at: A namespace that exists, which is the first end; empty for a new one.
        congestion: How TCP finds its rate, where most systems take cubic; empty for what this one takes.

    Raises:
        OSError, subprocess.CalledProcessError: If that is not possible here.
    """
    number = next(_NUMBERS)
    tag = f"scavl{os.getpid() % 100_000}{chr(ord('a') + number % 26)}"
    spaces = "" if from_here else at or f"{tag}a", f"{tag}b"
    made = [space for space in spaces if space and space != at]
    network = f"10.{214 + number % 32}.{os.getpid() % 254}."
    addresses = f"{network}1", f"{network}2"
    process: subprocess.Popen[str] | None = None
    try:
        for space in made:
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "set", "lo", "up")
        process = subprocess.Popen(
            [
                *("nice", "-n", "-10"),  # what it is late by would count as the link's delay
                *(sys.executable, "-m", "benchmarks.emulated_link", *spaces, "--addresses", *addresses),
                *(
                    "--rate",
                    str(rate_bits_per_s),
                    "--round_trip",
                    str(round_trip_s),
                    "--queue",
                    str(queue_bytes),
                ),
                *("--congestion", congestion),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parent.parent,
        )
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise OSError("no link can be emulated here")
        yield EmulatedLink(spaces, addresses, process)
    finally:
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
        for space in made:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def star(
    stack: ExitStack, count: int, *, rate_bits_per_s: float, round_trip_s: float, congestion: str = "cubic"
) -> list[EmulatedLink]:
    """Links from one new namespace, which passes on what goes from one far end to another; until `stack` is closed.

    Args:
        rate_bits_per_s, round_trip_s: Of each link; the way from one far end to another is by two of them.
    """
    links: list[EmulatedLink] = []
    for _ in range(count):
        at = links[0].spaces[0] if links else ""
        made = emulated_link(
            rate_bits_per_s=rate_bits_per_s, round_trip_s=round_trip_s, at=at, congestion=congestion
        )
        links.append(stack.enter_context(made))
    _run(*links[0].within(0), "sysctl", "-qw", "net.ipv4.ip_forward=1")
    way = ("congctl", congestion) if congestion else ()
    for link in links:
        _run("ip", "-n", link.spaces[1], "route", "add", "default", "via", link.addresses[0], *way)
    return links


if __name__ == "__main__":
    main()
