"""A job whose aggregators and workers are on VMs behind links of their own, for `benchmarks.aggregator_vms`.

`python -m benchmarks.aggregator_vms_job FOLDER ADDRESS TRAIN WORKERS BATCH STEPS PLACE SPACE...` runs in the network in
which all links end; an agent runs in each network namespace SPACE, of which the last ones are those of the workers.
With PLACE `beside`, aggregators are beside the workers, too; else it is `apart`. Prints a line of JSON: time, computing
and updating of each step after the first ones, and the largest share of the model.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

from benchmarks.elastic_supervisor import Training
from benchmarks.two_hosts_job import agent
from scavenger.control.provisioning.model_size import model_size
from scavenger.train.engines.vm.agent_server import AgentServer
from scavenger.train.engines.vm.beside import AggregatorsBesideWorkers
from scavenger.train.engines.vm.engine import HostEngine
from scavenger.train.engines.vm.values import Role

_WARM_UP_STEPS = 3


def main() -> None:
    folder, address, train = Path(sys.argv[1]), *sys.argv[2:4]
    workers, batch, steps = map(int, sys.argv[4:7])
    beside, spaces = sys.argv[7] == "beside", sys.argv[8:]
    vms = len(spaces) - workers
    aggregators = vms + workers if beside else vms
    code = folder / "code"
    code.mkdir(parents=True)
    agents = AgentServer(address, code)
    agents.start()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(agents))
        for number, space in enumerate(spaces):
            within = ("ip", "netns", "exec", space)
            role: Role = "aggregator" if number < vms else "worker"
            stack.enter_context(agent(agents, f"vm{number}", role, folder, within=within))
        training = stack.enter_context(
            Training(
                train,
                folder / "job",
                job_dir=code,
                aggregators=aggregators,
                engine=lambda log_dir, _: HostEngine(
                    log_dir, agents, source=AggregatorsBesideWorkers() if beside else None
                ),
            )
        )
        training.begin(workers, batch)
        migrations = training.supervisor.migrations
        training.until(lambda: migrations.map is not None and len({*migrations.map.holders}) == aggregators)
        training.go_on(_WARM_UP_STEPS)
        seen = training.go_on(steps)
        manifest = training.supervisor.manifest
        assert manifest is not None
        share = model_size(manifest, 1).share(aggregators)
        lost = [one.worker for one in training.lost]
    if lost:
        raise RuntimeError(f"{lost} were lost during the benchmark; measure again")
    steps_s = [(step.step_time_s, step.compute_s, step.update_s) for step in seen]
    print(json.dumps({"steps": steps_s, "share": share}))


if __name__ == "__main__":
    main()
