"""The site's policy for this mount: looked for about once a minute, applied to the tuner (docs/operations.md).

A file that is broken, or does not answer, leaves the last good one; that is said once in the log, and in the status.
"""

from __future__ import annotations

import logging
import os
import pwd
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import trio

from nopfsfs.config import MountConfig
from nopfsfs.control.policy_look import Found
from nopfsfs.errors import NopfsError
from nopfsfs.policy.site_rules import MountIdentity, SiteLimits, SiteRules, parse_rules, strictest
from nopfsfs.supervisor.policy_files import LIMIT_S, find_policies

log = logging.getLogger(__name__)
PAUSE_S, SPREAD = 50.0, 0.2  # between two looks, and by how much mounts differ: with the time of a look, 70 s at most
JOB_NAMES = ("SLURM_JOB_NAME", "PBS_JOBNAME", "LSB_JOBNAME", "JOB_NAME")

Find = Callable[[str, str | None], Found | None]


class SitePolicy:
    """Limits of a mount, as policy files say. `apply` gets them whenever they change."""

    def __init__(
        self, config: MountConfig, apply: Callable[[SiteLimits], None], *, find: Find = find_policies,
        environment: Mapping[str, str] = os.environ, clock: Callable[[], time.struct_time] = time.localtime,
    ) -> None:  # fmt: skip
        self._config, self._apply, self._find, self._clock = config, apply, find, clock
        self._mount = identity_of(config, environment)
        self._rules: dict[str, SiteRules] = {}  # by path: the last good ones
        self._texts: dict[str, str] = {}
        self._errors: dict[str, str] = {}
        self._applied: dict[str, tuple[int, ...]] = {}
        self._limits = SiteLimits()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                found = await trio.to_thread.run_sync(
                    self._find, self._config.source, self._config.policy, abandon_on_cancel=True
                )
            except (OSError, RuntimeError, ValueError) as error:  # no process or thread, or no answer that is one
                self._note_errors({"": f"policy files cannot be looked for: {error}"})
            else:
                self._take(found)
            await trio.sleep(PAUSE_S * random.uniform(1 - SPREAD, 1 + SPREAD))

    def _take(self, found: Found | None) -> None:
        if found is None:
            self._note_errors({"": f"policy files: no answer within {LIMIT_S:.0f} s"})
        else:
            errors: dict[str, str] = {}
            for path, text, error in found:
                if text is None:
                    errors[path] = f"{path}: {error}"
                elif self._texts.get(path) != text:
                    try:
                        self._rules[path] = parse_rules(text, path)
                        self._texts[path] = text
                    except NopfsError as wrong:
                        errors[path] = str(wrong)
            for path in self._rules.keys() - {path for path, *_ in found}:
                errors[path] = f"{path}: the file has vanished; its rules stay"
            self._note_errors(errors)
        self._judge()

    def _note_errors(self, errors: dict[str, str]) -> None:
        for path, error in errors.items():
            if self._errors.get(path) != error:
                log.warning("%s", error)
        self._errors = errors

    def _judge(self) -> None:
        now = self._clock()
        minute = now.tm_hour * 60 + now.tm_min
        found = {path: rules.limits(self._mount, minute) for path, rules in self._rules.items()}
        self._applied = {path: applied for path, (_, applied) in found.items()}
        limits = strictest(one for one, _ in found.values())
        if limits != self._limits:
            log.info("the site's policy: %s", limits.text())
            self._limits = limits
            self._apply(limits)

    def counted(self) -> dict[str, Any]:
        """The part `policy` of the figures of a mount."""
        return {"files": len(self._applied), "refused": len(self._errors)}

    def status(self) -> dict[str, Any]:
        """The part `policy` of the record of `tune`."""
        limits = self._limits
        return {
            "files": [{"path": path, "rules": list(applied)} for path, applied in self._applied.items()],
            "errors": sorted(self._errors.values()),
            "weight": limits.weight, "concurrency": limits.concurrency, "bandwidth": limits.bandwidth,
            "share": limits.share.value, "user": self._mount.user, "job": self._mount.job,
            "job_nodes": self._config.job_nodes, "text": limits.text(),
        }  # fmt: skip


def identity_of(config: MountConfig, environment: Mapping[str, str]) -> MountIdentity:
    """Return what rules match: the user who mounted (`--user`, if given), the name of the batch job, the source."""
    uid = os.geteuid() if config.uid is None else config.uid
    user = str(uid)
    with suppress(KeyError, OSError):
        user = pwd.getpwuid(uid).pw_name
    job = next((environment[name] for name in JOB_NAMES if environment.get(name)), "")
    return MountIdentity(user, job, config.source)
