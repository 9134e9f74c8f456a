"""What the training frameworks need before they can be imported in a test."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

_libraries: list[Any] = []  # torch forgets the operators of a library that is not kept


def import_torchvision() -> ModuleType:
    """torchvision, or the test is skipped. Its compiled operators, which a build of torch for another device
    may lack, are only declared: no data set needs them."""
    torch = pytest.importorskip("torch")
    if not _libraries:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms(Tensor dets", "qnms(Tensor dets"):
            try:
                library.define(f"{name}, Tensor scores, float iou_threshold) -> Tensor")
            except RuntimeError:
                pass  # the build has it
        _libraries.append(library)
    module: ModuleType = pytest.importorskip("torchvision")
    return module
