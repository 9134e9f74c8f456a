"""NVIDIA DALI's file reader on the CPU. It reads further than it is asked to: what is said is the least."""

from __future__ import annotations

import os

import numpy as np
from job import BATCH, EPOCHS, SETTINGS, SOURCE, TRAIN, Pixels, count, files, raw, say
from nvidia import dali


def main() -> None:
    names = files(os.path.join(SOURCE, "train"))
    pipe = dali.Pipeline(batch_size=BATCH, num_threads=2, device_id=None)
    with pipe:
        data, label = dali.fn.readers.file(file_root=TRAIN, name="reader", **SETTINGS["options"])
        pipe.set_outputs(data, label)
    pipe.build()
    seen = Pixels()
    while seen.total < EPOCHS * len(names):
        images, _ = pipe.run()
        seen.add([np.asarray(images.at(i)).tobytes() for i in range(len(images))])
    count(seen.total)
    seen.check(None, map(raw, names))


if __name__ == "__main__":
    main()
    say(exact=False)
