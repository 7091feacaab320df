"""How the world is changed: keys, retries and what may be done after an unknown outcome."""
