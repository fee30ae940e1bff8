"""What a node decides, without I/O: its directory, and when an extent is free."""
