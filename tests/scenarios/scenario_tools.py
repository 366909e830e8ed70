"""Small tools whose effects can be counted."""

from __future__ import annotations

from typing import Any

from langchain_core.tools import BaseTool, StructuredTool, tool

from registry.toolset import Toolset


class OutOfPaper(Exception):
    """An error class that no library knows."""


class World:
    """Tools over one small state, so that a test can see what really ran."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.runs: list[str] = []

    def tools(self) -> list[BaseTool]:
        runs, notes = self.runs, self.notes

        @tool
        def lookup_order(order_id: str) -> str:
            """Look up an order: delivery date and price."""
            runs.append("lookup_order")
            return f"Order {order_id}: delivered 2026-10-01, price 250000"

        @tool
        def refund_policy() -> str:
            """The refund policy of the shop."""
            runs.append("refund_policy")
            return "Refunds within 30 days after delivery"

        @tool
        def divide(numerator: float, denominator: float) -> float:
            """Divide one number by another number."""
            runs.append("divide")
            return numerator / denominator

        @tool
        def write_note(text: str) -> str:
            """Write a note to the notebook."""
            runs.append("write_note")
            notes.append(text)
            return f"note {len(notes)} written"

        @tool
        def search_notes(words: str) -> str:
            """Search the notes in the notebook."""
            runs.append("search_notes")
            return f"{len(notes)} notes"

        @tool
        def print_page(page: int) -> str:
            """Print a page on the printer."""
            runs.append("print_page")
            raise OutOfPaper(f"tray empty at page {page}")

        @tool
        def check_invariant() -> str:
            """Check the invariant of the ledger."""
            runs.append("check_invariant")
            raise AssertionError

        wire_money = StructuredTool.from_function(
            func=lambda amount: runs.append("wire_money") or f"sent {amount}",
            name="wire_money",
            description="Wire money to a bank account.",
            args_schema={
                "type": "object",
                "properties": {"amount": {"type": "number"}},
                "required": ["amount"],
            },
            metadata={"requires_approval": True},
        )
        return [
            lookup_order,
            refund_policy,
            divide,
            write_note,
            search_notes,
            print_page,
            check_invariant,
            wire_money,
        ]

    def toolset(self) -> Toolset:
        return Toolset(self.tools())


def numbered_toolset(count: int) -> Toolset:
    """Tools that a question about gauges finds, all alike."""

    def make(number: int) -> BaseTool:
        def read(**_: Any) -> str:
            return f"gauge {number}"

        return StructuredTool.from_function(
            func=read,
            name=f"gauge_{number:03}",
            description="Read the pressure gauge.",
            args_schema={"type": "object", "properties": {}},
        )

    return Toolset([make(number) for number in range(count)])
