"""How large what is read may be, and why. A file beyond these is a mistake or an attack, and is refused at once."""

from __future__ import annotations

MOST_BYTES = 16 * 2**20
"""Of a file that is held as a whole. The largest that is known, speeds of pairs of jobs, has about 2 MiB."""

MOST_UNPACKED_BYTES = 4 * 2**30
"""Of a compressed file when it is unpacked. The largest public trace, Philly's, has about 100 MiB."""

MOST_DEPTH = 64
"""Lists and mappings in each other. Nothing that is read nests more than eight."""

MOST_VALUES = 250_000
"""Keys, texts, numbers, lists and mappings of a YAML text: about a second of reading."""

MOST_VALUES_OF_TABLES = 2_000_000
"""Of files of measurements and of jobs that are held as a whole: some seconds of reading."""

MOST_ALIASED = 100_000
"""Values that stand behind the aliases of a file: each is cheap to read, and not to use."""

MOST_DIGITS = 40
"""Of a number, with sign and point. One of 64 bits has 20; beyond 4,300 Python itself gives up."""

MOST_NAME = 1_000
"""Characters of a name and of a key. Messages repeat them."""

MOST_FIELD_BYTES = 128 * 2**10
"""Of a field of a table, as Python's own reader of CSV has it."""

MOST_LINE_BYTES = 2**20
"""Of a line of a table."""

LARGEST_NUMBER = 1e30
"""Of a quantity: products of a few of them stay finite."""

LEAST_PERIOD_S = 1e-3
"""Of rounds, quanta and other times after which something happens again: of less, a simulation does not end."""

LONGEST_S = 1e9
"""Of a job and of times that one waits for: 30 years."""

MOST_ROUNDS = 10_000_000
"""Of a job, where it is decided again and again who runs: hours of simulating."""

LATEST_S = 1e12
"""Of a moment, counted in seconds; beyond, a thousandth of a second more is the same number."""

MOST_ROWS = 100_000_000
"""Of the batch of one step. The largest published ones have a few million."""

MOST_STEPS = 10**12
"""Of a training: 30,000 years at one a second."""

MOST_DEVICES = 1_000_000
"""Of a cluster, and of a job. The largest have about 100,000."""

MOST_RANKS = 2**17
"""Of a plan."""
