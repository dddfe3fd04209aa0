"""Variables of a chat template that a request sets, such as whether a model is to reason before it answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trainyard.reading import listed, shown
from trainyard.serve.errors import ServeError

__all__ = ["template_variables"]

_RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"}
)
"""Variables that transformers itself gives to every template."""


class _GenerationBlocks(Extension):
    """Reads the blocks that mark answers in templates of transformers."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # any set does

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_ENVIRONMENT = ImmutableSandboxedEnvironment(extensions=[_GenerationBlocks, loopcontrols])


def template_variables(
    template: str, given: Mapping[str, Any], effort: str, reserved: Collection[str] = ()
) -> dict[str, Any]:
    """Return the variables with which a template writes a conversation.

    Parameters
    ----------
    template : of the model.
    given : variables that the request sets, by name.
    effort : how much the model is to reason; "" if the request does not say it. A template reads the effort as
        ``reasoning_effort``, or as ``enable_thinking``, which is false for "none".
    reserved : names of others that a request may not set.

    Raises
    ------
    ServeError
        If the template does not read a variable; names those that it reads.
    """
    if not given and not effort:
        return {}
    read = meta.find_undeclared_variables(_ENVIRONMENT.parse(template)) - _RESERVED - set(reserved)
    of_effort = {"reasoning_effort": effort, "enable_thinking": effort != "none"} if effort else {}
    found = {name: value for name, value in of_effort.items() if name in read}
    wrong = [name for name in given if name not in read]
    if of_effort and not found:
        wrong.append("reasoning_effort")
    if wrong:
        allowed = f"it reads {listed(sorted(read))}" if read else "it reads none"
        raise ServeError(
            f"the chat template of the model does not read {shown(wrong[0])}, which would change nothing; of the "
            f"variables that requests may set, {allowed}; leave it out"
        )
    return found | dict(given)
