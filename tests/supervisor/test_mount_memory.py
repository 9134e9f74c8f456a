"""What files cost the memory budget, also those that have changed."""

from __future__ import annotations

from pathlib import Path

from nopfsfs.policy import budget
from nopfsfs.supervisor.mount_memory import charges
from tests.stager.rig import PAGE, rig, write_files


def test_each_file_is_charged_for_its_present_version(tmp_path: Path) -> None:
    write_files(tmp_path, [PAGE, PAGE, PAGE])
    with rig(tmp_path, budget=PAGE) as r:
        for number, sizes in enumerate(([], [3 * PAGE], [3 * PAGE, 5 * PAGE])):
            for size in sizes:
                r.path(r.files[number]).write_bytes(bytes(size))
                r.refresh(r.files[number])
        found = charges(r.index, r.columns)[r.files]
        assert found.tolist() == [budget.charges(size) for size in (PAGE, 3 * PAGE, 5 * PAGE)]
