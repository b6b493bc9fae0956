"""A script whose loop is that of a trainer, of Transformers or Lightning; in a job, by three calls."""

import argparse
import os

import torch
from torch import nn

import scavenger.torch as elastic

parser = argparse.ArgumentParser()
parser.add_argument("trainer", choices=["transformers", "lightning"])
parser.add_argument("--save", default="")
parser.add_argument("--at-once", type=int)
parser.add_argument("--interval", default="step")
parser.add_argument("--device", default="cpu")

EPOCHS, BATCH, SAMPLES, LENGTH, PADDING = 4, 24, 500, 7, -100


def data():
    """Sequences of different lengths: a mean over labels is none over sequences."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(11, (SAMPLES, LENGTH), generator=generator)
    lengths = torch.randint(1, LENGTH + 1, (SAMPLES, 1), generator=generator)
    labels = torch.where(torch.arange(LENGTH) < lengths, tokens * 3 % 11, PADDING)
    return [{"input_ids": one, "labels": label} for one, label in zip(tokens, labels, strict=True)]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Sequential(
            nn.Embedding(11, 8), nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 11)
        ).double()

    def forward(self, input_ids, labels, num_items_in_batch=None, **kwargs):
        logits = self.body(input_ids)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        return {
            "loss": loss / (labels.numel() if num_items_in_batch is None else num_items_in_batch),
            "logits": logits,
        }


def with_transformers(args):
    from transformers import Trainer, TrainingArguments

    class InOrder(Trainer):
        def _get_train_sampler(self, *given):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    def right(prediction):
        at = prediction.label_ids != PADDING
        accuracy = float((prediction.predictions.argmax(-1) == prediction.label_ids)[at].mean())
        elastic.log(accuracy=accuracy)
        return {"accuracy": accuracy}

    settings = TrainingArguments(
        "runs",
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH,
        learning_rate=0.01,
        warmup_steps=0.1,
        weight_decay=0.02,
        eval_strategy="epoch",
        use_cpu=args.device == "cpu",
        dataloader_pin_memory=args.device != "tiny",  # a device in Python has no such memory
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        logging_steps=5,
    )
    trainer = InOrder(
        Model(), settings, train_dataset=data(), eval_dataset=data()[:50], compute_metrics=right
    )
    elastic.prepare(trainer, at_once=args.at_once)
    trainer.train()
    return trainer.model


def _accelerator(device):
    """What Lightning knows of a device."""
    from lightning.pytorch.accelerators import Accelerator

    class Other(Accelerator):
        name = staticmethod(lambda: device)
        is_available = staticmethod(lambda: True)
        auto_device_count = staticmethod(lambda: 1)
        parse_devices = staticmethod(lambda devices: [0])
        get_parallel_devices = staticmethod(lambda devices: [torch.device(device, 0)])

        def setup_device(self, device): ...

        def teardown(self): ...

        def get_device_stats(self, device):
            return {}

    return Other()


def with_lightning(args):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.right = Model(), []

        def training_step(self, batch, index):
            return self.model(**batch)["loss"]

        def validation_step(self, batch, index):
            at = batch["labels"] != PADDING
            self.right += (self.model(**batch)["logits"].argmax(-1) == batch["labels"])[at].tolist()

        def on_validation_epoch_end(self):
            accuracy = sum(self.right) / len(self.right)
            self.right.clear()
            self.log("accuracy", accuracy)
            elastic.log(accuracy=accuracy)

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01, weight_decay=0.02)
            if args.interval == "epoch":
                schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
            else:
                steps = self.trainer.estimated_stepping_batches
                schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, steps)
            return [optimizer], [{"scheduler": schedule, "interval": args.interval}]

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu" if args.device == "cpu" else _accelerator(args.device),
        devices=1,
        max_epochs=EPOCHS,
        gradient_clip_val=0.5,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    loaders = (
        torch.utils.data.DataLoader(data(), BATCH),
        torch.utils.data.DataLoader(data()[:50], 50),
    )
    elastic.prepare(trainer, at_once=args.at_once)
    trainer.fit(module, *loaders)
    return module


if __name__ == "__main__":
    args = parser.parse_args()
    if args.device == "tiny":
        import torch_device  # noqa: F401 - registers it

        os.environ["ACCELERATE_TORCH_DEVICE"] = args.device
    model = with_transformers(args) if args.trainer == "transformers" else with_lightning(args)
    if args.save:
        torch.save({name: tensor.cpu() for name, tensor in model.state_dict().items()}, args.save)
