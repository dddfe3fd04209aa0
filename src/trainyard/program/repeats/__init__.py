"""Repeated blocks: trace one of many equal blocks, and write its graph for every one of them.

Tracing costs about a millisecond for every op, and most ops of a deep model lie in blocks that differ only in their
parameters. While the whole model is traced, such a block is one op without parameters (and one more in the backward
pass); afterwards each is replaced by a copy of the graph of one. A block is replaced only where nothing can tell the
difference: it has the class, attributes, parameters and children of that one, is called once, on inputs of the same
shapes and types, and nobody else reads its parameters. The idea is that of regional compilation
(``torch.compiler.nested_compile_region``).
"""

from trainyard.program.repeats.find import find_repeats
from trainyard.program.repeats.stand_in import Repeats
from trainyard.program.repeats.write import write_out

__all__ = ["Repeats", "find_repeats", "write_out"]
