"""``python -m minitvm``."""

from minitvm.cli import main

main()
