"""Reword the errors that tyro finds in the options of a verb."""

from __future__ import annotations

import re
from types import MappingProxyType

__all__ = ["option_error"]

_REWORDED = MappingProxyType(
    {
        r" Argument helptext: .*?(?= For full helptext|$)": "",
        r" For full helptext, (?:see|run) (.*) --help": r"; see \1 --help",
        r"Missing value for argument '(.*?)'\. Expected 1 values\.?": r"\1 has no value; give one",
        r"Missing value for argument '(.*?)'\. Expected (\d+) values\.?": r"\1 has too few values; give \2",
        r"(Unrecognized options: .*?) Perhaps you meant:": r"\1. Perhaps you meant:",
        r"Error parsing (\S+): ": r"\1: ",
        r"invalid literal for int\(\) with base 10: (.*?)(?=;|$)": r"\1 is not a whole number; give one",
        r"could not convert string to float: (.*?)(?=;|$)": r"\1 is not a number; give one",
        r"invalid choice (.*?) for argument '(.*?)'. Expected one of \((.*?)\)\.?": r"\2: \1 is not known; known are \3",
    }
)
"""Replacements for parts of tyro's error messages, by regular expression."""


def option_error(text: str) -> str:
    """Return tyro's error about options as one line in our words.

    Parameters
    ----------
    text : as tyro prints it: sentences in a box, and the help of the option.
    """
    rows = [line.strip("│╭╮╰╯─ \t") for line in text.splitlines()[1:]]
    told = " ".join(row for row in rows if row.strip("-+")).replace(" :", ":")
    for pattern, words in _REWORDED.items():
        told = re.sub(pattern, words, told)
    return _missing_options(told)


def _missing_options(told: str) -> str:
    """Reword the error that options are missing. Other errors are returned as they are."""
    found = re.fullmatch(r"Missing from (trainyard .*?): (.*)", told)
    if found is None:
        return told
    options = (option.strip() for option in found[2].split("(required)"))
    named = [re.sub(r"^(--\S+ \S+|\S+) ", r"\1: ", option).rstrip(".") for option in options if option]
    return f"{found[1]} needs {'; '.join(named)}; see {found[1]} --help"
