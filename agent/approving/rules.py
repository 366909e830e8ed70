"""Which calls need a person's approval, as code says it; the registry's flag comes on top."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from inspect import iscoroutinefunction
from typing import Any, Literal, cast

from langchain_core.tools import BaseTool

from registry.errors import ConfigurationError
from registry.text import nearest_names
from registry.toolset import Toolset

__all__ = ["ApprovalPolicy", "ApprovalRules", "Judgement", "judge", "names_in"]

ApprovalPolicy = Callable[[BaseTool, dict[str, Any]], "bool | str"]

FLAGGED = "this tool is marked as needing approval"
BY_RULE = "calls of this tool need approval"
BY_POLICY = "this call needs approval by a rule on its arguments"
_MAX_REASON_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the rules say of one call.

    Attributes:
        verdict: `free` to run, `ask` a person, or `refuse`: a rule failed.
        reason: Why a person is asked.
        error: What the rule that failed raised.
    """

    verdict: Literal["free", "ask", "refuse"]
    reason: str = ""
    error: Exception | None = None


class ApprovalRules:
    """Rules by tool name, checked against the tools there are.

    Args:
        rules: Key to True (always ask) or a policy function. A key is a tool's model-facing name,
            its own name before an origin was put in front, or its origin (`mcp:north`); `*` stands
            for any characters. A rule holds for every tool that its key fits.
        known: The names each tool goes by.

    Raises:
        ConfigurationError: A key fits no tool, or a value is neither True nor a function.
    """

    def __init__(
        self, rules: Mapping[str, ApprovalPolicy | Literal[True]] | None, known: Iterable[set[str]]
    ) -> None:
        self._rules = _checked(rules)
        names = {name for names in known for name in names}
        for key in self._rules:
            if not any(_fits(key, name) for name in names):
                near = nearest_names(key, names)
                hint = f" Nearest: {', '.join(near)}." if near else ""
                raise ConfigurationError(f"Approval is asked for {key!r}, which is no tool.{hint}")

    def of(self, names: Collection[str]) -> list[ApprovalPolicy | Literal[True]]:
        """Return the rules for a tool that goes by these names."""
        return [
            rule for key, rule in self._rules.items() if any(_fits(key, name) for name in names)
        ]


def judge(
    rules: Sequence[ApprovalPolicy | Literal[True]],
    tool: BaseTool,
    arguments: Mapping[str, Any],
    *,
    is_flagged: bool,
) -> Judgement:
    """Return what the rules say of a call; the strictest of them counts.

    Args:
        rules: Of the tool.
        tool: The live tool.
        arguments: Checked ones. A policy gets a copy, so that it changes nothing.
        is_flagged: The registry marks the tool as needing approval.
    """
    reasons = [FLAGGED] if is_flagged else []
    for rule in rules:
        if rule is True:
            reasons.append(BY_RULE)
            continue
        try:
            said = cast("object", rule(tool, copy.deepcopy(dict(arguments))))
            if not isinstance(said, (bool, str)):
                raise TypeError(
                    f"an approval policy returned {type(said).__name__}, not bool or text"
                )
        except Exception as error:
            return Judgement(verdict="refuse", error=error)
        if isinstance(said, str):
            reasons.append(" ".join(said.split())[:_MAX_REASON_CHARS] or BY_POLICY)
        elif said:
            reasons.append(BY_POLICY)
    if not reasons:
        return Judgement(verdict="free")
    # What a policy says of the arguments tells more than that the tool is marked.
    reasons.sort(key=lambda reason: reason in (FLAGGED, BY_RULE))
    return Judgement(verdict="ask", reason="; ".join(dict.fromkeys(reasons)))


def names_in(toolset: Toolset | None) -> dict[str, set[str]]:
    """Return the names that each tool of a toolset goes by, by binding."""
    specs = () if toolset is None else toolset.specs
    return {
        spec.binding: {spec.tool_name, spec.display_name, spec.binding, spec.origin}
        for spec in specs
    }


def _checked(rules: object) -> dict[str, ApprovalPolicy | Literal[True]]:
    if rules is None:
        return {}
    if not isinstance(rules, Mapping):
        raise ConfigurationError(
            f"approval is {rules!r}; give a mapping of tool name to True or a policy function"
        )
    checked: dict[str, ApprovalPolicy | Literal[True]] = {}
    for key, rule in cast("Mapping[object, object]", rules).items():
        if not isinstance(key, str):
            raise ConfigurationError(f"approval has the key {key!r}; use a tool's name")
        if rule is not True and (
            not callable(rule) or isinstance(rule, type) or iscoroutinefunction(rule)
        ):
            raise ConfigurationError(
                f"The approval rule of {key!r} is {rule!r}; give True, or a function of tool and "
                "arguments that returns True, False or a reason. To ask for no approval, leave "
                "the tool out"
            )
        checked[key] = cast("ApprovalPolicy | Literal[True]", rule)
    return checked


def _fits(key: str, name: str) -> bool:
    return fnmatchcase(name, key) if "*" in key else name == key
