"""What is built on torch, each as its documentation trains: Lightning, Accelerate, transformers' Trainer, timm."""

from __future__ import annotations

import warnings

import torch
import torchvision_import  # noqa: F401 - before torchvision
from job import BATCH, EPOCHS, SEED, SETTINGS, SOURCE, TRAIN, VAL, WORKERS, Pixels, count, read, say, step
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

VALIDATION = SETTINGS.get("validation", False)
CLASSES = 20


def to_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data[-64:]), dtype=torch.uint8).float()


def folder(root: str) -> ImageFolder:
    return ImageFolder(root, transform=to_tensor, loader=read)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, CLASSES))


def lightning() -> None:
    from lightning import LightningModule, Trainer, seed_everything

    class Classifier(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model()

        def training_step(self, batch, _):
            step(self.global_step)
            return torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def validation_step(self, batch, number) -> None:
            step(number if self.current_epoch == 0 else 1 << 30, "val")
            self.log("loss", torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    seed_everything(SEED, verbose=False)
    trainer = Trainer(
        max_epochs=EPOCHS, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    batches = DataLoader(folder(TRAIN), BATCH, shuffle=True, num_workers=WORKERS)
    checks = DataLoader(folder(VAL), BATCH, num_workers=WORKERS) if VALIDATION else None
    trainer.fit(Classifier(), batches, checks)


def accelerate() -> None:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, set_seed

    seedable = SETTINGS.get("seedable", False)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=seedable))
    set_seed(SEED)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    batches = DataLoader(folder(TRAIN), BATCH, shuffle=True, num_workers=WORKERS)
    net, optimizer, batches = accelerator.prepare(net, optimizer, batches)
    for epoch in range(EPOCHS):
        for number, (data, labels) in enumerate(batches):
            step(number if epoch == 0 else 1 << 30)
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.cross_entropy(net(data), labels))
            optimizer.step()
    accelerator.end_training()


def trainer() -> None:
    import transformers

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model()
            self.steps = 0

        def forward(self, data, labels):
            step(self.steps)
            self.steps += 1
            logits = self.model(data)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    def collate(samples):
        return {"data": torch.stack([s[0] for s in samples]), "labels": torch.tensor([s[1] for s in samples])}

    arguments = transformers.TrainingArguments(
        output_dir=SETTINGS["output"], num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH, eval_strategy="epoch" if VALIDATION else "no", report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False,
        dataloader_num_workers=WORKERS, seed=SEED, remove_unused_columns=False,
    )  # fmt: skip
    validation = folder(VAL) if VALIDATION else None
    transformers.Trainer(
        Classifier(), arguments, train_dataset=folder(TRAIN), eval_dataset=validation, data_collator=collate
    ).train()


def timm() -> None:
    import timm.data
    from timm.utils import random_seed

    def loader(root: str, training: bool):
        data = timm.data.create_dataset("", root=root)
        return timm.data.create_loader(
            data, input_size=(3, 8, 8), batch_size=BATCH, is_training=training, no_aug=True, num_workers=WORKERS,
            use_prefetcher=False, crop_pct=1.0,
        )  # fmt: skip

    random_seed(SEED, 0)
    timm.create_model("test_resnet", pretrained=False, num_classes=CLASSES)
    batches = loader(TRAIN, training=True)
    checks = loader(VAL, training=False) if VALIDATION else None
    seen = Pixels()
    for epoch in range(EPOCHS):
        for number, (images, _) in enumerate(batches):
            step(number if epoch == 0 else 1 << 30)
            seen.add(images.numpy())
        if checks is not None:
            for number, (images, _) in enumerate(checks):
                step(number if epoch == 0 else 1 << 30, "val")
                count(len(images))
    source = timm.data.create_dataset("", root=f"{SOURCE}/train")
    source.transform = batches.dataset.transform
    count(seen.total)
    seen.check(EPOCHS, (source[i][0].numpy() for i in range(len(source))))


KINDS = {"lightning": lightning, "accelerate": accelerate, "trainer": trainer, "timm": timm}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    KINDS[SETTINGS["kind"]]()
    say()
