"""Which blocks of a model can be replaced, and what by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn

from trainyard.program.capture_error import CaptureError
from trainyard.program.op_observer import tensors_of
from trainyard.program.repeats.block import trace_block
from trainyard.program.repeats.equal import repeated_blocks
from trainyard.program.repeats.stand_in import NotRepeatableError, Repeats
from trainyard.program.repeats.transcript import Recorder, Transcript
from trainyard.program.tracing.running import Given, Watch


def find_repeats(module: nn.Module, given: Given, run: Callable[[Watch], Any]) -> Repeats:
    """Trace one of the repeated blocks of a model, if there are any.

    Parameters
    ----------
    run : runs the model on what is given, within the context that it gets; returns what it computes.
    """
    blocks, none, state = repeated_blocks(module), Repeats({}, None), given.state
    if not blocks:
        return none
    own = {
        path: [state.get(f"{path}.{name}") for name, _ in (*block.named_parameters(), *block.named_buffers())]
        for path, block in blocks.items()
    }
    owner = {t: path for path, tensors in own.items() for t in tensors if t is not None}
    tensors = (*state.values(), *tensors_of(given.batch), given.rng)
    seen = _seen(blocks, Recorder(owner, tensors), run, none)
    calls = _most_alike(_replaceable(seen, own))
    if not calls:
        return none
    path, first = next(iter(calls.items()))
    alone = Recorder({}, ())
    watch = _watching({path: blocks[path]}, alone, none)
    # What is around a call in the model, such as autocast, is not around the one that is traced.
    try:
        traced = trace_block(blocks[path], first.call, given.rng, given.rows, watch)
    except CaptureError:
        return none
    if traced is None or [call.key for call in alone.calls[path]] != [first.key]:
        return none
    replaced = {path: blocks[path] for path in calls}
    # And with the ops that stand for blocks, all that is around them must be what it was.
    try:
        again = _seen(blocks, Recorder(owner, tensors), run, Repeats(replaced, traced))
    except NotRepeatableError:
        return none
    return Repeats(replaced, traced) if again.around.ops == seen.around.ops else none


def _seen(
    blocks: Mapping[str, nn.Module], recorder: Recorder, run: Callable[[Watch], Any], trial: Repeats
) -> Recorder:
    """Run the model, with ops that stand for the blocks of a trial."""
    recorder.returned(run(_watching(blocks, recorder, trial)))
    return recorder


def _watching(blocks: Mapping[str, nn.Module], recorder: Recorder, trial: Repeats) -> Watch:
    """A context within which the calls of blocks are recorded."""

    @contextmanager
    def watch(mode: Any) -> Iterator[None]:
        with ExitStack() as stack:
            for path, block in blocks.items():
                plain = trial.stand_in(path, block, mode) if path in trial.blocks else block.forward
                watched = recorder.watched(path, block, mode, plain)
                stack.enter_context(patch.object(block, "forward", watched))
            hooked = recorder.hooked(Tensor.register_hook)
            stack.enter_context(patch.object(Tensor, "register_hook", hooked))
            yield stack.enter_context(recorder)

    return watch


def _replaceable(seen: Recorder, own: Mapping[str, Sequence[Tensor | None]]) -> dict[str, Transcript]:
    """The calls of blocks that are called once, have their own parameters, and share only what they return."""
    if seen.differentiates:
        return {}

    def is_closed(path: str, call: Transcript) -> bool:
        known = zip(call.call.state, own[path], strict=False)
        return call.is_closed and path not in seen.leaked and all(used is given for used, given in known)

    return {p: calls[0] for p, calls in seen.calls.items() if len(calls) == 1 and is_closed(p, calls[0])}


def _most_alike(calls: Mapping[str, Transcript]) -> dict[str, Transcript]:
    """Return the largest group of calls that do the same, of calls on something that has a gradient."""
    groups: list[dict[str, Transcript]] = []
    for path, call in calls.items():
        if not any(t.requires_grad for t in call.call.given):
            continue
        alike = next((g for g in groups if next(iter(g.values())).key == call.key), None)
        if alike is None:
            groups.append(alike := {})
        alike[path] = call
    return max(groups, key=len, default={})
