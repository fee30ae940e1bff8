"""The commands of a client; ``mooncake_client.command`` assembles them."""
