"""Why right tools were missed: `explain` for real questions of the public development sets.

    python -m benchmarks explain        or        python -m benchmarks.explain bfcl sealtools

Of the half of each set that is reported on, a few questions with a right tool that is not offered
by the default configuration, each with the right tool's description, what was offered instead, and
what `registry.explain` says. Each piece of advice is then followed, and the question asked
again. Made to be read: whether the reason is one that an operator would accept, and whether the
advice brings the tool in. Ends with how often each piece of advice did, over all misses looked at.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.data import specs
from benchmarks.retrieval import K, asked, prepare
from registry import Embedder, RegistrySettings, ToolRegistry
from registry.text import legal_name
from registry.types import Explanation, ToolHit

SETS = ("metatool", "toolbench", "sealtools", "bfcl")
SHOWN = 2  # of each set
LOOKED_AT = 25
_SAYS_K = re.compile(r"k of at least (\d+)")
_SAYS_THRESHOLD = re.compile(r"threshold of (\d\.\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A question with a right tool that was not offered."""

    question: str
    tool_name: str
    others_right: tuple[str, ...]


def misses(registry: ToolRegistry, name: str, *, limit: int) -> Iterator[Miss]:
    """Yield misses of a set, at most one a question."""
    found = 0
    for row in asked(name):
        offered = {hit.tool_name for hit in registry.search(row["query"], k=K)}
        relevant = [legal_name(tool) for tool in row["relevant"]]
        missed = [tool for tool in relevant if tool not in offered]
        if not missed:
            continue
        others = tuple(tool for tool in relevant if tool != missed[0])
        yield Miss(question=row["query"], tool_name=missed[0], others_right=others)
        found += 1
        if found == limit:
            return


def followed(registry: ToolRegistry, miss: Miss, told: Explanation) -> dict[str, bool]:
    """Follow each piece of advice by itself and return whether it brought the tool in."""
    results: dict[str, bool] = {}
    advice = "\n".join(told.advice)
    if "as an example" in advice:
        part = told.hit.parts.clause if told.hit and told.hit.parts else ""
        examples = registry.get(miss.tool_name).spec.examples
        registry.update_tool(miss.tool_name, examples=[*examples, part or miss.question])
        results["example"] = registry.explain(miss.question, miss.tool_name, k=K).is_offered
        registry.update_tool(miss.tool_name, examples=examples)
    k = _SAYS_K.search(advice)
    threshold = _SAYS_THRESHOLD.search(advice)
    if k or threshold:
        results["settings"] = registry.explain(
            miss.question,
            miss.tool_name,
            k=int(k[1]) if k else K,
            threshold=float(threshold[1]) if threshold else None,
        ).is_offered
    return results


def _asked_of(url: str, embedder: Embedder, name: str) -> Counter[str]:
    """Print a few misses of a set, and return how many were looked at and mended."""
    counted: Counter[str] = Counter()
    settings = RegistrySettings(auto_calibrate=False)
    with ToolRegistry(url, embeddings=embedder, settings=settings) as registry:
        for place, miss in enumerate(misses(registry, name, limit=LOOKED_AT)):
            told = registry.explain(miss.question, miss.tool_name, k=K)
            results = followed(registry, miss, told)
            counted["misses"] += 1
            counted["twins named"] += any("say the same" in reason for reason in told.reasons)
            for kind, is_offered in results.items():
                counted[f"{kind} given"] += 1
                counted[f"{kind} brought it in"] += is_offered
            if place < SHOWN:
                hits = registry.search(miss.question, k=K, threshold=0)
                _print(miss, registry.get(miss.tool_name).spec.description, told, hits, results)
    return counted


def _print(
    miss: Miss,
    description: str,
    told: Explanation,
    hits: Sequence[ToolHit],
    results: dict[str, bool],
) -> None:
    print(f"\nQ: {miss.question}")
    print(_indented(f"right tool: {miss.tool_name}: {description}"))
    if miss.others_right:
        print(_indented(f"also right: {', '.join(miss.others_right)}"))
    offered = (f"{hit.tool_name} ({hit.score:.1f}, {hit.relevance:.2f})" for hit in hits)
    print(_indented(f"first {K}: {', '.join(offered)}"))
    for label, lines in (("reason", told.reasons), ("advice", told.advice)):
        for line in lines:
            print(_indented(f"{label}: {line}"))
    for kind, is_offered in results.items():
        print(_indented(f"{kind} given: {'offered' if is_offered else 'still not offered'}"))


def _indented(text: str) -> str:
    short = textwrap.shorten(text, 420)
    return textwrap.fill(short, 110, initial_indent="   ", subsequent_indent="      ")


def main(sets: Sequence[str] = SETS) -> None:
    if unknown := set(sets) - set(SETS):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(SETS)}")
    with prepare() as (databases, embedder):
        for name in sets:
            print(f"\n## {name}")
            counted = _asked_of(databases.alone(specs(name)), embedder, name)
            print(f"\n{name}: {dict(counted)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or SETS)
