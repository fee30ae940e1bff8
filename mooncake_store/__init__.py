"""Kernel of the store: types, errors, limits, memory layout, wire formats. Imports no role."""
