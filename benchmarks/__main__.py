"""Run the benchmarks: `python -m benchmarks [scale|retrieval ...]`, all of them by default."""

from __future__ import annotations

import sys

from benchmarks import retrieval, scale

BENCHMARKS = {"scale": scale.main, "retrieval": retrieval.main}


def main() -> None:
    chosen = sys.argv[1:] or list(BENCHMARKS)
    if unknown := set(chosen) - set(BENCHMARKS):
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(BENCHMARKS)}")
    for name in chosen:
        print(f"# {name}", file=sys.stderr)
        BENCHMARKS[name]()


main()
