"""What is built on torch, each as its documentation trains: Lightning, Accelerate, transformers' Trainer, timm.

All but timm also in several processes that torchrun starts; some up to a step, and resumed there. They return what
must outlive the training.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
import torchvision_import  # noqa: F401 - before torchvision
from job import BATCH, EPOCHS, SEED, SETTINGS, SOURCE, TRAIN, VAL, WORKERS, Pixels, count, decode, read, say
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

VALIDATION = SETTINGS.get("validation", False)
CLASSES = 20
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
STOP, RESUME = SETTINGS.get("stop"), SETTINGS.get("resume", False)


def to_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data[-64:]), dtype=torch.uint8).float()


def folder(root: str) -> ImageFolder:
    return ImageFolder(root, transform=to_tensor, loader=read)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, CLASSES))


def lightning() -> Any:
    from lightning import LightningModule, Trainer, seed_everything

    class Classifier(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model()

        def training_step(self, batch, _):
            return torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def validation_step(self, batch, _) -> None:
            self.log("loss", torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-6)

    seed_everything(SEED, verbose=False)
    trainer = Trainer(
        max_epochs=EPOCHS, max_steps=STOP or -1, accelerator="cpu", devices=WORLD,
        strategy="ddp" if WORLD > 1 else "auto",
        logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    batches = DataLoader(folder(TRAIN), BATCH, shuffle=True, num_workers=WORKERS)
    checks = DataLoader(folder(VAL), BATCH, num_workers=WORKERS) if VALIDATION else None
    checkpoint = os.path.join(SETTINGS.get("output", ""), "last.ckpt")
    trainer.fit(Classifier(), batches, checks, ckpt_path=checkpoint if RESUME else None)
    if STOP:
        trainer.save_checkpoint(checkpoint)
    return trainer


def accelerate() -> Any:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, set_seed

    seedable = SETTINGS.get("seedable", False)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=seedable))
    set_seed(SEED)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    batches = DataLoader(folder(TRAIN), BATCH, shuffle=True, num_workers=WORKERS)
    net, optimizer, batches = accelerator.prepare(net, optimizer, batches)
    for _ in range(EPOCHS):
        for data, labels in batches:
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.cross_entropy(net(data), labels))
            optimizer.step()
    return net


def trainer() -> Any:
    import transformers

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model()

        def forward(self, data, labels):
            logits = self.model(data)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    class Stop(transformers.TrainerCallback):
        """The job is ended, as by a batch system."""

        def on_step_end(self, args, state, control, **_):
            control.should_training_stop = state.global_step == STOP

    def collate(samples):
        return {"data": torch.stack([s[0] for s in samples]), "labels": torch.tensor([s[1] for s in samples])}

    arguments = transformers.TrainingArguments(
        output_dir=SETTINGS["output"], num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH, eval_strategy="epoch" if VALIDATION else "no", report_to=[],
        save_strategy="steps" if STOP else "no", save_steps=STOP or 1,
        logging_strategy="no", disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False,
        dataloader_num_workers=WORKERS, seed=SEED, remove_unused_columns=False,
    )  # fmt: skip
    validation = folder(VAL) if VALIDATION else None
    used = transformers.Trainer(
        Classifier(), arguments, train_dataset=folder(TRAIN), eval_dataset=validation, data_collator=collate,
        callbacks=[Stop()],
    )  # fmt: skip
    used.train(resume_from_checkpoint=RESUME)
    return used


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
    for _ in range(EPOCHS):
        for images, _ in batches:
            decode(len(images))
            seen.add(images.numpy())
        if checks is not None:
            for images, _ in checks:
                decode(len(images))
                count(len(images))
    source = timm.data.create_dataset("", root=f"{SOURCE}/train")
    source.transform = batches.dataset.transform
    count(seen.total)
    seen.check(EPOCHS, (source[i][0].numpy() for i in range(len(source))))


KINDS = {"lightning": lightning, "accelerate": accelerate, "trainer": trainer, "timm": timm}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    kept = KINDS[SETTINGS["kind"]]()
    say()
