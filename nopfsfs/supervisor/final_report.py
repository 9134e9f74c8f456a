"""The report that the mount leaves in the job's directory at its end (`--job-report`)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import trio

from nopfsfs.config import MountConfig
from nopfsfs.control.job_report import WRITE_S, write_job_report

log = logging.getLogger(__name__)
MARGIN_S = 1.0  # for a thread to begin


async def leave_final_report(config: MountConfig, record: Mapping[str, Any]) -> None:
    """Write the final record to the file of `--job-report`, if there is one, within some seconds. Never raises but
    Cancelled."""
    path, uid = config.job_report, config.uid
    if path is None:
        return
    why: str | None = "no answer"
    with trio.move_on_after(WRITE_S + MARGIN_S):
        try:
            why = await trio.to_thread.run_sync(
                write_job_report, path, uid, {**record, "final": True}, abandon_on_cancel=True
            )
        except RuntimeError as error:  # no thread is to be had
            why = str(error)
    if why is not None:
        log.warning("the report %s could not be written: %s", path, why)
