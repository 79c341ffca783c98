"""``python -m eagle_convert``."""

from .cli import main

if __name__ == "__main__":
    main()
