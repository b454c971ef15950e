"""Reads CSV text into columns, and says precisely what is wrong when it cannot."""

import csv
import io
from collections import Counter

from examples.engine.progress import Progress
from examples.engine.workflows.definition import WorkflowError

DELIMITERS = [",", ";", "\t", "|"]
ROWS_PER_REPORT = 1000
MAX_QUOTE_LENGTH = 80

Columns = dict[str, list[str]]


def read_columns(content: str, delimiter: str | None, progress: Progress) -> Columns:
    """The values of each column by its name, in the file's order."""
    lines = io.StringIO(content.removeprefix("\ufeff"), newline="")
    reader = csv.reader(lines, delimiter=delimiter or guess_delimiter(content), strict=True)
    rows: list[list[str]] = []
    try:
        header = read_header(next(filter(None, reader), None))
        for row in filter(None, reader):
            check_width(row, header, reader.line_num)
            rows.append(row)
            if len(rows) % ROWS_PER_REPORT == 0:
                progress.report(50 * lines.tell() / len(content), f"Read {len(rows)} rows")
    except csv.Error as error:
        raise WorkflowError(f"Line {reader.line_num} is not valid CSV: {error}.") from error
    return {name: [row[position] for row in rows] for position, name in enumerate(header)}


def guess_delimiter(content: str) -> str:
    """The candidate that the first line has most of; a comma when it has none."""
    first_line = content.lstrip().partition("\n")[0]
    return max(DELIMITERS, key=first_line.count)


def read_header(row: list[str] | None) -> list[str]:
    if row is None:
        raise WorkflowError("The file is empty: there is not even a header line.")
    names = [name.strip() for name in row]
    if "" in names:
        raise WorkflowError(f"Column {names.index('') + 1} has no name in the header.")
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise WorkflowError(f"The header has columns of the same name: {', '.join(map(repr, repeated))}.")
    return names


def check_width(row: list[str], header: list[str], line: int) -> None:
    if len(row) != len(header):
        quoted = ", ".join(map(repr, row))
        shown = quoted if len(quoted) <= MAX_QUOTE_LENGTH else quoted[:MAX_QUOTE_LENGTH] + "…"
        fields = "1 field" if len(row) == 1 else f"{len(row)} fields"
        raise WorkflowError(f"Line {line} has {fields} where the header has {len(header)}: {shown}")
