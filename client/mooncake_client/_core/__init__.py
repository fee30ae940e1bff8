"""Decisions of the client, pure: operations as generators that yield effects (ADR 0005)."""
