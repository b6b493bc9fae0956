"""A task of SkyPilot whose times are predicted, run by a test as a program of its own: `sky_program.py STORE`.

SkyPilot's list of VM types is one of two rows, so that it loads none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HEADER = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,"
    "AvailabilityZone,Arch,CapacityBlock"
)
ROWS = [
    f"{vm},,,{cpus},16,,{price},,us-east-1,us-east-1a,x86_64,False"
    for vm, cpus, price in (("m7i.xlarge", 4, 0.2), ("m7i.2xlarge", 8, 0.4))
]

if __name__ == "__main__":
    folder = Path.home() / ".sky" / "catalogs" / "v8"
    for name in ("aws/vms.csv", "aws/images.csv"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join([HEADER, *ROWS]) + "\n")

    import sky

    from scavenger import Client
    from scavenger.errors import ConfigurationError
    from scavenger.integrations.skypilot import time_estimator

    task = sky.Task(run="python train.py", num_nodes=2)
    choices = [sky.Resources(infra="aws/us-east-1", instance_type=vm) for vm in ("m7i.xlarge", "m7i.2xlarge")]
    task.set_resources(set(choices))
    with Client(store=sys.argv[1]) as client:
        task.set_time_estimator(time_estimator(client, "digits", num_nodes=task.num_nodes, batch_size=256))
        said = {"seconds": task.estimate_runtime(choices[0]), "usd": 0.0, "error": ""}
        said["usd"] = choices[0].get_cost(said["seconds"])
        try:
            task.estimate_runtime(choices[1])
        except ConfigurationError as error:
            said["error"] = str(error)
    print(json.dumps(said))
