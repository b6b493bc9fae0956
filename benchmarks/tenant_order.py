"""Tenants of one processor: served at once by equal shares of it, or one after the other by permits of a manager."""

from __future__ import annotations

import heapq
import os
import select
import signal
import socket
import statistics
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figures import Benchmark, Result, Spread
from scavenger.train.pool.shares import Shares, TenantGroup, find_shares

_STEPS_S = (0.020, 0.027, 0.035, 0.050)
_FILLS = (0.2, 0.4, 0.6, 0.8)
_ORDERS = ("equal shares", "permits, as asked", "permits, as due")
_WINDOW_S = 5.0
_DONE = struct.Struct("d")
"""What a tenant sends: its step time to ask for a permit, 0 when it is done."""


def _compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def _tenant(step_s: float, execution_s: float, permits: socket.socket | None, out: int) -> None:
    """Make steps: wait for the workers, then compute; write the mean time of a step."""
    began = now = time.monotonic()
    steps = 0
    while now < began + _WINDOW_S:
        time.sleep(step_s - execution_s)
        if permits is not None:
            permits.send(_DONE.pack(step_s))
            permits.recv(1)
        _compute(execution_s)
        if permits is not None:
            permits.send(_DONE.pack(0.0))
        steps, now = steps + 1, time.monotonic()
    os.write(out, _DONE.pack((now - began) / steps))


def _grant(tenants: list[socket.socket], *, by_due: bool) -> None:
    """Let one tenant compute at a time: the first that asked, or that whose step should be complete first."""
    waiting: list[tuple[float, int, socket.socket]] = []
    done: dict[socket.socket, float] = {}
    computing: socket.socket | None = None
    asked = 0
    while tenants:
        for tenant in select.select(tenants, [], [])[0]:
            message = tenant.recv(_DONE.size)
            if not message:
                tenants.remove(tenant)
            elif step_s := _DONE.unpack(message)[0]:
                asked += 1
                heapq.heappush(waiting, (done.get(tenant, 0.0) + step_s if by_due else asked, asked, tenant))
            else:
                computing, done[tenant] = None, time.monotonic()
        if computing is None and waiting:
            computing = heapq.heappop(waiting)[2]
            computing.send(b"g")


@contextmanager
def _forked() -> Iterator[int]:
    """A child, which ends with the block; the block runs in both: 0 in the child."""
    pid = os.fork()
    if pid:
        yield pid
        return
    try:
        yield 0
    finally:
        os._exit(0)


def _step_times(jobs: Sequence[tuple[float, float]], order: str, shares: Shares) -> list[float]:
    """Mean step time of each of the jobs, given by step time alone and execution time, at once on one processor."""
    processors = sorted(os.sched_getaffinity(0))
    reading: list[tuple[int, int]] = []
    sockets: list[socket.socket] = []
    groups: list[TenantGroup] = []
    for index, (step_s, execution_s) in enumerate(jobs):
        out, written = os.pipe()
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        groups.append(shares.group(f"order-{index}"))
        with _forked() as pid:
            if not pid:
                for other in (mine, *sockets):
                    other.close()
                groups[-1].enter(processors[-1:], 1 << 40)
                _tenant(step_s, execution_s, None if order == _ORDERS[0] else its, written)
        os.close(written)
        its.close()
        reading.append((pid, out))
        sockets.append(mine)
    with _forked() as manager:
        if not manager:
            os.sched_setaffinity(0, processors[:1])
            _grant(sockets, by_due=order == _ORDERS[2])
    for one in sockets:
        one.close()
    found = []
    for pid, out in reading:
        found.append(_DONE.unpack(os.read(out, _DONE.size))[0])
        os.close(out)
        os.waitpid(pid, 0)
    os.kill(manager, signal.SIGKILL)
    os.waitpid(manager, 0)
    for group in groups:
        group.remove()
    return found


def run(repetitions: int, work_dir: Path) -> Result:
    """Four tenants with different steps at each fill and in each order, beside each of them alone."""
    shares = find_shares()
    rows, figures = [], {}
    for fill in _FILLS:
        jobs = [(step_s, step_s * fill / len(_STEPS_S)) for step_s in _STEPS_S]
        losses: dict[str, list[float]] = {order: [] for order in _ORDERS}
        for _ in range(repetitions):
            alone = [_step_times([job], _ORDERS[0], shares)[0] for job in jobs]
            for order in _ORDERS:
                together = _step_times(jobs, order, shares)
                losses[order].append(max(1.0 - a / b for a, b in zip(alone, together, strict=True)))
        spreads = {order: Spread.of(found) for order, found in losses.items()}
        figures[f"fill_{fill}"] = spreads
        rows.append((f"{fill:.0%}", *(f"{spreads[order].text(100)} %" for order in _ORDERS)))
    worst = statistics.median(losses[_ORDERS[0]])
    return Result(
        headers=("processor planned", *_ORDERS),
        rows=tuple(rows),
        verdict=f"at {_FILLS[-1]:.0%}, equal shares cost the job that loses most {worst:.0%} of its speed",
        figures=figures,
        remarks=(
            f"loss of speed of the job that loses most, of four with steps of 20 to 50 ms, in {_WINDOW_S:.0f} s; "
            "each waits for most of a step and then computes its part, as an aggregator does",
            "permits: a manager on another processor lets one tenant compute at a time; as due: the one whose step "
            "should be complete first",
            f"equal shares: by {shares.way}",
        ),
    )


BENCHMARK = Benchmark("tenant_order", 3, run)
