"""``python -m mooncake_store`` is the ``mooncake-store`` command."""

from mooncake_store.command import main

if __name__ == "__main__":
    main()
