"""Which of several operators acts: the holder of one `Lease` of the cluster.

Clocks of machines are not compared: a lease is free when it has not changed for its duration, by the own clock of who
looks.
What the operator does can be done twice, so a holder that stalls and wakes up late does no harm.

References:
    "Leases", Kubernetes documentation.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from scavenger.cloud.kubernetes.elastic_jobs import Cluster, Json
from scavenger.errors import ScavengerError

log = logging.getLogger(__name__)

DURATION_S, RENEW_S = 15.0, 4.0

Look = Literal["take", "renew", "wait"]


@dataclass
class LeaderElection:
    """One operator that may act, as a state machine: it is shown the lease, and says what to do.

    Args:
        name: Of this one; no other one has it.
    """

    name: str
    _version: str = ""
    _since_s: float = 0.0

    def look(self, lease: Json | None, now_s: float) -> Look:
        """What to do with the lease as it is now.

        Args:
            lease: None if there is none.
            now_s: Monotonic seconds.
        """
        if lease is None:
            return "take"
        spec, version = lease.get("spec") or {}, str(lease["metadata"].get("resourceVersion"))
        if spec.get("holderIdentity") == self.name:
            return "renew"
        if not spec.get("holderIdentity"):
            return "take"
        if version != self._version:
            self._version, self._since_s = version, now_s
        longest_s = max(DURATION_S, float(spec.get("leaseDurationSeconds") or 0))
        return "take" if now_s - self._since_s > longest_s else "wait"

    def written(self, lease: Json | None, namespace: str, name: str) -> Json:
        """The lease, held by this one."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = (lease or {}).get("spec") or {}
        mine = old.get("holderIdentity") == self.name
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": (lease or {}).get("metadata") or {"name": name, "namespace": namespace},
            "spec": {
                "holderIdentity": self.name,
                "leaseDurationSeconds": int(DURATION_S),
                "acquireTime": old.get("acquireTime", now) if mine else now,
                "renewTime": now,
                "leaseTransitions": int(old.get("leaseTransitions") or 0) + (not mine),
            },
        }


class LeaseKeeper:
    """Keeps or waits for the lease on a thread of its own.

    Args:
        cluster: The API server.
        namespace, name: Of the lease.
        me: Name of this operator.
        began: Called each time that it is taken.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        me: str,
        began: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._place, self._began, self._clock = cluster, (namespace, name), began, clock
        self._candidate = LeaderElection(me)
        self._held_until_s = -1.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    @property
    def held(self) -> bool:
        """Whether this operator acts."""
        return self._clock() < self._held_until_s

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Give the lease back."""
        self._over.set()
        self._thread.join(RENEW_S)

    def step(self) -> None:
        """Look once.

        Raises:
            ScavengerError: The API server cannot be used.
        """
        began_s, held = self._clock(), self.held
        lease = self._cluster.lease(*self._place)
        if self._candidate.look(lease, began_s) == "wait":
            return
        body = self._candidate.written(lease, *self._place)
        if self._cluster.write_lease(body, fresh=lease is None):
            # from before the write: another one may count from then on
            self._held_until_s = began_s + DURATION_S
            if not held:
                log.info("this operator acts")
                self._began()

    def _keep(self) -> None:
        while not self._over.is_set():
            try:
                self.step()
            except ScavengerError as error:
                log.warning("%s", error)
            self._over.wait(RENEW_S if self.held else 1.0)
        if self.held:
            self._give_back()

    def _give_back(self) -> None:
        self._held_until_s = -1.0
        try:
            lease = self._cluster.lease(*self._place)
            if lease is not None and lease["spec"].get("holderIdentity") == self._candidate.name:
                lease["spec"]["holderIdentity"] = ""
                self._cluster.write_lease(lease, fresh=False)
        except ScavengerError as error:
            log.warning("%s", error)
