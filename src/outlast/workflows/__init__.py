"""What an author writes: workflows, steps, effects, calls and messages."""
