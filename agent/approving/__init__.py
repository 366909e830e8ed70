"""Pure parts of approval: which calls a person is asked about, and what came of it."""
