"""Threads in the registry's database that any process can go on with."""
