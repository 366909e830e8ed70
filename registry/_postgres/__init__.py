"""The embedded server's machinery; `registry.local_postgres` is its only user."""
