"""What users need to test their own workflows, and what every store must pass."""
