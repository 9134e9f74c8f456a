"""`nopfsfs.Mount` makes objects of what a daemon answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nopfsfs
from nopfsfs.control.find_mount import Located
from nopfsfs.errors import Exit, NopfsError
from nopfsfs.monitor import mount_view
from nopfsfs.monitor.metric_table import Durations
from nopfsfs.supervisor.observing.counts import LENGTH
from nopfsfs.supervisor.observing.epoch_records import EpochLabel, EpochRecords, Look
from tests.monitor.figures import figures

COLUMNS = ["opens", "limit"]
KEPT = [[float(number), None] for number in range(25)]


class Daemon:
    """Answers as a supervisor does, of rows that began at 100 s, 10 at a time."""

    def __init__(self) -> None:
        records = EpochRecords(np.zeros(LENGTH))
        counts = np.zeros(LENGTH)
        counts[0] = 7
        records.look(Look(counts, 1.0, 1.0, 1.0), EpochLabel((1,), True, 7, "train", "random", 3, 5))
        self.status = {"state": "running", "served": {"ram": {"files": 7}}, "epochs": records.describe()}

    def call(self, command: str, limit_s: float = 5.0, *, step: int = 1, since: float = 0.0) -> dict[str, Any]:
        if command == "status":
            return self.status
        if command == "metrics":
            return figures()
        first = max(0, int(np.ceil((since - 100.0) / step)))
        return {"step": step, "begin": 100.0 + step * first, "most": 10, "columns": COLUMNS,
                "rows": KEPT[first : first + 10]}  # fmt: skip


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch) -> nopfsfs.Mount:
    daemon = Daemon()
    located = Located("/mnt/fast", None, "/nowhere")  # type: ignore[arg-type]
    monkeypatch.setattr(Located, "call", lambda self, *words, **further: daemon.call(*words, **further))
    monkeypatch.setattr(mount_view, "find_mount_above", lambda path: (located, ""))
    return nopfsfs.Mount(Path("/mnt/fast/train"))


def test_the_status_has_attributes_for_keys(mount: nopfsfs.Mount) -> None:
    assert (mount.path, repr(mount)) == ("/mnt/fast", "nopfsfs.Mount('/mnt/fast')")
    assert mount.status().served.ram.files == 7


def test_epochs_have_all_that_the_record_has(mount: nopfsfs.Mount) -> None:
    (epoch,) = mount.epochs()
    assert (epoch.epoch, epoch.dataset, epoch.files, epoch.counts, epoch.ended) == (5, "train", 7, "exact", False)
    assert {one: getattr(epoch, one) for one in Daemon().status["epochs"][0]} == Daemon().status["epochs"][0]  # type: ignore[index]


@pytest.mark.parametrize("step", [1, 10])
def test_a_history_of_several_answers_is_one(mount: nopfsfs.Mount, step: int) -> None:
    found = mount.history(step)
    assert len(found) == 25
    assert found.time.tolist() == [100.0 + step * number for number in range(25)]
    assert found["opens"].tolist() == list(range(25))
    assert np.isnan(found["limit"]).all()
    assert mount.history(step, since=100.0 + 20 * step)["opens"].tolist() == [20, 21, 22, 23, 24]


def test_a_step_that_there_is_not(mount: nopfsfs.Mount) -> None:
    with pytest.raises(ValueError, match="step: 2 is not 1, 10 or 60"):
        mount.history(2)


def test_metrics(mount: nopfsfs.Mount) -> None:
    found = {(one.name, *one.labels.values()): one.value for one in mount.metrics()}
    assert found["nopfs_opens_total",] == 150
    assert found["nopfs_served_bytes_total", "ram"] == 2000
    assert isinstance(found["nopfs_reader_wait_seconds",], Durations)


def test_where_there_is_no_mount(tmp_path: Path) -> None:
    with pytest.raises(NopfsError, match="is in no nopfs mount") as raised:
        nopfsfs.Mount(tmp_path)
    assert raised.value.exit_code is Exit.NOT_MOUNTED
