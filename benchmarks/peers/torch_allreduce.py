"""gloo's all-reduce of one vector, by PyTorch. A child process; its last line of output is a JSON document."""

from __future__ import annotations

import argparse
import json
import time

import torch
import torch.distributed as dist

from benchmarks.peers.running import peer_arguments

_WARM_UP_ROUNDS = 3


def main() -> None:
    parser = peer_arguments(argparse.ArgumentParser())
    parser.add_argument("--parameters", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    addresses = options.addresses.split(",")
    dist.init_process_group(
        "gloo", init_method=f"tcp://{addresses[0]}", rank=options.rank, world_size=len(addresses)
    )
    vector = torch.ones(options.parameters)
    times = []
    for number in range(_WARM_UP_ROUNDS + options.rounds):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(vector)
        if number >= _WARM_UP_ROUNDS:
            times.append(time.perf_counter() - begin)
        vector.fill_(1.0)
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps({"round_times_s": times}))


if __name__ == "__main__":
    main()
