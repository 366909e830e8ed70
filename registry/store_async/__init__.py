from registry.store_async.registry import AsyncToolRegistry

__all__ = ["AsyncToolRegistry"]
