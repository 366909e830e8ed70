"""The tools of the example: put yours here."""

from __future__ import annotations

from langchain_core.tools import tool

__all__ = ["TOOLS"]

_ORDERS = {"A100": "delivered", "A101": "on its way"}


@tool
async def order_status(order_id: str) -> str:
    """Tell where an order is and when it arrives."""
    if order_id not in _ORDERS:
        raise ValueError(f"there is no order {order_id}; those of the example are {list(_ORDERS)}")
    return f"order {order_id} is {_ORDERS[order_id]}"


@tool
async def refund_order(order_id: str, amount: float) -> str:
    """Refund an order: give money back to the customer."""
    return f"refunded {amount:.2f} for order {order_id}"


order_status.metadata = {"read_only": True}
refund_order.metadata = {"requires_approval": True}

TOOLS = [order_status, refund_order]
