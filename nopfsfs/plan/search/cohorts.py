"""All readers whose opens no confirmed plan explains: owns who came together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nopfsfs.plan.search.cohort import Cohort
from nopfsfs.plan.search.kept_opens import Open
from nopfsfs.plan.search.row_owners import RowOwners
from nopfsfs.plan.search.suspects import MAX_OPENS

# Opens of others after which a cohort's readers have ended; or so many of each of their readers, if these are more.
ENDED, _ENDED_EACH = 64, 4
# A reader that comes later than so many opens of others after a cohort's last belongs to another.
_TOGETHER = 512
_COHORTS = 8
_READERS = 4096


class Cohorts:
    """All cohorts of a mount."""

    def __init__(self, ownership: RowOwners) -> None:
        self._ownership = ownership
        self.cohorts: list[Cohort] = []  # the newest last
        self._of: dict[int, Cohort] = {}

    def __bool__(self) -> bool:
        return bool(self.cohorts)

    def of(self, reader: int) -> Cohort | None:
        """The cohort of a reader, if it has unexplained opens."""
        return self._of.get(reader)

    def join(self, reader: int, now: int) -> Cohort:
        """The cohort of a reader; a new one when nobody has come along with it."""
        found = self._of.get(reader)
        if found is not None:
            return found
        if len(self._of) >= _READERS:
            self._of.clear()
        for cohort in reversed(self.cohorts):
            if cohort.readers and cohort.count < MAX_OPENS and now - cohort.last <= _TOGETHER:
                found = cohort
                break
        else:
            found = self._new(now)
        found.readers.add(reader)
        self._of[reader] = found
        return found

    def _new(self, now: int) -> Cohort:
        found = Cohort(self._ownership, now)
        self.cohorts.append(found)
        if len(self.cohorts) > _COHORTS:
            self.drop(min(self.cohorts[:-1], key=lambda one: (one.full is not None, one.last)))
        return found

    def ended(self, cohort: Cohort) -> bool:
        """True: its readers seem to have ended: others, who are not explained either, have opened much since."""
        since = [one for one in self.cohorts if one.last > cohort.last]
        opens = max((one.last for one in since), default=cohort.last) - cohort.last
        return opens > max(ENDED, _ENDED_EACH * sum(len(one.readers) for one in since))

    def begin_epoch(self, cohort: Cohort, rows: Sequence[int]) -> None:
        """Search anew for a cohort's readers, if they open these files again. Where everything is being tried for what
        they opened before, that search keeps the cohort, and the readers get a new one."""
        lately = cohort.opened_again(rows)
        if lately and cohort.full is not None:
            before, cohort = cohort, self._new(lately[-1][2])
            for reader in before.readers:  # others of them join it when they open something
                if self._of.get(reader) is before:
                    del self._of[reader]
            cohort.readers = {reader for _, reader, _ in lately}
            self._of.update(dict.fromkeys(cohort.readers, cohort))
            before.left_by_readers(lately[0][2] - 1)
        if lately:
            cohort.restart(lately)

    def forgive(self, reader: int) -> None:
        """Note that the reader does what is expected of it: every other time its cohort's oldest open was a stray."""
        cohort = self._of.get(reader)
        if cohort is not None:
            cohort.forgive()
            if not cohort.opens:
                self.drop(cohort)

    def explained(self, cohort: Cohort, opens: Sequence[Open]) -> set[int]:
        """Forget opens of a cohort that a plan explains. Returns the readers who belong to the plan, because it
        explains most of their opens; what others have opened stays to be explained."""
        all_of = Counter(reader for _, reader, _ in cohort.opens)
        some_of = Counter(reader for _, reader, _ in opens)
        own = {reader for reader, count in some_of.items() if 2 * count > all_of[reader]}
        gone = set(opens)
        left = [one for one in cohort.opens if one not in gone and one[1] not in own]
        cohort.restart(left)
        if not left and cohort in self.cohorts:
            self.drop(cohort)
        return own - {0}

    def drop(self, cohort: Cohort) -> None:
        """Forget a cohort."""
        self.cohorts.remove(cohort)
        for reader in cohort.readers:
            if self._of.get(reader) is cohort:
                del self._of[reader]
