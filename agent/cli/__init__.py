"""The command `toolrag`: one file a command group, and the only place that prints."""
