"""Reading text that others wrote (YAML, JSON, tables) within limits, each with its reason in `limits`.

What is refused is refused before work is done for it, and the error says where, what was given, and what is allowed.
"""

from trainyard.reading.errors import ReadingError, at_line, count_text, listed, raised_as, shortened, shown
from trainyard.reading.json_text import parse_json, unique_keys
from trainyard.reading.plain import open_plain, plain_beginning
from trainyard.reading.section import Items, Section
from trainyard.reading.text import check_text, read_text, undecodable, visible
from trainyard.reading.yaml_text import parse_yaml

__all__ = [
    "Items",
    "ReadingError",
    "Section",
    "at_line",
    "check_text",
    "count_text",
    "listed",
    "open_plain",
    "parse_json",
    "parse_yaml",
    "plain_beginning",
    "raised_as",
    "read_text",
    "shortened",
    "shown",
    "undecodable",
    "unique_keys",
    "visible",
]
