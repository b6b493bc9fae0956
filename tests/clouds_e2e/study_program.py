"""A study of trials on VMs, as a program of its own: prints a line of JSON for each trial, and one for the study."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from scavenger import Client, Job


def main(store: str, file: str, epochs: list[int], at_once: int, keep_s: float, rest_s: float) -> None:
    job = Job.from_yaml(file)
    with Client(store=store, progress=False) as client:
        study = client.study("tiny", budget=1, keep_vms=keep_s, at_once=at_once)

        def run(count: int) -> None:
            trial = study.run(job.with_settings({"goal.max_epochs": count}))
            told = {"epochs": count, "id": trial.id, "state": trial.state, "cost_usd": trial.cost_usd}
            print(json.dumps({**told, "error": trial.error, "known": trial.known}), flush=True)

        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(run, epochs))
        time.sleep(rest_s)
    told = {"spent_usd": study.spent_usd, "waited_usd": study.waited_usd, "bill": str(study)}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(
        sys.argv[1],
        sys.argv[2],
        json.loads(sys.argv[3]),
        int(sys.argv[4]),
        float(sys.argv[5]),
        float(sys.argv[6]),
    )
