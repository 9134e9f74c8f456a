"""Rules of a site: which apply, what they come to, and what is wrong with a file."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopfsfs.config import MAX_CONCURRENCY
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.policy.site_rules import DAY, MountIdentity, SiteLimits, SiteShare, parse_rules, strictest

ALICE = MountIdentity("alice", "nightly-7", "/pfs/imagenet/train")
BOB = MountIdentity("bob", "", "/pfs/imagenet/train")
NOON, NIGHT = 12 * 60, 23 * 60
EXAMPLE = """
version = 1
default = { weight = 2.0, concurrency = 100, share = "job" }
[[rule]]
match = { user = ["alice", "carol"], job = "nightly-*", source = "/pfs/imagenet*" }
hours = "08:00-20:00"
weight = 0.25
bandwidth = "2GB/s"
[[rule]]
match = { user = "a*" }
weight = 0.5
[[rule]]
hours = "22:00-06:00"
concurrency = 256
"""


def test_all_rules_that_match_apply_later_ones_over_earlier() -> None:
    rules = parse_rules(EXAMPLE, "policy.toml")
    assert rules.limits(BOB, NOON) == (SiteLimits(2.0, 100, None, SiteShare.JOB), ())
    assert rules.limits(ALICE, NOON) == (SiteLimits(0.5, 100, 2 * 10**9, SiteShare.JOB), (1, 2))
    assert rules.limits(ALICE, NIGHT) == (SiteLimits(0.5, 256, None, SiteShare.JOB), (2, 3))


def test_a_file_that_says_nothing_changes_nothing() -> None:
    rules = parse_rules("version = 1", "policy.toml")
    assert rules.limits(ALICE, NOON) == (SiteLimits(), ())
    assert SiteLimits() == SiteLimits(1.0, MAX_CONCURRENCY, None, SiteShare.ROOT)


@pytest.mark.parametrize(
    ("minute", "day", "night"), [(8 * 60 - 1, False, False), (8 * 60, True, False), (20 * 60, False, False),
                                 (0, False, True), (6 * 60, False, False), (DAY - 1, False, True)],
)  # fmt: skip
def test_hours_begin_and_end_and_may_go_over_midnight(minute: int, day: bool, night: bool) -> None:
    rules = parse_rules(EXAMPLE, "policy.toml")
    _, applied = rules.limits(ALICE, minute)
    assert (1 in applied, 3 in applied) == (day, night)


def test_of_two_files_the_stricter_counts_for_each_key() -> None:
    one, other = SiteLimits(0.5, 200, None, SiteShare.NODE), SiteLimits(1.0, 100, 5, SiteShare.JOB)
    assert strictest([one, other]) == SiteLimits(0.5, 100, 5, SiteShare.JOB)
    assert strictest([]) == SiteLimits()


def test_a_job_of_many_nodes_has_the_share_of_as_many_their_root_or_one() -> None:
    """A mount's aim is divided by the root of its ranks: so the job's is n, sqrt(n), or 1 times that of a mount."""
    assert [share.ranks(64) ** 0.5 for share in SiteShare] == [1, 8, 64]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "version: missing; write version = 1"),
        ("version = 2", "policy.toml:1: version: 2 is not allowed"),
        ("version = 1\nweigth = 2", "weigth: no such key"),
        ("version = 1\n[[rule]]\nmatch = { user = 'a' }", "the rule sets nothing"),
        ("version = 1\n[[rule]]\nweight = 0", "rule[1].weight: 0 is not a weight"),
        ("version = 1\n[[rule]]\nweight = 1\nhours = '8-20'", "rule[1].hours: '8-20' are not hours"),
        ("version = 1\n[[rule]]\nweight = 1\nhours = '08:00-24:30'", "are not hours of a day"),
        ("version = 1\n[[rule]]\nweight = 1\nhours = '08:00-08:00'", "leave `hours` out"),
        ("version = 1\n[[rule]]\nweight = 1\nmatch = { users = 'a' }", "did you mean user?"),
        ("version = 1\n[[rule]]\nweight = 1\nmatch = { user = [] }", "is no pattern"),
        ("version = 1\n[[rule]]\nshare = 'all'", "'all' is not a share"),
        ("version = 1\n[[rule]]\nbandwidth = 'much'", "rule[1].bandwidth"),
        ("version = 1\n[[rule]]\nconcurrency = 100000", "whole number from 1 to 1024"),
        ("version = 1\n" + "[[rule]]\nweight = 1\n" * 1001, "1001 rules are given"),
        ("version =", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, said: str) -> None:
    with pytest.raises(NopfsError) as error:
        parse_rules(text, "policy.toml")
    assert error.value.exit_code == Exit.USAGE
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@given(st.text(max_size=200) | st.sampled_from(["version = 1\nrule = 3", "version = 1\ndefault = []"]))
def test_any_text_is_rules_or_one_error(text: str) -> None:
    with contextlib.suppress(NopfsError):
        assert parse_rules(text, "policy.toml").limits(ALICE, NOON)
