"""Train a PyTorch program under a budget: `python run.py`; killed, it goes on from its checkpoint the next time."""

import sys

import scavenger

if __name__ == "__main__":
    job = scavenger.Job(
        run="python train.py {local_batch_size} {checkpoint_dir} {epochs}",
        goal={
            "metric": "val_accuracy",
            "target": 0.87,
            "max_epochs": int(sys.argv[1]) if sys.argv[1:] else 200,
        },
        name="torch-job",
        workers=[1],
        batch_size=[32, 64],
        budget="$1",
        settings={"checkpoint": {"path": "saved", "every": "2s"}, "profile.steps": 5},
    )
    with scavenger.Client(store="jobs.db") as client:
        broken = [one for one in client.records("torch-job") if one.state == "failed" and one.checkpoint]
        run = client.resume(broken[0].id) if broken else client.attempt(job)
        print(f"{run}\nIt cost ${client.cost_of(run.id):.5f} in all")
