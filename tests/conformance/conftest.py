"""The comparison with eager PyTorch is shared with the tests of the lowering."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "job"))
