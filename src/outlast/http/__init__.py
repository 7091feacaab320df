"""The Idempotency-Key header, on both sides of HTTP. Nothing here is imported by the rest of Outlast."""
