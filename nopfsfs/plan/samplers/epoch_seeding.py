"""The ways in which a program that shuffles by itself goes on to the next epoch: what numpy's and Python's generators
share."""

from __future__ import annotations

from nopfsfs.plan.samplers.sampler import Option, Spec

STREAM = "stream"
SHUFFLE = "shuffle"
ADD = "seed+epoch"
SAME = "same"
KINDS = (STREAM, SHUFFLE, ADD, SAME)

# How many epochs are worth trying: a generator that is carried on is seeded in the program, so that a job that starts
# again begins at 0; with seed + epoch a resumed job is in the midst of them, but each costs a whole permutation.
_BLIND = {STREAM: 3, SHUFFLE: 3, ADD: 16, SAME: 1}


def option(default: str) -> Option:
    """The option `carry`."""
    return Option(
        "how epochs follow: one generator and a new permutation of 0..n-1 each epoch (stream); one generator and the "
        "same list shuffled again (shuffle); a new generator each epoch (seed+epoch); the same order always (same)",
        str,
        default,
        choices=KINDS,
    )


def with_kind(spec: Spec, kind: str, default: str) -> Spec:
    """A sampler with another `carry`, left out where it is the default."""
    return spec.with_option("carry", 0 if kind == default else kind)


def epochs(kind: str) -> int:
    """The number of epochs that are worth trying blind."""
    return _BLIND[kind]


def following(spec: Spec, epoch: int, default: str) -> tuple[tuple[Spec, int], ...]:
    """The next epoch; the same again; the first again. Epoch 0 is the same whatever the `carry`: after it, all of them
    are possible."""
    found = [(spec, epoch + 1)]
    if epoch == 0:
        found += [(with_kind(spec, kind, default), 1) for kind in KINDS]
    found += [(spec, epoch), (spec, 0)]
    return tuple(dict.fromkeys(found))
