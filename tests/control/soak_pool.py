"""Real jobs of a pool while servers, runners and workers are killed and stopped: no slot has two owners at any time.

`python -m tests.control.soak_pool --minutes 10 --seed 3` starts real `scavenger serve` with a pool of four slots,
submits jobs of several users and priorities, kills by SIGKILL and stops by SIGSTOP for a while, and in the end holds
what is on record, and what was seen of the processes meanwhile, against what a pool promises:

- shares of all jobs were never more than the pool's slots together, nor were there more processes of workers;
- every submission that was acknowledged has ended once, as succeeded, and used each sample of each epoch once;
- a job has had no more slot-seconds than were kept for it, and paid for no more than it has had;
- a deadline that was promised stays so;
- no process is left.

Most jobs are loops whose computing is a sleep; a few train a small Keras model. Both share one policy, which the seed
chooses.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import psutil

from tests.control import soak
from tests.control.soak import Serving, Soak, place_of  # puts the folders of tests on the path

sys.path.insert(0, str(soak.ROOT / "tests" / "lean"))

from audits import AUDIT_FILE, verify_audit
from sleeping_loop import SHARD, SHARDS, SLEEPING_LOOP

from scavenger.cloud.local import LocalCloud
from scavenger.domain.submission import Submission, runner_lease
from scavenger.errors import ScavengerError
from scavenger.store import Store

KINDS = ("postgresql", "servers", "runners", "workers", "stops")
POOL, SLOTS = "gpu", 4
POLICIES = ("even", "worth", "fair", "elastic-tiresias", "goodput")
USERS = ("ann", "bob")
MARK = "SCAVENGER_SOAK"
"""Variable of the environment of all processes of a soak."""
WATCH_S = 0.3
LEFT_S = 20.0
"""How long processes may take to end with the jobs and the servers."""
_SECONDS = 5.0
"""So many slot-seconds, and 2 %, may pass between a moment and its record."""
_SERVE = "from scavenger_cli.main import main; main()"
_POOLS = f"[pool.{POOL}]\nslots = {SLOTS}\npolicy = '{{policy}}'\nstarved = '5m'\n"
_KERAS = f"""\
import keras
import numpy as np
from scavenger.sdk import KerasJob

