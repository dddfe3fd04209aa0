"""A policy of your own: running requests continue, and the rest of a step goes to the shortest waiting prompts."""

from dataclasses import dataclass

from trainyard.serve.draft import BatchDraft


@dataclass(frozen=True)
class Shortest:
    """Prompts are split into chunks, so that a step has at most ``step_tokens`` tokens."""

    step_tokens: int = 1024
    repeats = "while none waits"  # a new request may be the shortest one

    def start(self) -> None:
        return None  # no state between decisions

    def decide(self, draft: BatchDraft, state: None) -> None:
        left, running = self.step_tokens, draft.running
        while running and left:
            request = running.pop(0)
            num = min(draft.num_left(request), left)
            while not draft.compute(request, num):  # no free blocks: preempt the one admitted last
                victim = running.pop() if running else request
                draft.preempt(victim)
                if victim is request:
                    break
            else:
                left -= num
        for request in sorted(draft.waiting, key=lambda each: each.request.prompt_tokens):
            num = min(draft.num_left(request), left)
            if not num or not draft.compute(request, num, reserve_tokens=request.num_tokens):
                break
            left -= num
