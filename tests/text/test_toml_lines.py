"""The line of each key of a TOML file."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.text.toml_lines import Path, key_lines, line_of, tomllib

TEXT = '''\
# rate = 1
name = "a = 1 # [x]"  # name = 2
note = """
rate = 3
"""""
'quoted.key' = 1
dotted . "a b" = 1
[ table ]  # [other]
rate = { 1 = 2, "x" = [ { y = 1 },
  { y = 2, z = {} } ] }
list = [
  1, # rate = 3
  { k = '[' }
]
[[class]]
rate = 07:32:00
[class.sub]
rate = 1.5
[[class]]

rate = 2
[[class.many]]
k = 1
[[class.many]]
k = 2
[class.many.deep]
k = 3
'''
LINES: dict[Path, int] = {
    ("name",): 2,
    ("note",): 3,
    ("quoted.key",): 6,
    ("dotted",): 7,
    ("dotted", "a b"): 7,
    ("table",): 8,
    ("table", "rate"): 9,
    ("table", "rate", "1"): 9,
    ("table", "rate", "x"): 9,
    ("table", "rate", "x", 0): 9,
    ("table", "rate", "x", 0, "y"): 9,
    ("table", "rate", "x", 1): 10,
    ("table", "rate", "x", 1, "y"): 10,
    ("table", "rate", "x", 1, "z"): 10,
    ("table", "list"): 11,
    ("table", "list", 1): 13,
    ("table", "list", 1, "k"): 13,
    ("class",): 15,
    ("class", 0): 15,
    ("class", 0, "rate"): 16,
    ("class", 0, "sub"): 17,
    ("class", 0, "sub", "rate"): 18,
    ("class", 1): 19,
    ("class", 1, "rate"): 21,
    ("class", 1, "many"): 22,
    ("class", 1, "many", 0): 22,
    ("class", 1, "many", 0, "k"): 23,
    ("class", 1, "many", 1): 24,
    ("class", 1, "many", 1, "k"): 25,
    ("class", 1, "many", 1, "deep"): 26,
    ("class", 1, "many", 1, "deep", "k"): 27,
}


def test_the_line_of_each_key() -> None:
    tomllib.loads(TEXT)

    assert key_lines(TEXT) == LINES


@pytest.mark.parametrize(
    ("path", "line"),
    [(("class", 1, "rate"), 21), (("class", 1, "x"), 19), (("table", "rate", "9"), 9), (("x",), None), ((), None)],
)
def test_what_is_missing_has_the_line_of_its_table(path: Path, line: int | None) -> None:
    assert line_of(TEXT, path) == line


@given(st.text(st.sampled_from("ab=.[]{}\"'#,\\\n 1"), max_size=40))
def test_no_text_is_too_bad(text: str) -> None:
    try:
        tomllib.loads(text)
    except ValueError:
        return
    key_lines(text)


keys = st.text(st.sampled_from("ab1.-_\"'[]{}=#, é"), max_size=4)
scalars = st.integers() | st.booleans() | st.floats(allow_nan=False) | keys
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(key)} = {toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",\n ".join(map(toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def quoted(key: str) -> str:
    return json.dumps(key, ensure_ascii=False) if "'" in key else f"'{key}'"


def paths(value: Any, at: Path = ()) -> set[Path]:
    """Of all keys, and of the entries of lists that are tables."""
    own = {at} if at and (isinstance(value, dict) or isinstance(at[-1], str)) else set()
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return own.union(*(paths(one, (*at, key)) for key, one in below))


@given(st.dictionaries(keys, values, max_size=4), st.lists(st.dictionaries(keys, values, max_size=3), max_size=3))
def test_every_key_has_a_line(top: dict[str, Any], tables: list[dict[str, Any]]) -> None:
    top.pop("b", None)
    lines = [f"{quoted(key)} = {toml(value)}" for key, value in top.items()]
    for table in tables:
        lines += ["[['b']]", *(f"{quoted(key)} = {toml(value)}" for key, value in table.items())]
    text = "\n".join(lines)
    read = tomllib.loads(text)
    assert read == ({**top, "b": tables} if tables else top)

    found = key_lines(text)

    assert set(found) == paths(read)
    for path, line in found.items():
        word = path[-1]
        assert isinstance(word, int) or quoted(word) in text.splitlines()[line - 1]
