"""When a mount may be left to another supervisor."""

from __future__ import annotations

import pytest

from nopfsfs.protocol.columns import LAYOUT
from nopfsfs.supervisor.succession import check_hand_over

GOOD = {"state": "running", "lasting": True, "serving": True, "foreground": False, "peers": False}


def test_a_mount_that_runs_may_be_handed_over() -> None:
    check_hand_over({"layout": LAYOUT}, **GOOD)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ({"lasting": False}, "fast path"),
        ({"serving": False}, "no server of this mount lives now"),  # the last descriptor of the connection would close
        ({"foreground": True}, "foreground"),
        ({"peers": True}, "peers"),
        ({"state": "starting"}, "still starting"),
    ],
)
def test_otherwise_it_is_said_why_not(what: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_hand_over({"layout": LAYOUT}, **{**GOOD, **what})  # type: ignore[arg-type]


def test_another_version_does_not_understand_the_memory() -> None:
    with pytest.raises(ValueError, match="mount it anew"):
        check_hand_over({"layout": LAYOUT + 1}, **GOOD)  # type: ignore[arg-type]
