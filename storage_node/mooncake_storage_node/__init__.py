"""The storage node: pools memory of one host and serves it over TCP and shared memory."""
