"""The hosts of a server's pools: who of them lives, and who is in use by something else; asked again and again."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from scavenger.cloud.base import OwnedMachines
from scavenger.control.pools.rented import open_owned
from scavenger.control.settings import settings_of
from scavenger.domain.infra import Infra
from scavenger.domain.pool import NodeState, Pool, PoolNode
from scavenger.domain.vm import OwnedMachine
from scavenger.errors import ScavengerError, StoreBusyError
from scavenger.logs import Repeated
from scavenger.store import Store

LOOK_S = 5.0
"""Hosts are asked so often; a host that is free or taken is known as that so soon."""
IDLE_S = 60.0
"""Hosts of a pool without jobs are asked so often."""

logger = logging.getLogger(__name__)


class PoolHosts:
    """The hosts of one pool, asked on a thread of its own.

    Args:
        pool: It has hosts.
        open_machines: Opens their provider; None by the settings.
        changed: Called once they are not as before.

    Attributes:
        nodes: As they were seen last; None before.
    """

    def __init__(
        self,
        store: Store,
        pool: Pool,
        *,
        open_machines: Callable[[], OwnedMachines] | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        assert pool.vms is not None
        self._store, self._pool, self._changed = store, pool, changed
        self._infra = Infra.parse(pool.vms.infra)
        self._open = open_machines or (lambda: open_owned(self._infra, settings_of(self._infra)))
        self._machines: OwnedMachines | None = None
        self.nodes: tuple[PoolNode, ...] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"scavenger-hosts-{pool.name}", daemon=True)

    def start(self) -> None:
        """Ask them from now on."""
        self._thread.start()

    def close(self) -> None:
        """Ask them no more. Idempotent."""
        self._stopping.set()
        if self._thread.ident:
            self._thread.join()

    def _run(self) -> None:
        problem = Repeated(logger)
        looked_at = -math.inf
        while True:
            began_at = time.monotonic()
            try:
                if began_at - looked_at >= IDLE_S or self._has_jobs():
                    looked_at = began_at
                    self.look(datetime.now(UTC))
                    problem.over()
            except StoreBusyError:
                logger.debug("the store is busy")
            except ScavengerError as error:
                problem.warn(f"the hosts of pool {self._pool.name} cannot be seen: {error}")
            except Exception:
                logger.exception("internal fault")
            if self._stopping.wait(max(0.0, LOOK_S - (time.monotonic() - began_at))):
                return

    def look(self, now: datetime) -> None:
        """See how they are.

        Raises:
            ScavengerError: They, or the store, cannot be asked.
        """
        if self._machines is None:
            self._machines = self._open()
        before = self._vms()  # one that ends meanwhile, too
        machines = self._machines.machines(self._infra.zone)
        ours = before | self._vms()
        old = {node.name: node for node in self.nodes or self._on_record()}
        nodes = tuple(seen_node(one, ours, old.get(one.name), now) for one in machines)
        if nodes != self.nodes:
            self.nodes = nodes
            self._changed()

    def _vms(self) -> frozenset[str]:
        """The ids of the pool's VMs, and the tokens of launches that have not answered yet."""
        infra = self._infra
        found = self._store.vms_of_pool(self._pool.name, infra.provider, infra.region)
        return frozenset(one.instance_id or one.id for one in found)

    def _has_jobs(self) -> bool:
        last = self._store.allotment(self._pool.name)
        return last is not None and bool(last.shares)

    def _on_record(self) -> tuple[PoolNode, ...]:
        last = self._store.allotment(self._pool.name)
        return () if last is None else last.nodes


def seen_node(one: OwnedMachine, ours: frozenset[str], before: PoolNode | None, now: datetime) -> PoolNode:
    """A machine as a node of a pool.

    One that has not answered for a short time is what it was before.

    Args:
        ours: Ids of the VMs of the pool, and tokens of their launches.
        before: As it was seen last; None if it never was.
    """
    state: NodeState = "open"
    if not one.reached and (one.lost or before is None):
        state = "lost"
    elif not one.reached and before is not None:
        state = before.state
    elif one.held and not {one.instance_id, one.instance_id.rpartition(".")[2]} & ours:
        state = "taken"
    state = "open" if state == "draining" else state
    was = None if before is None else "open" if before.state == "draining" else before.state
    since = before.since if before is not None and was == state else now
    per_slot = max(1, one.gpus)
    return PoolNode(one.name, one.vm, 1, one.cpus, one.usd_per_hour, state, since, per_slot=per_slot)


class PoolsHosts:
    """The hosts of a server's pools that have some."""

    def __init__(self, store: Store, pools: Mapping[str, Pool], changed: Callable[[], None]) -> None:
        self._hosts = {
            name: PoolHosts(store, pool, changed=changed)
            for name, pool in pools.items()
            if pool.vms is not None and pool.vms.owned
        }

    def start(self) -> None:
        """Ask them from now on."""
        for one in self._hosts.values():
            one.start()

    def nodes(self, pool: str) -> tuple[PoolNode, ...] | None:
        """The hosts of a pool as they were seen last; None before, and of a pool without any."""
        one = self._hosts.get(pool)
        return None if one is None else one.nodes

    def close(self) -> None:
        """Ask them no more. Idempotent."""
        for one in self._hosts.values():
            one.close()
