"""The master: the pool's index in ``core`` (pure), and the shell that connects it to the world."""
