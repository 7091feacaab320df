"""Where runs are kept: one protocol, one write verb, and the stores that pass its conformance suite."""
