"""A job whose aggregators and workers are on VMs behind links of their own, for `benchmarks.aggregator_vms`.

`python -m benchmarks.aggregator_vms_job FOLDER ADDRESS TRAIN WORKERS BATCH STEPS SPACE...` runs in the network in which
all links end; an agent runs in each network namespace SPACE, of which the last ones are those of the workers.
Prints a line of JSON: time and computing of each step after the first ones, and the largest share of the model.
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
from scavenger.train.engines.vm.engine import HostEngine
from scavenger.train.engines.vm.values import Role

_WARM_UP_STEPS = 3


def main() -> None:
    folder, address, train = Path(sys.argv[1]), *sys.argv[2:4]
    workers, batch, steps = map(int, sys.argv[4:7])
    spaces = sys.argv[7:]
    aggregators = len(spaces) - workers
    code = folder / "code"
    code.mkdir(parents=True)
    agents = AgentServer(address, code)
    agents.start()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(agents))
        for number, space in enumerate(spaces):
            within = ("ip", "netns", "exec", space)
            role: Role = "aggregator" if number < aggregators else "worker"
            stack.enter_context(agent(agents, f"vm{number}", role, folder, within=within))
        training = stack.enter_context(
            Training(
                train,
                folder / "job",
                job_dir=code,
                aggregators=aggregators,
                engine=lambda log_dir, _: HostEngine(log_dir, agents),
            )
        )
        training.begin(workers, batch)
        training.go_on(_WARM_UP_STEPS)
        seen = training.go_on(steps)
        manifest = training.supervisor.manifest
        assert manifest is not None
        share = model_size(manifest, 1).share(aggregators)
        lost = [one.worker for one in training.lost]
    if lost:
        raise RuntimeError(f"{lost} were lost during the benchmark; measure again")
    print(json.dumps({"steps": [(step.step_time_s, step.compute_s) for step in seen], "share": share}))


if __name__ == "__main__":
    main()
