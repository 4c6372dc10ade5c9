"""The use cases: train with validation and live diagnosis, cold-start, evaluate."""
