"""``python -m minitvm.testing.fuzz``."""

from minitvm.testing.fuzz.campaign import main

if __name__ == "__main__":
    main()
