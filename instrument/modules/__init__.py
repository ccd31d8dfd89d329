"""Roles whose subject is a module: multi-head attention, encoder, decoder, whole models.

One module for each role; what they share stands in `noise`, `subject` and `role`.
"""