def job():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=({SHARDS * SHARD}, 8)).astype("float32"), rng.integers(0, 2, {SHARDS * SHARD})
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    return KerasJob(model=model, train=(x, y), validation=(x[:64], y[:64]))
"""
_JOB = """\
version: 1
name: {name}
train: train:job
infra: pool/{pool}
search: {{workers: {workers}, batch_size: [32], strategy: extremes}}
profile: {{steps: 3}}
goal: {{max_epochs: {epochs}}}
elastic: {{failures: {{per_host: 1000, give_up: 1000}}}}
checkpoint: {{path: ./saved, every_steps: 20}}
constraints: {{deadline: {deadline}}}
"""


class PoolSoak(Soak):
    """One soak, of real jobs; see `Soak`."""

    kill_every_s: ClassVar[Mapping[str, tuple[float, float]]] = {
        **soak.KILL_EVERY_S,
        "servers": (20.0, 60.0),
        "runners": (8.0, 25.0),
        "workers": (3.0, 12.0),
        "stops": (4.0, 15.0),
    }
    runner = "scavenger.control.service.runner"

    def run(self, duration_s: float) -> None:
        """See `Soak.run`; the pool is watched until all jobs have ended."""
        self.torn: set[str] = set()
        self.most_workers = self.looks = 0
        self._drained = threading.Event()
        self.began_at = datetime.now(UTC)
        watching = threading.Thread(target=self._watching, daemon=True)
        watching.start()
        super().run(duration_s)
        self._drained.set()
        watching.join()

    def _server(self, number: int) -> Serving:
        with Store.open(self.url) as store:
            for user in () if number else USERS:
                store.set_user(user, "user")
            self._tokens = [store.new_token(user, user)[1] for user in USERS]
        self.policy = POLICIES[self._rng.randrange(len(POLICIES))] if not number else self.policy
        return Serving(
            number,
            self.url,
            self._folder,
            code=_SERVE,
            pools=_POOLS.format(policy=self.policy),
            env={MARK: str(self._folder)},
        )

    def _written(self, folder: Path) -> dict[str, object]:
        """See `Soak._written`: a job of one of the users."""
        self._token = self._rng.choice(self._tokens)
        keras, least = self._rng.random() < 0.08, self._rng.choice((1, 1, 1, 2))
        most = self._rng.choice((least, 2, 4, 4))
        (folder / "train.py").write_text(_KERAS if keras else SLEEPING_LOOP)
        job = _JOB.format(
            name=folder.name,
            pool=POOL,
            workers=f"{least}..{most}",
            epochs=self._rng.randint(40, 80) if keras else self._rng.randint(2, 14),
            deadline=self._rng.choice(("1d", "1d", "2h")),
        )
        (folder / "job.yaml").write_text(job)
        return {"audit": True, "priority": self._rng.choice((0, 0, 0, 5))}

    # ---- what is done meanwhile ----------------------------------------------------------------------------

    def _killing_servers(self) -> None:
        """Kill those that have begun to serve: on a busy machine that takes longer than from one kill to the next."""
        for _ in self._moments("servers"):
            if found := [one for one in self.serving if one.answers()]:
                self._rng.choice(found).kill()

    def _killing_workers(self) -> None:
        for _ in self._moments("workers"):
            with contextlib.suppress(psutil.Error, ScavengerError, IndexError), Store.open(self.url) as store:
                self._rng.choice(self._workers(store)).kill()

    def _killing_stops(self) -> None:
        """Stop a process for a while; now and then a runner for longer than its server waits for it."""
        for _ in self._moments("stops"):
            with contextlib.suppress(psutil.Error, ScavengerError, IndexError), Store.open(self.url) as store:
                kind = self._rng.choice(("server", "runner", "worker", "worker"))
                if kind == "worker":
                    found = self._workers(store)
                elif kind == "runner":
                    found = self.runners()
                else:
                    found = [psutil.Process(one.process.pid) for one in self.serving if one.process]
                victim = self._rng.choice(found)
                long = kind == "runner" and self._rng.random() < 0.1 and self._may_end(victim)
                self.seen.kills[f"{kind} stopped{' for long' if long else ''}"] += 1
                victim.send_signal(signal.SIGSTOP)
                try:
                    self._over.wait(80.0 if long else self._rng.uniform(0.3, 8.0))
                finally:
                    victim.send_signal(signal.SIGCONT)

    def _workers(self, store: Store) -> list[psutil.Process]:
        """Live processes of workers, of all jobs."""
        found = []
        for one in store.submissions(1_000_000):
            if one.started_at is None or not store.has_job(one.id):
                continue
            for each in store.processes(one.id):
                # one that was lost is ended while another takes its slot
                if each.role == "worker" and each.pid is not None and each.state != "lost":
                    with contextlib.suppress(psutil.Error):
                        process = psutil.Process(each.pid)
                        found += [process] if _lives(process) and _marked(process, self._folder) else []
        return found

    def _watching(self) -> None:
        """Look all the time whether a slot has two owners."""
        while not self._drained.wait(WATCH_S):
            with contextlib.suppress(ScavengerError), Store.open(self.url) as store:
                self._look(store)

    def _look(self, store: Store) -> None:
        with store.at_one_moment():
            last = store.allotment(POOL)
            running = [one.id for one in store.submissions(1000, states=("running",))]
            standings = store.standings(running)
            leases = {job_id: store.lease(runner_lease(job_id)) for job_id in running}
        found = self._workers(store)
        count = sum(map(_lives, found))  # of all of them at the end, as looking for them takes a while
        self.looks += 1
        self.most_workers = max(self.most_workers, count)
        if count > SLOTS:
            self.torn.add(f"{count} workers at once, of {SLOTS} slots")
        if last is None:
            return
        for job_id, standing in standings.items():
            lease, share = leases[job_id], last.shares.get(job_id)
            kept = 0 if share is None else share.counts
            if lease is not None and lease.token == standing.token and (standing.size or 0) > kept:
                self.torn.add(f"job {job_id} has {standing.size} workers, and {kept} slots are kept for it")

    # ---- what came of it -----------------------------------------------------------------------------------

    def faults(self) -> list[str]:
        """See `Soak.faults`."""
        found = [*sorted(self.torn), *super().faults()]
        promised: dict[str, bool] = {}
        with Store.open(self.url) as store:
            self.kept_slot_s = self._kept(store)
            for one in store.submissions(1_000_000):
                found += self._money_of(store, one)
            for allotment in store.allotments(POOL, 1_000_000):
                if (total := sum(share.counts for share in allotment.shares.values())) > SLOTS:
                    found.append(f"allotment {allotment.number} gives {total} slots of {SLOTS}")
                for job_id, share in allotment.shares.items():  # newest first
                    if share.promised and not promised.get(job_id, True):
                        found.append(f"job {job_id}: the promise of allotment {allotment.number} is gone")
                    promised[job_id] = share.promised
            self.promised = sum(promised.values())
        return found

    def _kept(self, store: Store) -> dict[str, float]:
        """Slot-seconds that were kept for each job."""
        kept: dict[str, float] = defaultdict(float)
        until = datetime.now(UTC)
        for allotment in store.allotments(POOL, 1_000_000):  # newest first
            for job_id, share in allotment.shares.items():
                kept[job_id] += share.counts * (until - allotment.at).total_seconds()
            until = allotment.at
        return kept

    def _money_of(self, store: Store, one: Submission) -> list[str]:
        """What is wrong with the slot-seconds and dollars of a job."""
        standing = store.standings([one.id]).get(one.id)
        if standing is None or not store.has_job(one.id):
            return []
        price = LocalCloud().cpu_price()[0] / 3600.0
        had, kept, usd = standing.attained_slot_s, self.kept_slot_s[one.id], store.spent_usd(one.id)
        found = []
        if had > 1.02 * kept + _SECONDS:
            found.append(
                f"job {one.job.name} had {had:.1f} slot-seconds, of {kept:.1f} that were kept for it"
            )
        if usd > price * (1.02 * kept + _SECONDS):
            found.append(
                f"job {one.job.name} paid for {usd / price:.1f} slot-seconds, and {kept:.1f} were kept"
            )
        return found

    def _faults_of(self, store: Store, one: Submission) -> list[str]:
        """What is wrong with a job that has succeeded."""
        name, found = one.job.name, []
        job, lease = store.job(one.id), store.lease(runner_lease(one.id))
        if job.state != "succeeded" or job.report is None:
            found.append(f"job {name} is {job.state} on record")
        if lease is None or lease.holder:
            found.append(f"job {name}: its lease is still held")
        audit = Path(one.job.job_file).parent / ".scavenger" / one.id / AUDIT_FILE
        found += [f"job {name}: {each}" for each in verify_audit(audit, SHARDS * SHARD)]
        return found

    def figures(self) -> dict[str, object]:
        """What was seen of the pool."""
        with Store.open(self.url) as store:
            all_of_them = store.submissions(1_000_000)
            had = sum(
                one.attained_slot_s for one in store.standings([one.id for one in all_of_them]).values()
            )
            usd = sum(store.spent_usd(one.id) for one in all_of_them if store.has_job(one.id))
            moves = Counter(
                move.split()[1] for each in store.allotments(POOL, 1_000_000) for move in each.moves
            )
        whole = SLOTS * (datetime.now(UTC) - self.began_at).total_seconds()
        kept, price = sum(self.kept_slot_s.values()), LocalCloud().cpu_price()[0] / 3600.0
        return {
            "policy": self.policy,
            "moves": dict(moves),
            "promised_at_once": self.promised,
            "looks": self.looks,
            "most_workers": self.most_workers,
            "usd": {"jobs": usd, "kept": kept * price, "idle": (whole - kept) * price, "pool": whole * price},
            "used_of_kept": had / kept if kept else None,
        }


def _lives(process: psutil.Process) -> bool:
    """Whether it is there, and no other process has its id."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _marked(process: psutil.Process, folder: Path) -> bool:
    return process.environ().get(MARK) == str(folder)


