"""`plain.py` as a job: `scavenger optimize train.py --target val_accuracy=0.93`."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

import scavenger.torch as elastic

digits = load_digits()
images = torch.tensor(digits.images / 16).float().unsqueeze(1)
data = [
    {"pixel_values": image, "labels": int(label)} for image, label in zip(images, digits.target, strict=True)
]


def accuracy_of(prediction):
    accuracy = float(np.mean(prediction.predictions.argmax(1) == prediction.label_ids))
    elastic.log(val_accuracy=accuracy)
    return {"accuracy": accuracy}


if __name__ == "__main__":
    set_seed(0)
    model = ViTForImageClassification(
        ViTConfig(
            image_size=8,
            patch_size=2,
            num_channels=1,
            num_labels=10,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
        )
    )
    trainer = Trainer(
        model,
        TrainingArguments(
            "runs",
            num_train_epochs=20,
            per_device_train_batch_size=32,
            learning_rate=2e-3,
            warmup_steps=0.1,
            eval_strategy="epoch",
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=[one for number, one in enumerate(data) if number % 5],
        eval_dataset=data[::5],
        compute_metrics=accuracy_of,
    )
    elastic.prepare(trainer)
    trainer.train()
