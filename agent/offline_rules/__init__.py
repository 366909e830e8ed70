"""The rules behind `OfflineChatModel`: word lists and plain functions, no language model."""
