"""Imports torchvision beside a torch that it was not built for.

torchvision's compiled operators register only with the torch that they were built for; without them its
Python part fails at import, where it describes two of them. Declaring these two is enough: data sets,
transforms and the Pillow loader, which are all that is used here, need no others. Import this before
torchvision.
"""

from __future__ import annotations

import importlib.metadata

import torch
from packaging.requirements import Requirement

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def built_for_this_torch() -> bool:
    requirements = map(Requirement, importlib.metadata.requires("torchvision") or [])
    return all(r.specifier.contains(torch.__version__) for r in requirements if r.name == "torch")


def declare_operators() -> torch.library.Library | None:
    """The library that declares them; they vanish with it, so whoever calls this keeps it."""
    if built_for_this_torch():
        return None
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in OPERATORS:
        library.define(operator)  # type: ignore[no-untyped-call]
    return library


DECLARED = declare_operators()
