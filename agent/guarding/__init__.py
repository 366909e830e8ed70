"""Pure parts of the tool guard: what a call may look like, what its answer may, what failed."""
