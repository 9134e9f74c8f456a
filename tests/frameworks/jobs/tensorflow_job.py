"""TensorFlow's and Keras' input pipelines, as their guides write them."""

from __future__ import annotations

import os

import tensorflow as tf
from job import BATCH, EPOCHS, SEED, SETTINGS, SOURCE, TRAIN, VAL, Pixels, count, decode, files, raw, say

SIDE = 8
PATTERN = "*/*.JPEG"
AUTOTUNE = tf.data.AUTOTUNE
SOURCE_TRAIN = os.path.join(SOURCE, "train")


def check(batches, epochs: int = EPOCHS, root: str = SOURCE_TRAIN) -> None:
    """Reads all; bytes are those of the source."""
    seen = Pixels()
    for _ in range(epochs):
        for batch in batches:
            decode(len(batch))
            seen.add(batch.numpy())
    count(seen.total)
    seen.check(epochs, map(raw, files(root)))


def list_files() -> None:
    data = tf.data.Dataset.list_files(os.path.join(TRAIN, PATTERN), seed=SEED)
    if SETTINGS.get("twice"):
        data = data.shuffle(1000, seed=SEED)
    check(data.map(tf.io.read_file, num_parallel_calls=SETTINGS["parallel"]).batch(BATCH).prefetch(AUTOTUNE))


def shuffle() -> None:
    if SETTINGS.get("set_seed"):
        tf.random.set_seed(SEED)
    names = files(TRAIN)
    data = tf.data.Dataset.from_tensor_slices(names)
    data = data.shuffle(SETTINGS.get("buffer") or len(names), seed=None if SETTINGS.get("set_seed") else SEED)
    parallel = SETTINGS.get("parallel", AUTOTUNE)
    check(data.map(tf.io.read_file, num_parallel_calls=parallel or None).batch(BATCH).prefetch(AUTOTUNE))


def image(path):
    label = tf.strings.to_number(tf.strings.substr(tf.strings.split(path, os.sep)[-2], 1, 8), tf.int32)
    return tf.reshape(tf.image.decode_jpeg(tf.io.read_file(path)), (SIDE, SIDE, 3)) / 255, label


def model() -> tf.keras.Model:
    found = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(20)])
    found.compile(loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return found


class Decoding(tf.keras.callbacks.Callback):
    """What the images of a batch take, where a model is fitted."""

    def on_train_batch_end(self, batch, logs=None) -> None:
        decode(BATCH)


def fit() -> None:
    names = files(TRAIN)
    data = tf.data.Dataset.from_tensor_slices(names).shuffle(len(names), seed=SEED)
    data = data.map(image, num_parallel_calls=AUTOTUNE).batch(BATCH).prefetch(AUTOTUNE)
    checks, steps = None, 0
    if SETTINGS.get("validation"):
        checks = tf.data.Dataset.from_tensor_slices(files(VAL)).map(image).batch(BATCH)
        steps = len(files(VAL))
    model().fit(data, epochs=EPOCHS, validation_data=checks, verbose=0, callbacks=[Decoding()])
    count(EPOCHS * (len(names) + steps))


def directory() -> None:
    split = SETTINGS.get("split", 0.0)
    options = {"seed": SEED, "image_size": (SIDE, SIDE), "batch_size": BATCH}
    if split:
        options |= {"validation_split": split, "subset": "both"}
    made = tf.keras.utils.image_dataset_from_directory(TRAIN, verbose=False, **options)
    right = tf.keras.utils.image_dataset_from_directory(
        SOURCE_TRAIN, shuffle=False, image_size=(SIDE, SIDE), batch_size=BATCH, verbose=False
    )
    source = [one for images, _ in right for one in images.numpy()]
    if SETTINGS.get("fit"):
        data, checks = made if split else (made, None)
        model().fit(data, epochs=EPOCHS, validation_data=checks, verbose=0, callbacks=[Decoding()])
        count(EPOCHS * len(source))
        return
    seen = Pixels()
    for _ in range(EPOCHS):
        for part in made if split else (made,):
            for images, _ in part:
                decode(len(images))
                seen.add(images.numpy())
    count(seen.total)
    seen.check(EPOCHS, source)


KINDS = {"list_files": list_files, "shuffle": shuffle, "fit": fit, "directory": directory}

if __name__ == "__main__":
    KINDS[SETTINGS["kind"]]()
    say()
