"""The discrete-event core: tasks on serial resources and shared links, and the Timeline they make.

`TaskGraphBuilder` makes a frozen `TaskGraph`; `simulate` runs it. `trainyard.engine.tasks` defines the
semantics.
"""

from trainyard.engine.breakdown import Breakdown
from trainyard.engine.builder import TaskGraphBuilder
from trainyard.engine.categories import STANDARD_CATEGORIES, CategoryKind, ResourceKind
from trainyard.engine.errors import DeadlockError
from trainyard.engine.simulate import simulate
from trainyard.engine.tasks import TaskGraph
from trainyard.engine.timeline import CriticalStep, Timeline

__all__ = [
    "STANDARD_CATEGORIES",
    "Breakdown",
    "CategoryKind",
    "CriticalStep",
    "DeadlockError",
    "ResourceKind",
    "TaskGraph",
    "TaskGraphBuilder",
    "Timeline",
    "simulate",
]
