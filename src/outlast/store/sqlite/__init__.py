"""Runs in one SQLite file: WAL, full durability, any number of processes on one machine."""
