"""A program with everything that is public, for a strict checker of types: nothing that it gets is of unknown type."""

from __future__ import annotations

import asyncio
from typing import assert_type

import scavenger
from scavenger.errors import ScavengerError
from scavenger.sdk import (
    FromGenerator,
    KerasJob,
    LoopJob,
    ParquetFiles,
    TFRecords,
    sample_seed,
)


def model(rate: float) -> object:
    return rate


def embedded() -> float:
    job = scavenger.Job(
        model, data="train:data", workers=[1, 2], batch_size="32..64", goal={"metric": "val_loss"}
    )
    with scavenger.Client(store="jobs.db", budget="$1") as client:
        plan = client.plan(job.with_params(rate=0.1))
        chosen = plan.choice.configuration
        print(plan, plan.curve.time_s.min(), plan.front[0].time_s, chosen.workers, plan.profiled)
        if plan.predicted is not None:
            assert_type(plan.predicted.cost_usd, float)
        run = client.run(job, plan)
        if run.error is not None:
            print(run.error.code, run.error.fix, run.error.retryable)
        waiting = client.submit(job, priority=1)
        client.running(waiting).scale_to(2)
        print(client.wait(waiting).actual, client.result(run.id).state, client.curve(run.id).front)
        for record in client.models():
            print(record.id, record.measurements)
        return assert_type(run.cost_usd, float)


def studied(client: scavenger.Client, job: scavenger.Job) -> str | None:
    study = client.study("digits", budget="$1", deadline="2h")
    trial = study.run(job, {"rate": 0.1}, on_epoch=lambda epoch: epoch.epoch > 3)
    print(trial.value, trial.cost_usd, study.best().params, study.bill, study.left_usd, len(study.trials))
    return trial.model_path


async def twin() -> scavenger.Plan | None:
    async with scavenger.AsyncClient(server="http://127.0.0.1:1") as client:
        run = await client.optimize(scavenger.Job.from_yaml("job.yaml"))
        print(run.metric, run.state, run.value, run.time_s)
        return await client.curve(run.id)


def steered() -> None:
    running = scavenger.RunningJob("digits", server="http://127.0.0.1:1")
    running.migrate(["w0"])
    running.stop(save=False)


if __name__ == "__main__":
    try:
        embedded()
        asyncio.run(twin())
        steered()
    except ScavengerError as error:
        print(error.code, error.fix, error.retryable)
    print(KerasJob, LoopJob, FromGenerator, ParquetFiles, TFRecords, scavenger.run_loop, sample_seed)
