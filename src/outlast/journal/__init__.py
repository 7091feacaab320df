"""What is remembered: entries and the encoding of values; imports only `outlast.clock` and `outlast.errors`."""
