"""Subjects that should compute the same: pairs of them, families of them, and what became of a family."""
