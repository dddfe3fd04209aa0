"""Repeated blocks: trace one of many equal blocks, and write its graph for every one of them.

Tracing costs about a millisecond for every op, and most ops of a deep model lie in blocks that differ only in their
parameters. While the whole model is traced, such a block is one op without parameters (and one more in the backward
pass); afterwards each is replaced by a copy of the graph of one. A block is replaced only where nothing can tell the
difference: in a first run of the model every block is watched, and those are replaced that are called once, do the same
ops on the same things as the one that is traced, and share nothing with the rest of the model but what they are given and
return; in a second run, with the ops in their place, the rest must do what it did. The idea is that of regional
compilation (``torch.compiler.nested_compile_region``).
"""

from trainyard.program.repeats.find import find_repeats
from trainyard.program.repeats.stand_in import NotRepeatableError, Repeats
from trainyard.program.repeats.write import write_out

__all__ = ["NotRepeatableError", "Repeats", "find_repeats", "write_out"]