def _left(folder: Path) -> list[psutil.Process]:
    """Processes of a soak that live."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found += [process] if _marked(process, folder) else []
    return found


def _until(what: Callable[[], bool], within_s: float) -> bool:
    until = time.monotonic() + within_s
    while not (done := what()) and time.monotonic() < until:
        time.sleep(0.2)
    return done


@contextlib.contextmanager
def _ended(one: PoolSoak, folder: Path) -> Iterator[None]:
    """Nothing is left of the soak after the block, whatever happens in it."""
    try:
        yield
    finally:
        for process in _left(folder):
            with contextlib.suppress(psutil.Error):
                process.kill()


def soak_pool(
    duration_s: float,
    *,
    database: str = "sqlite",
    servers: int = 1,
    kill: tuple[str, ...] = KINDS[1:],
    every_s: float = 8.0,
    seed: int = 0,
    folder: Path | None = None,
) -> tuple[list[str], dict[str, object]]:
    """Run a soak; returns what is wrong, and figures.

    Args:
        folder: For jobs, logs and the store, which stay; None for a temporary one.
    """
    with place_of(database, folder) as (url, postgresql, where):
        one = PoolSoak(url, postgresql, servers, where, kill=kill, every_s=every_s, rng=random.Random(seed))
        with _ended(one, where):
            one.run(duration_s)
            for server in one.serving:
                server.end()
            gone = _until(lambda: not _left(where), LEFT_S)
            faults = [] if gone else [f"left: {' '.join(each.cmdline())}" for each in _left(where)]
            faults += one.faults()
        figures: dict[str, object] = {
            "seed": seed,
            "database": database,
            "servers": servers,
            "duration_s": duration_s,
            "kills": dict(one.seen.kills),
            "jobs": len(one.seen.submitted),
            "requests_sent_again": one.seen.repeated,
            **one.figures(),
        }
    return faults, figures


def main() -> int:
    options = soak.options_of(
        "tests.control.soak_pool",
        __doc__,
        KINDS,
        minutes=30.0,
        every=8.0,
        database="sqlite",
        servers=1,
        kill=",".join(KINDS[1:]),
    )
    return soak.told(*soak_pool(**options))


if __name__ == "__main__":
    sys.exit(main())
