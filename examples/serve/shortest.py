"""A policy of your own: all that run go on, and with what is left of a step, the shortest prompts that wait begin."""

from dataclasses import dataclass

from trainyard.serve.draft import BatchDraft


@dataclass(frozen=True)
class Shortest:
    """Prompts are computed in chunks, so that a step has at most so many tokens."""

    step_tokens: int = 1024
    repeats = "while none waits"  # who comes next may change with everybody who comes

    def start(self) -> None:
        return None  # it keeps nothing from one decision to the next

    def decide(self, draft: BatchDraft, state: None) -> None:
        left, running = self.step_tokens, draft.running
        while running and left:
            request = running.pop(0)
            num = min(draft.num_left(request), left)
            while not draft.compute(request, num):  # no blocks: those that came last lose theirs
                loser = running.pop() if running else request
                draft.preempt(loser)
                if loser is request:
                    break
            else:
                left -= num
        for request in sorted(draft.waiting, key=lambda each: each.request.prompt_tokens):
            num = min(draft.num_left(request), left)
            if not num or not draft.compute(request, num, reserve_tokens=request.num_tokens):
                break
            left -= num
