"""Tools over a small SQLite database: notes, and the orders of a sample shop."""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

from langchain_core.tools import BaseTool

from agent.demo.common import SAMPLE, demo_tool, unknown
from agent.demo.sample_data import ORDERS, PRODUCTS

__all__ = ["DemoDatabase", "note_tools", "shop_tools"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS note (id INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS product (
    name TEXT PRIMARY KEY, price INTEGER NOT NULL, in_stock INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS shop_order (
    order_id TEXT PRIMARY KEY, item TEXT NOT NULL, status TEXT NOT NULL, delivered_on TEXT,
    amount INTEGER NOT NULL, carrier TEXT NOT NULL, location TEXT NOT NULL);
"""
_MAX_NOTE_CHARS = 2_000

OrderId = Annotated[str, "Order number such as A100"]


class DemoDatabase:
    """A SQLite database with sample orders; one connection, safe to use from many threads.

    Args:
        path: A file, or `:memory:` for one that ends with the object.
    """

    def __init__(self, path: str = ":memory:") -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False)
        self._connection.row_factory = sqlite3.Row
        # The tools keep the database alive, and nobody closes tools: close with the last of them.
        self._finalizer = weakref.finalize(self, self._connection.close)
        with self.transaction() as db:
            db.executescript(_SCHEMA)
            db.executemany(
                "INSERT OR IGNORE INTO shop_order VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (o.order_id, o.item, o.status, o.delivered_on, o.amount, o.carrier, o.location)
                    for o in ORDERS
                ],
            )
            db.executemany(
                "INSERT OR IGNORE INTO product VALUES (?, ?, ?)",
                [(product.name, product.price, product.in_stock) for product in PRODUCTS],
            )

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Give the connection to one thread; commit at the end, roll back on an error."""
        with self._lock, self._connection:
            yield self._connection

    def close(self) -> None:
        """Close the connection; the tools fail from then on. Closing twice is fine."""
        self._finalizer()


def note_tools(database: DemoDatabase) -> list[BaseTool]:
    """Return the tools of category `notes`."""

    def add_note(text: Annotated[str, "What to remember"]) -> str:
        """Take a note: save a memo, reminder or to-do so that the user remembers it."""
        if not text.strip():
            raise ValueError("the note is empty; say what to write down")
        if len(text) > _MAX_NOTE_CHARS:
            raise ValueError(f"the note has {len(text)} characters; at most {_MAX_NOTE_CHARS}")
        with database.transaction() as db:
            row = db.execute("INSERT INTO note (text) VALUES (?) RETURNING id", (text.strip(),))
            return f"note {row.fetchone()[0]} saved"

    def list_notes() -> str:
        """Show all notes that were written down so far."""
        with database.transaction() as db:
            rows = db.execute("SELECT id, text FROM note ORDER BY id").fetchall()
        return _as_lines(rows) or "there are no notes yet"

    def search_notes(query: Annotated[str, "A word or phrase of the note"]) -> str:
        """Find those of my own saved notes that contain a word."""
        with database.transaction() as db:
            rows = db.execute(
                "SELECT id, text FROM note WHERE instr(lower(text), lower(?)) > 0 ORDER BY id",
                (query.strip(),),
            ).fetchall()
        return _as_lines(rows) or f"no note contains {query!r}"

    def delete_note(note_id: int) -> str:
        """Throw away one saved note for good, by its number."""
        with database.transaction() as db:
            deleted = db.execute("DELETE FROM note WHERE id = ?", (note_id,)).rowcount
        if not deleted:
            raise ValueError(f"there is no note {note_id}; list the notes to see their numbers")
        return f"note {note_id} deleted"

    return [
        demo_tool(
            add_note,
            category="notes",
            examples=("Remind me to call the dentist",),
            read_only=False,
        ),
        demo_tool(list_notes, category="notes"),
        demo_tool(search_notes, category="notes"),
        demo_tool(delete_note, category="notes", read_only=False, requires_approval=True),
    ]


def shop_tools(database: DemoDatabase) -> list[BaseTool]:
    """Return the tools of category `orders`."""

    def lookup_order(order_id: OrderId) -> dict[str, str | int | None]:
        """Look up my order by its number: what was ordered, status, delivery date and amount."""
        row = _order(database, order_id)
        keys = ("order_id", "item", "status", "delivered_on", "amount")
        return {**{key: row[key] for key in keys}, "source": SAMPLE}

    def list_orders() -> str:
        """List all orders of the customer with item and status, the newest last."""
        with database.transaction() as db:
            rows = db.execute(
                "SELECT order_id, item, status FROM shop_order ORDER BY order_id"
            ).fetchall()
        lines = [f"{row['order_id']}: {row['item']}, {row['status']}" for row in rows]
        return "\n".join([*lines, f"({SAMPLE})"])

    def track_shipment(order_id: OrderId) -> dict[str, str]:
        """Track where the parcel of an order is right now and which carrier brings it."""
        row = _order(database, order_id)
        return {
            "order_id": row["order_id"],
            "carrier": row["carrier"],
            "location": row["location"],
            "source": SAMPLE,
        }

    def cancel_order(order_id: OrderId) -> str:
        """Cancel an order that has not been delivered yet, so that it is not sent."""
        row = _order(database, order_id)
        if row["status"] not in {"processing", "shipping"}:
            raise ValueError(
                f"order {row['order_id']} is {row['status']}; only orders that are processing or "
                "shipping can be cancelled"
            )
        with database.transaction() as db:
            changed = db.execute(
                "UPDATE shop_order SET status = 'cancelled' WHERE order_id = ? "
                "AND status IN ('processing', 'shipping')",
                (row["order_id"],),
            ).rowcount
        if not changed:  # another thread was quicker
            raise ValueError(f"order {row['order_id']} was changed meanwhile; look it up again")
        return f"order {row['order_id']} cancelled ({SAMPLE})"

    def refund_policy() -> str:
        """Explain the shop's refund rules: when a customer gets the money back for a return."""
        return (
            "Refunds are possible within 30 days after delivery, for delivered orders only. "
            f"({SAMPLE})"
        )

    def check_product_stock(product: Annotated[str, "Product name such as desk lamp"]) -> str:
        """Check the price of a product in the shop and how many pieces are in stock."""
        with database.transaction() as db:
            rows = db.execute("SELECT name, price, in_stock FROM product ORDER BY name").fetchall()
        for row in rows:
            if row["name"] == product.strip().casefold():
                return f"{row['name']}: price {row['price']}, {row['in_stock']} in stock ({SAMPLE})"
        raise unknown("product", product, (row["name"] for row in rows))

    return [
        demo_tool(lookup_order, category="orders"),
        demo_tool(list_orders, category="orders"),
        demo_tool(track_shipment, category="orders"),
        demo_tool(cancel_order, category="orders", read_only=False, requires_approval=True),
        demo_tool(refund_policy, category="orders"),
        demo_tool(check_product_stock, category="orders"),
    ]


def _order(database: DemoDatabase, order_id: str) -> sqlite3.Row:
    wanted = order_id.strip().upper()
    with database.transaction() as db:
        row = db.execute(
            "SELECT order_id, item, status, delivered_on, amount, carrier, location "
            "FROM shop_order WHERE order_id = ?",
            (wanted,),
        ).fetchone()
        known = [] if row else db.execute("SELECT order_id FROM shop_order").fetchall()
    if row is None:
        raise unknown("order", order_id, (other["order_id"] for other in known))
    return row


def _as_lines(rows: list[sqlite3.Row]) -> str:
    return "\n".join(f"{row['id']}: {row['text']}" for row in rows)
