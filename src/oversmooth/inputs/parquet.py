"""Rows of parquet files, read a few at a time and only where they are wanted.

Not for what the rows mean: images.py and text.py decide that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from oversmooth.inputs.sources import Source
from oversmooth.safety.errors import InputError, reason
from oversmooth.safety.libraries import import_library
from oversmooth.safety.machine import check_fits

ROWS_AT_ONCE = 32


@dataclass(frozen=True)
class Row:
    """The wanted columns of one row, by column name, and where it stood."""

    where: str
    values: dict[str, Any]


class Table:
    """Parquet files of one data set, one after the other, as one numbered list of rows."""

    def __init__(self, source: Source, wanted: tuple[str, ...], extra: tuple[str, ...] = ()) -> None:
        """``wanted``: one of these columns must be there; ``extra``: these may be. The first that is there is used."""
        self._parquet = import_library("pyarrow.parquet", f"reading {source.path}")
        self._source = source
        self._rows: list[int] = []
        for file in source.files:
            try:
                with self._parquet.ParquetFile(file) as opened:
                    columns, metadata = opened.schema_arrow.names, opened.metadata
            except Exception as error:  # pyarrow has a family of its own, of several lines
                raise InputError(f"{file} is not a readable parquet file ({reason(error)}); write it again") from error
            self._rows.append(metadata.num_rows)
            column = next((name for name in wanted if name in columns), None)
            if column is None:
                have = ", ".join(columns[:8]) + (" and so on" if len(columns) > 8 else "")
                raise InputError(f"{file} has the columns {have or '(none)'}; it needs one named {' or '.join(wanted)}")
            for name in (column, *extra):
                if columns.count(name) > 1:
                    raise InputError(f"{file} has {columns.count(name)} columns named {name}; leave one of that name")
            _check_sizes(file, metadata, column)
            if not hasattr(self, "column"):
                self.column = column
                self.extra = next((name for name in extra if name in columns), None)
            elif column != self.column or (self.extra is not None and self.extra not in columns):
                raise InputError(f"{file} has other columns than {source.files[0]}; give data sets one at a time")
        self.total = sum(self._rows)
        if not self.total:
            raise InputError(f"{source.path} has no rows; give data with some")

    def rows(self, wanted: Sequence[int] | None = None) -> Iterator[Row]:
        """The rows of these numbers (ascending), or all of them; row groups without any are never read."""
        columns = [self.column, *([self.extra] if self.extra else [])]
        chosen = None if wanted is None else set(wanted)
        first = 0
        for file, count in zip(self._source.files, self._rows, strict=True):
            if chosen is None or any(first <= row < first + count for row in chosen):
                inside = None if chosen is None else {row - first for row in chosen}
                try:
                    for row, values in self._file(file, columns, inside):
                        yield Row(f"row {row} of {self._source.name(file)}", values)
                except InputError:
                    raise
                except Exception as error:
                    raise InputError(f"{file} cannot be read on ({reason(error)}); write it again") from error
            first += count

    def _file(self, file: Any, columns: list[str], wanted: set[int] | None) -> Iterator[tuple[int, dict[str, Any]]]:
        with self._parquet.ParquetFile(file) as opened:
            first = 0
            for group in range(opened.metadata.num_row_groups):
                end = first + opened.metadata.row_group(group).num_rows
                if wanted is None or any(first <= row < end for row in wanted):
                    for batch in opened.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=columns):
                        for place in range(batch.num_rows):
                            if wanted is None or first + place in wanted:
                                yield first + place, {name: batch[name][place].as_py() for name in columns}
                        first += batch.num_rows
                first = end


def _check_sizes(file: Any, metadata: Any, column: str) -> None:
    """A group of rows is read at once: what its pages unpack to must fit into memory."""
    largest = 0
    for group in range(metadata.num_row_groups):
        parts = (metadata.row_group(group).column(i) for i in range(metadata.num_columns))
        largest = max(
            largest, sum(p.total_uncompressed_size for p in parts if p.path_in_schema.split(".")[0] == column)
        )
    check_fits(2 * largest, f"a row group of {file}", "write it in smaller row groups")
