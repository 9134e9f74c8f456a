"""The bar shows how far a command has come."""

from nopfsfs.text.progress import WIDTH, bar


def test_the_bar_says_share_bytes_rate_and_time() -> None:
    said = bar(1 << 20, 4 << 20, 2.0)
    assert said == f"[{'#' * 6}{'.' * (WIDTH - 6)}]  25 %, 1.0 MiB of 4.0 MiB, 512 KiB/s, 6.0 s left"


def test_the_ends() -> None:
    assert bar(0, 100, 3.0) == f"[{'.' * WIDTH}]   0 %, 0 B of 100 B"
    assert bar(100, 100, 1.0).startswith(f"[{'#' * WIDTH}] 100 %")
    assert bar(0, 0, 0.0).startswith(f"[{'#' * WIDTH}] 100 %")
    assert "left" not in bar(100, 100, 1.0)
