"""Notifications of rights that changed, which reach the kernel after the last answer with the rights of before."""

from __future__ import annotations

from nopfsfs.stager.attribute_notices import AGAIN_S
from nopfsfs.supervisor.processes.servers import ServerHandle
from nopfsfs.supervisor.processes.supervised import HANGS_S, LOOK_S


def test_a_server_that_hangs_with_the_rights_of_before_is_replaced_before_the_second_notification() -> None:
    """It may go on just before it is found to hang, and answer then."""
    assert HANGS_S + LOOK_S + ServerHandle.ping_s < AGAIN_S
