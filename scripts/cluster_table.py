#!/usr/bin/env python3
"""What the nodes of a cluster read from where, with both placements, beside what the simulator says.

    python scripts/cluster_table.py [--nodes 4] [--files 2000] [--size 20000] [--epochs 4]

Opens of the slow source in each epoch, and shares of the reads of all epochs from the second on: from the source, from
other nodes, from disks, and what was there already; simulated shares in brackets.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import cluster_shares
import lab
import numpy as np
from cluster_shares import WHERE, Run
from lab import Progress

PLACEMENTS, SHARES = ("homes", "nopfs"), (0.3, 0.125)


def line(placement: str, share: float, run: Run) -> str:
    opens = ", ".join(f"{count:,}" for count in np.diff(run.opens, prepend=0).tolist())
    ours, theirs = run.later()
    cells = " | ".join(f"{ours[where]:.1%} ({theirs[where]:.1%})" for where in reversed(WHERE))
    return f"| {placement} | {share:.1%} | {opens} | {cells} | {max(run.differences().values()):.1f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--size", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=cluster_shares.COMPARED)
    asked = parser.parse_args()
    lab.exit_on_sigterm()
    lines = [
        "| placement | room of each | opens, by epoch | source | peer | disk | local | largest difference, points |",
        "|---|---|---|---|---|---|---|---|",
    ]
    with lab.place() as place, tempfile.TemporaryDirectory(dir=place) as name, Progress(4) as progress:
        tree = cluster_shares.make_files(Path(name), asked.files, asked.size)
        for placement in PLACEMENTS:
            for share in SHARES:
                progress.doing(f"{placement}, {share:.1%}")
                at = place / f"{placement}-{share}"
                at.mkdir()
                run = cluster_shares.train_compared(
                    tree, at, asked.nodes, share, asked.files, placement=placement, epochs=asked.epochs
                )
                lines.append(line(placement, share, run))
                progress.step()
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    assert WHERE
    sys.exit(main())
