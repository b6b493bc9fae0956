"""The nodes of the manager's own machine: tenants are its child processes, on the processors of their nodes."""

from __future__ import annotations

import logging
import os
import selectors
import subprocess
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from scavenger.train.engines.fork_server import Ended, Forked
from scavenger.train.engines.forking import kill_group
from scavenger.train.pool import protocol
from scavenger.train.pool.placement import Node
from scavenger.train.pool.planning import TenantMove
from scavenger.train.pool.shares import Shares, TenantGroup, move_to
from scavenger.train.pool.site import NO_ROOM, JobConnection, Site, Tenant

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Child(Tenant):
    child: subprocess.Popen[bytes] | None = None
    group: TenantGroup = TenantGroup(None)  # noqa: RUF009 - a value
    watched: int = -1  # a pidfd, readable at its end


class LocalSite(Site[_Child]):
    """The nodes of this machine.

    Args:
        nodes: They are there from the beginning, and stay.
        shares: How tenants share a node.
        selector: Calls what is registered with it when a tenant has ended.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        shares: Shares,
        selector: selectors.BaseSelector,
    ) -> None:
        super().__init__(nodes)
        self._shares, self._selector = shares, selector
        self._children: dict[int, _Child] = {}  # by process id
        self._count = 0

    @property
    def tenants(self) -> Collection[_Child]:
        return self._children.values()

    @property
    def shares(self) -> Shares:
        """How tenants share a node."""
        return self._shares

    def launch(self, job: JobConnection, request: protocol.LaunchTenant, fds: Sequence[int]) -> Forked:
        """Start a tenant, unless there is no room."""
        plan = None if job.refused else self.plan.with_tenant(job.key, request.name, self._loads())
        node = None if plan is None else plan.node_of(job.key, request.name)
        if plan is None or node is None:
            return Forked(request.number, 0, job.refused or NO_ROOM)
        job.gone.pop(request.name, None)
        self.adopt(plan)
        standard_input, output, *memory = fds
        self._count += 1
        group = self._shares.group(str(self._count))
        if memory:
            keep_at_memory_fd(memory[0])
        try:
            child = subprocess.Popen(
                list(request.command),
                stdin=standard_input,
                stdout=output,
                stderr=output,
                pass_fds=(protocol.MEMORY_FD,) if memory else (),
                start_new_session=True,
                env=request.env,
                preexec_fn=lambda: group.enter(node.processors, node.tenant_bytes),
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            group.remove()
            return Forked(request.number, 0, f"could not be started in the pool: {error}")
        finally:
            keep_at_memory_fd(None)
        pid = child.pid
        watched = os.pidfd_open(pid)
        tenant = _Child(
            job,
            request.name,
            node,
            datetime.now(UTC).timestamp(),
            pid,
            child=child,
            group=group,
            watched=watched,
        )
        tenant.use.sample(pid, time.monotonic())
        self._children[pid] = tenant
        self._selector.register(watched, selectors.EVENT_READ, lambda: self._ended(tenant))
        log.info("started %s of job %s on %s, process %d", request.name, job.id, node.name, pid)
        return Forked(request.number, pid)

    def release(self, job: JobConnection, pid: int) -> None:
        """Forget a tenant that has ended, or is about to, and release its process id."""
        tenant = self._children.get(pid)
        if tenant is None or tenant.job is not job:
            return
        del self._children[pid]
        job.ended_cpu_s += tenant.use.cpu_s
        job.gone[tenant.name] = time.monotonic()
        self._unwatch(tenant)
        assert tenant.child is not None
        tenant.child.wait()
        tenant.group.remove()

    def leave(self, job: JobConnection) -> None:
        """End a job's tenants."""
        left = [tenant.pid for tenant in self._of(job)]
        for pid in left:
            kill_group(pid)
        for pid in left:
            self.release(job, pid)
        self.jobs.remove(job)
        self.adopt(self.plan.without_job(job.key))

    def _ended(self, tenant: _Child) -> None:
        """Report an end; the job says when the process's id may be released."""
        if tenant.watched < 0:  # released by what has just been handled
            return
        self._unwatch(tenant)
        ended = os.waitid(os.P_PID, tenant.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        log.info("%s of job %s has ended with status %d", tenant.name, tenant.job.id, status)
        self._send(tenant.job, Ended(tenant.pid, status))

    def _unwatch(self, tenant: _Child) -> None:
        if tenant.watched >= 0:
            self._selector.unregister(tenant.watched)
            os.close(tenant.watched)
            tenant.watched = -1

    def _move(self, tenant: _Child, move: TenantMove) -> None:
        tenant.node = move.node
        if tenant.watched >= 0:
            move_to(tenant.pid, move.node.processors)

    def _look_at(self, tenant: _Child, now: float) -> bool:
        if tenant.watched < 0:
            return False
        tenant.use.sample(tenant.pid, now)
        return True


def keep_at_memory_fd(fd: int | None) -> None:
    """Have a copy of a descriptor, or of none, at the number at which tenants find their block.

    The number is always in use, so that no other descriptor gets it, and keeps no block longer than its job does.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing if fd is None else fd, protocol.MEMORY_FD, inheritable=False)
    os.close(nothing)
