"""A batch policy that does what a test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainyard.serve.draft import BatchDraft


class Acts:
    """Does the same in every decision."""

    repeats = "never"

    def __init__(self, act: Callable[[BatchDraft], Any]) -> None:
        self.act = act

    def start(self) -> None:
        return None

    def decide(self, draft: BatchDraft, state: Any) -> None:
        self.act(draft)
