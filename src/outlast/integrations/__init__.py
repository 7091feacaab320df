"""Outlast together with other products: one module or folder each, with an extra of its own. None imports another."""
