"""Tests of the instrument itself, and the fault corpus that proves its teeth."""
