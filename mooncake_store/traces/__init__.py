"""Request traces of real services, and the reader for them and for others of the same form."""

from mooncake_store.traces.requests import BUNDLED, TOKENS_PER_BLOCK, Request, open_trace

__all__ = ["BUNDLED", "TOKENS_PER_BLOCK", "Request", "open_trace"]
