"""``python -m tests.fuzz``."""

from tests.fuzz.campaign import main

if __name__ == "__main__":
    main()
