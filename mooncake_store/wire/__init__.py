"""Wire formats, sans-I/O: control frames, control messages, the data protocol."""
