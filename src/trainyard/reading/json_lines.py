"""Tables of one JSON object a line, read as other tables are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.reading.errors import ReadingError, listed, shown
from trainyard.reading.json_text import parse_json
from trainyard.reading.rows import Row
from trainyard.reading.table import Lines, Table


@dataclass
class JsonLines(Table):
    """A file with a JSON object on each line.

    A field of a row is a text as it stands, and of any other value its JSON. ``null`` is as good as no field: programs
    write it for what they do not know.
    """

    def _header(self, lines: Lines) -> Sequence[str]:
        """None: each line has its own names."""
        return ()

    def _row(self, text: bytes, lines: Lines, columns: Sequence[str]) -> Row:
        line = lines.number
        self._check_length(text, lines)
        values = self._object(self._decoded(text, lines), line)
        fields = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items()
            if value is not None
        }
        missing = [name for name in self.needed if name not in fields]
        if missing:
            said = f"no field {', '.join(missing)}; it has {listed(fields) or 'none'}"
            raise self.row_error(self.path, line, f"no field {', '.join(missing)}", said)
        return Row(self.path, line, fields, self.row_error)

    def _object(self, text: str, line: int) -> dict[str, object]:
        try:
            value = parse_json(text, self.path)
        except ReadingError as error:
            said = str(error).removeprefix(f"{self.path}, line 1: ")
            raise self.row_error(self.path, line, "not JSON", said) from error
        if not isinstance(value, dict):
            said = f"got {shown(value)}, allowed is an object with {', '.join(self.needed)}"
            raise self.row_error(self.path, line, "no JSON object", said)
        return value
