"""The options --sampler, --seed and --sampler-option: a plan on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nopfsfs.cli.option_values import parse_flag
from nopfsfs.cli.settings import usage
from nopfsfs.config import PlanSpec, Value
from nopfsfs.plan.samplers import registry
from nopfsfs.plan.samplers.sampler import Option, Sampler


def said_plan(sampler: str, seed: int | None, options: Sequence[str]) -> PlanSpec | None:
    """The plan of --sampler with --sampler-option. None without options: then only the seed and the sampler's name are
    known, and the mount tries configurations. Raises NopfsError with Exit.USAGE."""
    if not options:
        if seed is not None and sampler != registry.AUTO:
            check(registry.sampler(sampler), seed, {})
        return None
    if sampler == registry.AUTO:
        raise usage(f"--sampler-option {options[0]}: of which sampler? Name it with --sampler")
    values = said_options(sampler, options)
    check(registry.sampler(sampler), seed, values)
    return PlanSpec(sampler=sampler, seed=seed, options=tuple(sorted(values.items())))


def said_options(sampler: str, texts: Sequence[str]) -> dict[str, Value]:
    """The values of NAME=VALUE texts, each of the kind of the sampler's option. Raises NopfsError with
    Exit.USAGE."""
    options = registry.SAMPLERS[sampler].options if sampler in registry.SAMPLERS else {}
    values: dict[str, Value] = {}
    for text in texts:
        name, equals, word = text.partition("=")
        if not equals:
            raise usage(f"--sampler-option {text}: write NAME=VALUE, such as drop_last=true")
        values[name.strip()] = _value(options, name.strip(), word.strip())
    return values


def check(family: Sampler, seed: int | None, options: dict[str, Value]) -> None:
    """Raise NopfsError with Exit.USAGE for a seed or an option that the sampler does not take."""
    known = seed if seed is not None or family.seeds is None else family.seeds[0]
    try:
        registry.make_spec(family, known or 0, options)
    except ValueError as error:
        key, _, reason = str(error).partition(": ")
        origin = "--seed" if key == "seed" and key not in options else f"--sampler-option {key}"
        raise usage(f"{origin}: {reason}") from error


def _value(options: Mapping[str, Option], name: str, word: str) -> Value:
    """The value of a word, of the kind of the option. An unknown option is refused later; its value is the word."""
    kind = options[name].kind if name in options else str
    try:
        return parse_flag(word) if kind is bool else kind(word)
    except ValueError:
        words = {int: "a whole number", float: "a number", bool: "true or false"}
        raise usage(f"--sampler-option {name}: {word!r} is not {words[kind]}") from None
