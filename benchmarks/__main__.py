"""Run the benchmarks by name, or all: `python -m benchmarks concurrency exactness`."""

from __future__ import annotations

import sys

from benchmarks import (
    concurrency,
    conversation,
    exactness,
    explain,
    feedback,
    learning,
    relevance,
    retrieval,
    routing,
    scale,
    steps,
)

BENCHMARKS = {
    "scale": scale.main,
    "retrieval": retrieval.main,
    "relevance": relevance.main,
    "routing": routing.main,
    "learning": learning.main,
    "feedback": feedback.main,
    "explain": explain.main,
    "concurrency": concurrency.main,
    "exactness": exactness.main,
    "steps": steps.main,
    "conversation": conversation.main,
}


def main() -> None:
    chosen = sys.argv[1:] or list(BENCHMARKS)
    if unknown := set(chosen) - set(BENCHMARKS):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(BENCHMARKS)}")
    for name in chosen:
        print(f"# {name}", file=sys.stderr)
        BENCHMARKS[name]()


main()
