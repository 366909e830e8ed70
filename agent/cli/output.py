"""How things are printed: rich on a terminal, plain aligned text in a pipe, one JSON document.

Results go to stdout, everything else (notes, progress, errors) to stderr.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from registry.types import ProgressCallback, SyncProgress

__all__ = [
    "Output",
    "aligned",
    "counted",
    "jsonable",
    "one_line",
    "without_controls",
    "without_secrets",
]

# Escape sequences in a tool's text would otherwise reach the terminal and be obeyed.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_URL_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^:/?#@\s]*:)\S*@", re.IGNORECASE)


def without_controls(text: str) -> str:
    """Return the text with control characters made visible; newlines and tabs stay."""
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return the text on one line, each run of white space one space."""
    return " ".join(without_controls(text).split())


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 tool`, `3 tools`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def without_secrets(text: str, *, secrets: Sequence[str] = ()) -> str:
    """Return the text with the passwords of URLs, and the given secrets, hidden."""
    text = _URL_PASSWORD.sub(r"\1***@", text)
    for secret in secrets:
        if len(secret) >= 8:
            text = text.replace(secret, "***")
    return text


def jsonable(value: Any) -> Any:
    """Return a value of ours as what `json.dumps` takes; anything unknown as its text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): jsonable(item) for key, item in items}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [jsonable(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, datetime):
        return value.isoformat()
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def aligned(rows: Sequence[Sequence[str]], *, right: Sequence[bool] = ()) -> list[str]:
    """Return rows as lines with aligned columns, two spaces apart, nothing cut.

    Args:
        rows: n rows of m cells, one line each.
        right: For each column whether it is right-aligned; missing ones are left-aligned.
    """
    if not rows:
        return []
    columns = range(len(rows[0]))
    widths = [max(cell_len(row[column]) for row in rows) for column in columns]

    def padded(column: int, cell: str) -> str:
        space = " " * (widths[column] - cell_len(cell))
        return space + cell if column < len(right) and right[column] else cell + space

    return ["  ".join(padded(c, row[c]) for c in columns).rstrip() for row in rows]


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


class Output:
    """Where a command prints. Made once a command, after the streams are in place.

    Each piece is flushed: whoever reads a pipe sees it when it is there, and a full disk is
    noticed where the piece is written.
    """

    def __init__(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            # A character that the terminal's encoding lacks must not end the command.
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="replace")
        # Kept: stdout is redirected while a user's module or tool runs, results are not.
        self._stdout = sys.stdout
        self._out = Console(file=self._stdout, markup=False, highlight=False, emoji=False)
        self._err = Console(stderr=True, markup=False, highlight=False, emoji=False)

    @property
    def is_terminal(self) -> bool:
        """Whether stdout is a terminal, so that styles and a width make sense."""
        return self._out.is_terminal

    def text(self, text: str = "", *, style: str = "", indent: int = 0) -> None:
        """Print lines; wrapped on a terminal with the indent kept, as they are in a pipe."""
        safe = without_controls(text)
        if not self.is_terminal:
            margin = " " * indent
            for line in safe.split("\n"):
                self._write(f"{margin}{line}".rstrip())
            self._stdout.flush()
            return
        from rich.padding import Padding

        self._out.print(Padding(Text(safe, style=style), (0, 0, 0, indent)))

    def parts(self, *parts: tuple[str, str], indent: int = 0) -> None:
        """Print one paragraph of (text, style) parts; a hanging indent keeps the label clear."""
        if not self.is_terminal:
            self.text("".join(text for text, _ in parts), indent=indent)
            return
        label, rest = parts[0], parts[1:]
        grid = Table.grid(padding=0)
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        body = Text.assemble(*((without_controls(text), style) for text, style in rest))
        grid.add_row(Text(" " * indent + without_controls(label[0]), style=label[1]), body)
        self._out.print(grid)

    def rule(self, title: str) -> None:
        """Print a heading over the whole width."""
        if self.is_terminal:
            self._out.rule(Text(one_line(title), style="bold"), align="left", style="dim")
        else:
            self._write(f"== {one_line(title)}")
            self._stdout.flush()

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        numeric: Sequence[str] = (),
        wide: str = "",
        indent: int = 0,
    ) -> None:
        """Print a table.

        Args:
            columns: Headings, unique.
            rows: Cells as text, as many as columns.
            numeric: Columns to align right.
            wide: The last column's name, where a terminal may cut it with `…` rather than wrap
                it; pipes get it whole.
            indent: Spaces before each line.
        """
        cells = [[one_line(cell) for cell in row] for row in rows]
        heading = [column.upper() for column in columns]
        right = [column in numeric for column in columns]
        if not self.is_terminal:
            for line in aligned([heading, *cells], right=right):
                self._write(" " * indent + line)
            self._stdout.flush()
            return
        room = self._room_for_last(cells, heading, indent)
        if columns[-1] == wide:
            shown = [[*row[:-1], _cut(row[-1], room)] for row in cells]
        else:
            shown = [line for row in cells for line in self._wrapped(row, room)]
        first, *others = aligned([heading, *shown], right=right)
        margin = " " * indent
        self._out.print(Text(margin + first, style="bold dim"), soft_wrap=True)
        for line in others:
            self._out.print(Text(margin + line), soft_wrap=True)

    def _room_for_last(
        self, cells: Sequence[Sequence[str]], heading: Sequence[str], indent: int
    ) -> int:
        """Return the width that is left for the last column; on a narrow terminal, at least 20."""
        table = [heading, *cells]
        taken = sum(
            max(cell_len(row[column]) for row in table) + 2 for column in range(len(heading) - 1)
        )
        return max(20, self._out.width - indent - taken)

    def _wrapped(self, row: Sequence[str], width: int) -> list[list[str]]:
        lines = [line.plain.rstrip() for line in Text(row[-1]).wrap(self._out, width)] or [""]
        blank = [""] * (len(row) - 1)
        return [[*(row[:-1] if number == 0 else blank), line] for number, line in enumerate(lines)]

    def json(self, document: Any) -> None:
        """Print one JSON document, the only thing on stdout."""
        dumped = json.dumps(jsonable(document), ensure_ascii=False, indent=2, allow_nan=False)
        self._write(_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", dumped))
        self._stdout.flush()

    def note(self, text: str) -> None:
        """Print a remark for people, on stderr."""
        self._err.print(Text(without_controls(text), style="dim"), soft_wrap=True)

    @contextmanager
    def embedding_progress(self, label: str = "Embedding") -> Generator[ProgressCallback | None]:
        """Give a callback that draws a bar on stderr; None where stderr is no terminal."""
        if not self._err.is_terminal:
            yield None
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        with Progress(
            TextColumn(label),
            BarColumn(),
            MofNCompleteColumn(),
            console=self._err,
            transient=True,
        ) as progress:
            task = progress.add_task(label, total=None)

            def advance(state: SyncProgress) -> None:
                progress.update(task, completed=state.done, total=state.total)

            yield advance

    def _write(self, line: str) -> None:
        # Not through rich: in a pipe every character must arrive as it is, on one line.
        self._stdout.write(f"{line}\n")
