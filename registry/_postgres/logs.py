"""The server's log: kept short, and read for the reason of a failure."""

from __future__ import annotations

from pathlib import Path

__all__ = ["read_from", "reason_from_log", "rotate"]

_MAX_LOG_BYTES = 1_000_000


def reason_from_log(text: str, *, max_chars: int = 400) -> str:
    """Return the lines of a server's output that say what went wrong, as one bounded line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marks = ("FATAL:", "PANIC:", "ERROR:", "HINT:", "DETAIL:", "error:", "No space left")
    telling = [line for line in lines if any(mark in line for mark in marks)] or lines
    line = "; ".join(telling[-4:])
    return line if len(line) <= max_chars else f"…{line[-max_chars:]}"


def rotate(log_path: Path) -> int:
    """Return where the log will go on; a long one is put aside first."""
    try:
        size = log_path.stat().st_size
    except FileNotFoundError:
        return 0
    if size > _MAX_LOG_BYTES:
        log_path.replace(log_path.with_name(f"{log_path.name}.old"))
        return 0
    return size


def read_from(path: Path, offset: int) -> str:
    """Return what was logged from there on, bounded."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(_MAX_LOG_BYTES).decode("utf-8", "replace")
