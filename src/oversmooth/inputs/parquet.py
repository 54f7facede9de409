"""Parquet files of one data set: checked first, then read a few rows at a time or whole.

images.py and text.py interpret the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oversmooth.inputs.sources import Source, read_as
from oversmooth.safety.errors import InputError
from oversmooth.safety.libraries import import_library
from oversmooth.safety.machine import check_fits

ROWS_AT_ONCE = 32


@dataclass(frozen=True)
class Row:
    """The requested columns of one row, by column name, and its position."""

    where: str
    values: dict[str, Any]

    def encoded(self, column: str) -> Any:
        """The bytes of an image, which are stored alone or with its name."""
        cell = self.values[column]
        return cell.get("bytes") if isinstance(cell, dict) else cell


class Table:
    """Parquet files of one data set, concatenated into one numbered list of rows.

    ``wanted``: columns, the first present of which is used; one must be there. ``extra``: likewise, optional unless
    ``whole``. ``whole``: columns are read at once, so all of them must fit into memory; else one row group must.
    """

    def __init__(
        self, source: Source, wanted: tuple[str, ...], extra: tuple[str, ...] = (), *, whole: bool = False
    ) -> None:
        self._parquet = import_library("pyarrow.parquet", f"reading {source.path}")
        self._source, self.total, size = source, 0, 0
        for file in source.files:
            with readable(file), self._parquet.ParquetFile(file) as opened:
                columns, metadata = opened.schema_arrow.names, opened.metadata
            column = _one_of(wanted, columns, file)
            other = _one_of(extra, columns, file) if whole else _first_of(extra, columns)
            if whole:
                size += sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))
            else:
                _check_groups(file, metadata, column)
            if file == source.files[0]:
                self.column, self.extra = column, other
            elif column != self.column or self.extra not in (None, other):
                raise InputError(f"{file} and {source.files[0]} have different columns; give data sets one at a time")
            self.total += metadata.num_rows
        if not self.total:
            raise InputError(f"{source.path} has no rows; give other data")
        # Twice: as columns, and one by one.
        check_fits(2 * size, f"reading {source.path}", "give fewer rows")

    @property
    def columns(self) -> list[str]:
        """The columns that are read, in this order."""
        return [name for name in (self.column, self.extra) if name is not None]

    def rows(self, wanted: Sequence[int] | None = None) -> Iterator[Row]:
        """The rows of these numbers (ascending), or all; row groups without any are not read."""
        chosen, begin = range(self.total) if wanted is None else set(wanted), 0
        for file in self._source.files:
            with readable(file), self._parquet.ParquetFile(file) as opened:
                first = begin
                for group in range(opened.metadata.num_row_groups):
                    end = first + opened.metadata.row_group(group).num_rows
                    if wanted is None or any(first <= row < end for row in chosen):
                        for batch in opened.iter_batches(ROWS_AT_ONCE, row_groups=[group], columns=self.columns):
                            for row in (row for row in range(batch.num_rows) if first + row in chosen):
                                values = {name: batch[name][row].as_py() for name in self.columns}
                                yield Row(f"row {first + row - begin} of {self._source.name(file)}", values)
                            first += batch.num_rows
                    first = end
                begin = first

    def whole_files(self) -> list[Any]:
        """The columns of each file as a pyarrow table."""
        tables = []
        for file in self._source.files:
            with readable(file), self._parquet.ParquetFile(file) as opened:
                tables.append(opened.read(self.columns).select(self.columns))
        return tables


def readable(file: Path) -> AbstractContextManager[None]:
    """Turn pyarrow's errors, of many types and several lines, into one sentence."""
    return read_as(f"{file} is not a readable parquet file", "write it again")


def _first_of(names: tuple[str, ...], columns: Sequence[str]) -> str | None:
    return next((name for name in names if name in columns), None)


def _one_of(names: tuple[str, ...], columns: Sequence[str], file: Path) -> str:
    column = _first_of(names, columns)
    if column is None:
        have = ", ".join(columns[:8]) + (" and so on" if len(columns) > 8 else "")
        raise InputError(f"{file} has the columns {have or '(none)'}; name one of them {' or '.join(names)}")
    return column


def _check_groups(file: Path, metadata: Any, column: str) -> None:
    """A row group is read at once, so its unpacked pages must fit into memory."""
    sizes = [0]
    for group in range(metadata.num_row_groups):
        parts = (metadata.row_group(group).column(i) for i in range(metadata.num_columns))
        sizes.append(sum(p.total_uncompressed_size for p in parts if p.path_in_schema.split(".")[0] == column))
    check_fits(2 * max(sizes), f"a row group of {file}", "write it in smaller row groups")
