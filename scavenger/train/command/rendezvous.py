"""The environment by which the processes of a command find each other, in the words of each framework. Pure.

One process of the command runs on each worker; all get the same list of addresses and their own number in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence


def rendezvous(addresses: Sequence[tuple[str, int]], rank: int, run_id: str) -> Mapping[str, str]:
    """The environment of one process.

    Args:
        addresses: Host and free port of each process, in the order of their numbers.
        rank: The number of this one.
        run_id: Unique for each start of the group.

    Returns:
        `MASTER_ADDR`, `MASTER_PORT`, `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE` for programs that
        PyTorch's `init_process_group` connects by itself; `PET_*` for torchrun, whose processes get the former from
        it; `TF_CONFIG` for TensorFlow; `KERAS_DISTRIBUTION_*` for Keras's `distribution.initialize`, also with JAX;
        `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID` for `jax.distributed.initialize`.
    """
    count, (host, port) = len(addresses), addresses[0]
    master = f"{host}:{port}"
    workers = [f"{one}:{at}" for one, at in addresses]
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "PET_NNODES": str(count),
        "PET_NODE_RANK": str(rank),
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ENDPOINT": master,
        "PET_RDZV_ID": run_id,
        "PET_MASTER_ADDR": host,
        "PET_MASTER_PORT": str(port),
        "PET_MAX_RESTARTS": "0",
        "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}),
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": ",".join(workers),
        "KERAS_DISTRIBUTION_NUM_PROCESSES": str(count),
        "KERAS_DISTRIBUTION_PROCESS_ID": str(rank),
        "JAX_COORDINATOR_ADDRESS": master,
        "JAX_NUM_PROCESSES": str(count),
        "JAX_PROCESS_ID": str(rank),
    }
