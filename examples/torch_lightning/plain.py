"""Handwritten digits by Lightning: `python plain.py`."""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        self.right = []

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.cross_entropy(self.body(x), y)

    def validation_step(self, batch, index):
        x, y = batch
        self.right += (self.body(x).argmax(1) == y).tolist()

    def on_validation_epoch_end(self):
        accuracy = sum(self.right) / len(self.right)
        self.right.clear()
        self.log("val_accuracy", accuracy)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=2e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 4e-3, self.trainer.estimated_stepping_batches
        )
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


if __name__ == "__main__":
    lightning.seed_everything(0, verbose=False)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data / 16).float(), torch.tensor(digits.target))
    training, validation = torch.utils.data.random_split(data, [1437, 360])
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=20, gradient_clip_val=1.0, logger=False
    )
    trainer.fit(Digits(), DataLoader(training, 64, shuffle=True), DataLoader(validation, 360))
