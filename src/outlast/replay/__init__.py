"""The deterministic machine: journal entries go in, commands come out, and nothing here does I/O."""
