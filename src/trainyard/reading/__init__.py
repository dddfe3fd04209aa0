"""Reading text that others wrote (YAML, JSON, tables) within limits, each with its reason in `limits`.

What is refused is refused before work is done for it, and the error says where, what was given, and what is allowed.
"""

from trainyard.reading.errors import ReadingError, at_line, raised_as, shown
from trainyard.reading.json_text import parse_json, unique_keys
from trainyard.reading.section import Items, Section
from trainyard.reading.text import check_text, decoded, read_text, undecodable
from trainyard.reading.yaml_text import parse_yaml

__all__ = [
    "Items",
    "ReadingError",
    "Section",
    "at_line",
    "check_text",
    "decoded",
    "parse_json",
    "parse_yaml",
    "raised_as",
    "read_text",
    "shown",
    "undecodable",
    "unique_keys",
]
